"""Holds both ends of a connection and sends a megabyte over it for each line it reads; for "rest" its
sender sleeps on the connection for a moment."""

import os
import signal
import socket
import struct
import sys
import threading

# Whoever waits for a line that never comes sees the end instead.
signal.alarm(120)
size = 1 << 20
content = (bytes(range(251)) * (size // 251 + 1))[:size]
listener = socket.create_server(('127.0.0.1', 0))
sender = socket.create_connection(listener.getsockname())
receiver, _ = listener.accept()
print(os.getpid(), sender.fileno(), receiver.fileno(), flush=True)


def receive():
    at = 0
    while at < size:
        data = receiver.recv(size - at)
        assert data and data == content[at:at + len(data)]
        at += len(data)


sender.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack('ll', 0, 50000))
for line in sys.stdin:
    if line == 'rest\n':
        try:
            sender.recv(1)
        except BlockingIOError:
            print('done', flush=True)
        continue
    thread = threading.Thread(target=receive, daemon=True)
    thread.start()
    sender.sendall(content)
    thread.join()
    print('done', flush=True)
