"""Two processes that send on one connection in turns.

Prints "took PID" with the process that sent last; then takes as many turns again for each line of
standard input, and ends with it. With "reading", a thread waits for what is sent; without, it is
received after the turns.
"""
import os
import socket
import sys
import threading

from warm_up import warm_up_both

TURNS = 10


def check(receiver):
    expected = b"parentchild" * TURNS
    received = b""
    while len(received) < len(expected):
        received += receiver.recv(1024)
    if received != expected:
        os._exit(1)


def main():
    listener = socket.create_server(("127.0.0.1", 0))
    sender = socket.create_connection(listener.getsockname())
    receiver, _ = listener.accept()
    warm_up_both(sender, receiver)
    to_child, of_child = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(to_child[1])
        while os.read(to_child[0], 1):
            sender.sendall(b"child")
            os.write(of_child[1], b".")
        os._exit(0)
    while True:
        reader = threading.Thread(target=check, args=(receiver,))
        if "reading" in sys.argv:
            reader.start()
        for _ in range(TURNS):
            sender.sendall(b"parent")
            os.write(to_child[1], b".")
            os.read(of_child[0], 1)
        if "reading" in sys.argv:
            reader.join()
        else:
            check(receiver)
        print("took", child, flush=True)
        if not sys.stdin.readline():
            break
    os.close(to_child[1])
    os.waitpid(child, 0)


if __name__ == "__main__":
    main()
