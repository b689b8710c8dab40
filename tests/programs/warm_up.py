"""Has a new connection come to the SAN before it is used: both ends have to pass by some times."""
import socket

MEETINGS = 12


def warm_up(end, first):
    """A byte each way, so often that both ends have passed by whatever it takes; one end sends first."""
    for _ in range(MEETINGS):
        if first:
            end.sendall(b"w")
        if end.recv(1) != b"w":
            raise SystemExit("other bytes than were sent")
        if not first:
            end.sendall(b"w")


def warm_up_both(one, other):
    """The same by one thread that has both ends."""
    for _ in range(MEETINGS):
        for sender, receiver in ((one, other), (other, one)):
            sender.sendall(b"w")
            if receiver.recv(1) != b"w":
                raise SystemExit("other bytes than were sent")
