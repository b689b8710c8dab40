"""An echo server whose accepting process echoes the first messages of each connection, so that it is on the SAN, and
passes it to another then: to one of two workers (argument "workers"), or to a new process that the fork server makes
("forkserver").

Prints "port N" once it listens, and runs until it is killed; its workers end with it.
"""
import contextlib
import itertools
import multiprocessing
import os
import signal
import socket
import sys
import threading
from multiprocessing.reduction import recv_handle, send_handle

CHUNK = 65536
WORKERS = 2
# What the first eight messages of an echo client have together.
FIRST = 1 + 2 + 7 + 64 + 1000 + 1519 + 1520 + 1521


def echo_until_end(connection):
    with connection:
        while data := connection.recv(CHUNK):
            connection.sendall(data)


def work(pipe):
    # One without meaning: from then on the sender knows that somebody waits for others.
    os.close(recv_handle(pipe))
    pipe.send("ready")
    while True:
        try:
            connection = socket.socket(fileno=recv_handle(pipe))
        except EOFError:
            return
        threading.Thread(target=echo_until_end, args=(connection,), daemon=True).start()


def run(listener, hand_over, pids):
    print("port", listener.getsockname()[1], flush=True)

    def end(*_):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    lock, turns = threading.Lock(), itertools.count()

    def serve(connection):
        with connection:
            left = FIRST
            while left:
                data = connection.recv(left)
                connection.sendall(data)
                left -= len(data)
            with lock:
                hand_over(connection, next(turns))

    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection,), daemon=True).start()


def to_workers(listener):
    workers = []
    # Fresh programs, which know of the connections only what the messages bring.
    context = multiprocessing.get_context("spawn")
    for _ in range(WORKERS):
        ours, theirs = context.Pipe()
        worker = context.Process(target=work, args=(theirs,), daemon=True)
        worker.start()
        theirs.close()
        send_handle(ours, sys.stderr.fileno(), worker.pid)
        assert ours.recv() == "ready"
        workers.append((ours, worker.pid))

    def hand_over(connection, turn):
        pipe, pid = workers[turn % WORKERS]
        send_handle(pipe, connection.fileno(), pid)

    run(listener, hand_over, [pid for _, pid in workers])


def to_fork_server(listener):
    context = multiprocessing.get_context("forkserver")
    # The fork server itself takes its time to start.
    first = context.Process(target=os.getpid)
    first.start()
    first.join()
    pids = []

    def hand_over(connection, _):
        process = context.Process(target=echo_until_end, args=(connection,), daemon=True)
        process.start()
        pids.append(process.pid)

    run(listener, hand_over, pids)


def main():
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    {"workers": to_workers, "forkserver": to_fork_server}[sys.argv[1]](listener)


if __name__ == "__main__":
    main()
