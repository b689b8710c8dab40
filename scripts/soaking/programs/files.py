"""Fetches files over one HTTP connection and compares them: files.py get|post PORT FOLDER COUNT. `post` sends every second one instead, to a
server that gives it back. A server that closes the connection between two answers, as a reload does, gets a new one; within an answer it must
not. Exit status 3: a file is wrong; 1: the connection failed."""
import http.client
import pathlib
import sys

what, port, folder, count = sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3]), int(sys.argv[4])
files = sorted((file.stat().st_size, file.name, file.read_bytes()) for file in folder.iterdir())
# The largest comes once in a hundred.
order = [file for file in files[:-1] for _ in range(25)] + [files[-1]]


def ask(connection, name, body):
    if body is None:
        connection.request("GET", f"/{name}")
    else:
        connection.request("POST", "/", body)
    return connection.getresponse()


connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
for number in range(count):
    _, name, wanted = order[number * 37 % len(order)]
    body = wanted if what == "post" and number % 2 else None
    try:
        answer = ask(connection, name, body)
    except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
        connection.close()
        answer = ask(connection, name, body)
    got = answer.read()
    if answer.status in (502, 504):
        sys.exit(f"connection: the server lost its own, and answered {answer.status}")
    if answer.status != 200 or got != wanted:
        print(f"wrong: {name} came with status {answer.status}, {len(got)} bytes instead of {len(wanted)}, or other ones")
        sys.exit(3)
connection.close()
print("ok", count)
