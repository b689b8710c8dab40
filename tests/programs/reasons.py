"""Both ends of a connection that one circumstance keeps off shared memory, or in a certain state: reasons.py WHAT.

Prints "ends" with the descriptors of the listener, the connecting end, and the accepting end (-1: there is none),
and keeps them until its input ends.
"""
import ctypes
import errno
import os
import resource
import signal
import socket
import struct
import sys

from warm_up import warm_up_both

SO_PEEK_OFF, SIGEV_NONE, NOBODY = 42, 1, 65534
EXCHANGES = 20000

# Whoever waits for a line that never comes sees the end instead.
signal.alarm(120)
what = sys.argv[1]
listener = socket.create_server(("127.0.0.1", 0))
connector, acceptor = socket.socket(), None


def connect():
    connector.connect(listener.getsockname())


def warm_up_limited(which, most):
    """While the kernel gives this process no more than that."""
    before = resource.getrlimit(which)
    resource.setrlimit(which, (most, before[1]))
    warm_up_both(connector, acceptor)
    resource.setrlimit(which, before)


def exchange(one, other):
    for sender, receiver in ((one, other), (other, one)):
        sender.sendall(b"0123456789")
        if receiver.recv(10, socket.MSG_WAITALL) != b"0123456789":
            sys.exit("other bytes than were sent")


def write_unseen(end):
    """POSIX AIO: a thread inside libc writes."""
    libc = ctypes.CDLL(None, use_errno=True)
    content = ctypes.create_string_buffer(b"unseen", 6)
    request = ctypes.create_string_buffer(256)
    # A struct aiocb of x86-64: descriptor, buffer, bytes, and whom to tell.
    struct.pack_into("i12xPQ12xi", request, 0, end.fileno(), ctypes.addressof(content), 6, SIGEV_NONE)
    waited_for = (ctypes.c_void_p * 1)(ctypes.addressof(request))
    if libc.aio_write(request) != 0:
        sys.exit("aio_write failed")
    while libc.aio_error(request) == errno.EINPROGRESS:
        libc.aio_suspend(waited_for, 1, None)
    if libc.aio_return(request) != 6:
        sys.exit("aio_write wrote less")


def start_connector_of_another_user():
    """A fork child connects, talks for as long as the acceptor tries to find it, and stays until its parent goes."""
    if os.fork() != 0:
        return
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    # What would look the name up loads modules of Python's, which this user may not read.
    made = socket.socket()
    made.connect(listener.getsockname())
    listener.close()
    for _ in range(EXCHANGES):
        made.sendall(b"0123456789")
        made.recv(10, socket.MSG_WAITALL)
    made.recv(1)
    os._exit(0)


if what == "full backlog":
    listener.listen(0)
    earlier = []
    for _ in range(3):
        earlier.append(socket.socket())
        earlier[-1].setblocking(False)
        earlier[-1].connect_ex(listener.getsockname())
    connector.setblocking(False)
    connector.connect_ex(listener.getsockname())
elif what == "connector of another user":
    start_connector_of_another_user()
    connector = None
    acceptor, _ = listener.accept()
    for _ in range(EXCHANGES):
        acceptor.sendall(acceptor.recv(10, socket.MSG_WAITALL))
else:
    if what == "peek-offset connector":
        connector.setsockopt(socket.SOL_SOCKET, SO_PEEK_OFF, 0)
    if what == "peek-offset listener":
        listener.setsockopt(socket.SOL_SOCKET, SO_PEEK_OFF, 0)
    connect()
    acceptor, _ = listener.accept()
    if what == "inherited":
        connector.set_inheritable(True)
        os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
    if what == "no memory":
        # Room to say where the acceptor is, not for a session.
        warm_up_limited(resource.RLIMIT_FSIZE, 1 << 18)
    elif what == "no descriptor":
        warm_up_limited(resource.RLIMIT_NOFILE, acceptor.fileno() + 1)
    elif what != "a slow connection":
        warm_up_both(connector, acceptor)
    exchange(connector, acceptor)
if what == "unseen use":
    write_unseen(connector)
    if acceptor.recv(6, socket.MSG_WAITALL) != b"unseen":
        sys.exit("other bytes than were written")
if what == "reset":
    acceptor.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    acceptor.close()
    acceptor = None
    try:
        connector.recv(1)
        sys.exit("no reset")
    except ConnectionResetError:
        pass

ends = (end.fileno() if end else -1 for end in (listener, connector, acceptor))
print("ends", *ends, flush=True)
sys.stdin.read()
