"""A request and its answer over a connection that was used before: one_connection.py both | server | client PORT.

A server prints "port PORT". Each prints "ok" when the bytes were right, and keeps its ends open until
its input ends.
"""
import socket
import sys

from warm_up import warm_up, warm_up_both

REQUEST = b"a request"
ANSWER = b"its answer " * 1000


def take(end, expected):
    received = b""
    while len(received) < len(expected):
        received += end.recv(len(expected) - len(received)) or sys.exit("an early end")
    if received != expected:
        sys.exit("other bytes than were sent")


role = sys.argv[1]
connector = acceptor = None
if role != "client":
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    print("port", port, flush=True)
else:
    port = int(sys.argv[2])
if role != "server":
    connector = socket.create_connection(("127.0.0.1", port))
if role != "client":
    acceptor, _ = listener.accept()
if role == "both":
    warm_up_both(connector, acceptor)
else:
    warm_up(connector or acceptor, first=role == "client")
if role != "server":
    connector.sendall(REQUEST)
if role != "client":
    take(acceptor, REQUEST)
    acceptor.sendall(ANSWER)
if role != "server":
    take(connector, ANSWER)
print("ok", flush=True)
sys.stdin.read()
