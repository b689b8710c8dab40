"""A fork child answers on a connection of its parent's, by which few requests come. Prints "child" with the child's number."""
import os
import signal
import socket
import sys
import time

# Whoever waits for a line that never comes sees the end instead.
signal.alarm(120)
listener = socket.create_server(("127.0.0.1", 0))
connector = socket.create_connection(listener.getsockname())
acceptor = listener.accept()[0]
child = os.fork()
if child == 0:
    connector.close()
    while request := acceptor.recv(1):
        acceptor.sendall(request)
    os._exit(0)
acceptor.close()
for _ in range(12):
    connector.sendall(b"q")
    connector.recv(1)
    time.sleep(0.001)
print("child", child, flush=True)
sys.stdin.read()
connector.close()
os.waitpid(child, 0)
