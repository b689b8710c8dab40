"""urllib and http.client against an HTTP server: http_client.py PORT FOLDER NAME...

Fetches each NAME and compares it with the file in FOLDER, posts bodies and compares the answers,
prints "hold" with a keep-alive connection open, waits for a line on stdin, uses it again, and
prints "ok".
"""
import http.client
import pathlib
import sys
import urllib.request

port, folder, names = int(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3:]
address = f"http://127.0.0.1:{port}/"
# No proxy of the environment: the address is on this machine.
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def check(got, wanted, what):
    if got != wanted:
        sys.exit(f"{what}: {len(got)} of {len(wanted)} bytes, or other ones")


for name in names:
    with opener.open(address + name, timeout=30) as answer:
        check(answer.read(), (folder / name).read_bytes(), name)

for size in (0, 1, 100_000, 2_000_000):
    body = bytes(i % 241 for i in range(997)) * (size // 997 + 1)
    with opener.open(address, data=body, timeout=30) as answer:
        check(answer.read(), body, f"post of {size}")

connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
for phase in range(2):
    for name in names:
        connection.request("GET", "/" + name)
        check(connection.getresponse().read(), (folder / name).read_bytes(), f"kept alive {name}")
    if phase == 0:
        print("hold", flush=True)
        sys.stdin.readline()
connection.close()
print("ok")
