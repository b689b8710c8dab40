"""Passes the bytes of connections on: proxies.py splice|spin PORT ADDRESS:PORT [transparent]. `splice` moves them by the kernel's splice;
`spin` looks for them without a pause, and so passes each on within microseconds. A transparent one has, towards the server, the address and
port of the client."""

import os
import selectors
import socket
import sys
import threading

kind, port, target = sys.argv[1], int(sys.argv[2]), sys.argv[3].split(":")
is_transparent = len(sys.argv) > 4
IP_TRANSPARENT = 19


def splice(source, sink):
    """All of one direction."""
    outer, inner = os.pipe()
    while count := os.splice(source.fileno(), inner, 1 << 16):
        while count:
            count -= os.splice(outer, sink.fileno(), count)
    os.close(outer)
    os.close(inner)
    sink.shutdown(socket.SHUT_WR)


def quietly(work, *arguments):
    """A connection that is reset ends that connection alone."""
    try:
        work(*arguments)
    except OSError:
        for one in arguments:
            one.close()


def begin(accepted):
    other = socket.socket()
    if is_transparent:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.setsockopt(socket.IPPROTO_IP, IP_TRANSPARENT, 1)
        other.bind(accepted.getpeername())
    other.connect((target[0], int(target[1])))
    for one in (accepted, other):
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return other


def spin(listener):
    """All connections in one loop that never sleeps while there is one."""
    looks, others = selectors.DefaultSelector(), {}
    looks.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in looks.select(0 if others else None):
            if key.fileobj is listener:
                accepted, _ = listener.accept()
                other = begin(accepted)
                for one, to in ((accepted, other), (other, accepted)):
                    others[one] = to
                    looks.register(one, selectors.EVENT_READ)
                continue
            one = key.fileobj
            if one not in others:
                continue
            try:
                bytes_read = one.recv(1 << 16)
                if bytes_read:
                    others[one].sendall(bytes_read)
            except OSError:
                bytes_read = b""
            if not bytes_read:
                for end in (one, others.pop(one)):
                    others.pop(end, None)
                    looks.unregister(end)
                    end.close()


with socket.create_server(("0.0.0.0", port), backlog=512) as server:
    print("listens", flush=True)
    if kind == "spin":
        spin(server)
    while True:
        end, _ = server.accept()
        peer = begin(end)
        for pair in ((end, peer), (peer, end)):
            threading.Thread(target=quietly, args=(splice, *pair), daemon=True).start()
