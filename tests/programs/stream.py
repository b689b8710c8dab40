"""Holds both ends of a connection and sends a megabyte over it for each line it reads, for "pieces" in many
sends. For "rest" its sender sleeps on the connection for a moment. For "unread" it begins to send and nobody
receives, for "read" that is received. With the argument "short" the kernel says that it has no memory for large buffers."""

import ctypes
import os
import platform
import signal
import socket
import struct
import sys
import threading

from warm_up import warm_up_both


def refuse_memory():
    madvise = 28 if platform.machine() == 'x86_64' else 233
    populate_write, large, no_memory, allow = 23, 100000, 0x0005000c, 0x7fff0000
    load, equal, at_least, answer = 0x20, 0x15, 0x35, 0x06
    steps = [
        (load, 0, 0, 0), (equal, 0, 5, madvise),
        (load, 0, 0, 32), (equal, 0, 3, populate_write),
        (load, 0, 0, 24), (at_least, 0, 1, large),
        (answer, 0, 0, no_memory), (answer, 0, 0, allow),
    ]
    code = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *step) for step in steps))
    program = struct.pack('HxxxxxxP', len(steps), ctypes.addressof(code))
    libc = ctypes.CDLL(None)
    assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program) == 0


# Whoever waits for a line that never comes sees the end instead.
signal.alarm(120)
size = 1 << 20
content = (bytes(range(251)) * (size // 251 + 1))[:size]
if sys.argv[1:] == ['short']:
    # The shim stays away from connections of a program that forbids itself system calls, not of one that others confined.
    refuse_memory()
    os.execv(sys.executable, [sys.executable, __file__])
listener = socket.create_server(('127.0.0.1', 0))
sender = socket.create_connection(listener.getsockname())
receiver, _ = listener.accept()
warm_up_both(sender, receiver)
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
    if line == 'unread\n':
        sending = threading.Thread(target=sender.sendall, args=(content,), daemon=True)
        sending.start()
        print('done', flush=True)
        continue
    if line == 'read\n':
        receive()
        sending.join()
        print('done', flush=True)
        continue
    thread = threading.Thread(target=receive, daemon=True)
    thread.start()
    piece = 4096 if line == 'pieces\n' else size
    for at in range(0, size, piece):
        sender.sendall(content[at:at + piece])
    thread.join()
    print('done', flush=True)
