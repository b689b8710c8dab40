"""Two processes that send on one connection in turns; then both wait until standard input ends.

Prints "took PID" with the process that sent last.
"""
import os
import socket
import sys

TURNS = 10


def main():
    listener = socket.create_server(("127.0.0.1", 0))
    sender = socket.create_connection(listener.getsockname())
    receiver, _ = listener.accept()
    to_child, of_child = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(to_child[1])
        while os.read(to_child[0], 1):
            sender.sendall(b"child")
            os.write(of_child[1], b".")
        os._exit(0)
    for _ in range(TURNS):
        sender.sendall(b"parent")
        os.write(to_child[1], b".")
        os.read(of_child[0], 1)
    expected = b"parentchild" * TURNS
    received = b""
    while len(received) < len(expected):
        received += receiver.recv(1024)
    assert received == expected
    print("took", child, flush=True)
    sys.stdin.read()
    os.close(to_child[1])
    os.waitpid(child, 0)


if __name__ == "__main__":
    main()
