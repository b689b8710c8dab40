"""The connecting end makes enough transfers before the accepting one has. Prints "moved" once they had many more."""
import signal
import socket
import sys

# Whoever waits for a line that never comes sees the end instead.
signal.alarm(120)
listener = socket.create_server(("127.0.0.1", 0))
connector = socket.create_connection(listener.getsockname())
acceptor = listener.accept()[0]
# By now the accepting end has made no transfer at all, and the connecting one looks for it.
for _ in range(40):
    connector.sendall(b"l")
acceptor.recv(40, socket.MSG_WAITALL)
for _ in range(1000):
    connector.sendall(b"q")
    acceptor.recv(1)
    acceptor.sendall(b"a")
    connector.recv(1)
print("moved", flush=True)
sys.stdin.read()
