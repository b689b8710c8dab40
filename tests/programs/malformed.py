"""A peer that changes the header of a message it sent: malformed.py WORD KEPT SET.

Of the header's word of that number the bits in KEPT stay and those in SET are set, before the other end receives
the message. Prints "reset" with that end's descriptor once its connection was reset, and "ok" once another connection
went on; keeps its ends until its input ends.
"""
import signal
import socket
import struct
import sys

from warm_up import warm_up_both

HEADER, DATA = 16, 1
MARK = b"the message that is changed"

# Whoever waits for a line that never comes sees the end instead.
signal.alarm(120)
word, kept, added = (int(argument, 0) for argument in sys.argv[1:])


def pair():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connector = socket.create_connection(listener.getsockname())
        acceptor, _ = listener.accept()
    warm_up_both(connector, acceptor)
    return connector, acceptor


def exchange(one, other):
    for sender, receiver in ((one, other), (other, one)):
        sender.sendall(b"0123456789")
        if receiver.recv(10, socket.MSG_WAITALL) != b"0123456789":
            sys.exit("other bytes than were sent")


def change():
    """Both ends have the memory mapped; which of the two mappings it is does not matter."""
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "r+b", buffering=0) as memory:
        for line in maps:
            if not line.rstrip().endswith("/memfd:sanshim (deleted)"):
                continue
            start, end = (int(number, 16) for number in line.split()[0].split("-"))
            memory.seek(start)
            found = memory.read(end - start).find(MARK)
            if found < 0:
                continue
            memory.seek(start + found - HEADER)
            words = list(struct.unpack("4I", memory.read(HEADER)))
            if words[2] >> 16 != DATA or words[3] != len(MARK):
                sys.exit(f"no header: {words}")
            memory.seek(start + found - HEADER + 4 * word)
            memory.write(struct.pack("I", words[word] & kept | added))
            return
    sys.exit("the message is nowhere")


connector, acceptor = pair()
bystanders = pair()
exchange(connector, acceptor)
exchange(*bystanders)
connector.sendall(MARK)
change()
try:
    sys.exit(f"received {acceptor.recv(100)}")
except ConnectionResetError:
    print("reset", acceptor.fileno(), flush=True)
exchange(*bystanders)
print("ok", flush=True)
sys.stdin.read()
