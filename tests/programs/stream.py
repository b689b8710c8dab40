"""Holds both ends of a connection and sends a megabyte over it for each line it reads."""

import os
import signal
import socket
import sys
import threading

# Whoever waits for a line that never comes sees the end instead.
signal.alarm(120)
size = 1 << 20
listener = socket.create_server(('127.0.0.1', 0))
sender = socket.create_connection(listener.getsockname())
receiver, _ = listener.accept()
print(os.getpid(), sender.fileno(), receiver.fileno(), flush=True)


def receive():
    left = size
    while left:
        data = receiver.recv(left)
        assert data
        left -= len(data)


for line in sys.stdin:
    thread = threading.Thread(target=receive, daemon=True)
    thread.start()
    sender.sendall(bytes(size))
    thread.join()
    print('done', flush=True)
