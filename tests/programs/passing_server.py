"""An echo server whose accepting process passes each connection to one of two workers.

Prints "port N" once it listens, and runs until it is killed; its workers end with it.
"""
import multiprocessing
import os
import signal
import socket
import threading
from multiprocessing.reduction import recv_handle, send_handle

CHUNK = 65536
WORKERS = 2


def echo_until_end(connection):
    with connection:
        while data := connection.recv(CHUNK):
            connection.sendall(data)


def work(pipe):
    while True:
        try:
            connection = socket.socket(fileno=recv_handle(pipe))
        except EOFError:
            return
        threading.Thread(target=echo_until_end, args=(connection,), daemon=True).start()


def main():
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    workers = []
    # Fresh programs, which know of the connections only what the messages bring.
    context = multiprocessing.get_context("spawn")
    for _ in range(WORKERS):
        ours, theirs = context.Pipe()
        worker = context.Process(target=work, args=(theirs,), daemon=True)
        worker.start()
        theirs.close()
        workers.append((ours, worker.pid))
    print("port", listener.getsockname()[1], flush=True)

    def end(*_):
        for _, pid in workers:
            os.kill(pid, signal.SIGKILL)
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    turn = 0
    while True:
        connection, _ = listener.accept()
        pipe, pid = workers[turn % WORKERS]
        with connection:
            send_handle(pipe, connection.fileno(), pid)
        turn += 1


if __name__ == "__main__":
    main()
