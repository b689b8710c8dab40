"""Both ends of several connections, used as the lines of its input say: exchanges.py COUNT.

Prints "ends" with the descriptors of the connecting and the accepting end of each, then "done N" after the N-th line:

exchange TIMES REQUEST ANSWER   on every connection, requests and answers of so many bytes
send N                          N messages of a byte on the first, which nobody receives
receive N                       receives them
asleep                          a byte to a thread that waits for it
half-close                      the connecting end of the first ends its direction, and the other sees it
close                           the other does, too
"""
import signal
import socket
import sys
import threading
import time

from warm_up import warm_up_both

# Whoever waits for a line that never comes sees the end instead.
signal.alarm(120)
listener = socket.create_server(("127.0.0.1", 0))
pairs = []
for _ in range(int(sys.argv[1])):
    connector = socket.create_connection(listener.getsockname())
    pairs.append((connector, listener.accept()[0]))
    warm_up_both(*pairs[-1])
first, other = pairs[0]


def take(end, size):
    while size > 0:
        size -= len(end.recv(size)) or sys.exit("an early end")


def exchange(times, request, answer):
    for connector, acceptor in pairs:
        for _ in range(times):
            connector.sendall(b"q" * request)
            take(acceptor, request)
            acceptor.sendall(b"a" * answer)
            take(connector, answer)


def asleep():
    waiting = threading.Thread(target=take, args=(other, 1))
    waiting.start()
    time.sleep(0.02)
    first.sendall(b".")
    waiting.join()


def end(one, peer):
    one.shutdown(socket.SHUT_WR)
    if peer.recv(1) != b"":
        sys.exit("bytes after the end")


print("ends", *(end.fileno() for pair in pairs for end in pair), flush=True)
for number, line in enumerate(sys.stdin, 1):
    what, *numbers = line.split()
    numbers = [int(n) for n in numbers]
    if what == "exchange":
        exchange(*numbers)
    elif what == "send":
        for _ in range(numbers[0]):
            first.sendall(b".")
    elif what == "receive":
        take(other, numbers[0])
    elif what == "asleep":
        asleep()
    elif what == "half-close":
        end(first, other)
    elif what == "close":
        end(other, first)
    else:
        sys.exit(f"what is {line!r}?")
    print("done", number, flush=True)
