"""Two processes that send on one connection, of which one may be stopped in the middle of it.

Prints "ready", then "done N" after the N-th line of input: "stop" stops the process that streams and has the other
send a byte; "go on" continues it, and waits until that byte is sent.
"""
import os
import signal
import socket
import sys
import threading

from warm_up import warm_up_both

# Whoever waits for a line that never comes sees the end instead.
signal.alarm(120)
listener = socket.create_server(("127.0.0.1", 0))
sender = socket.create_connection(listener.getsockname())
receiver, _ = listener.accept()
warm_up_both(sender, receiver)
to_other, of_other = os.pipe(), os.pipe()

streaming = os.fork()
if streaming == 0:
    signal.alarm(120)
    os.close(to_other[1])
    receiver.close()
    try:
        while True:
            sender.sendall(bytes(1 << 20))
    except OSError:
        os._exit(0)
other = os.fork()
if other == 0:
    os.close(to_other[1])
    receiver.close()
    while os.read(to_other[0], 1):
        sender.sendall(b".")
        os.write(of_other[1], b".")
    os._exit(0)


def receive():
    while receiver.recv(1 << 20):
        pass


threading.Thread(target=receive, daemon=True).start()
print("ready", flush=True)
for number, line in enumerate(sys.stdin, 1):
    if line == "stop\n":
        os.kill(streaming, signal.SIGSTOP)
        os.waitpid(streaming, os.WUNTRACED)
        os.write(to_other[1], b".")
    else:
        os.kill(streaming, signal.SIGCONT)
        os.read(of_other[0], 1)
    print("done", number, flush=True)
os.kill(streaming, signal.SIGKILL)
os.close(to_other[1])
os.waitpid(streaming, 0)
os.waitpid(other, 0)
os._exit(0)
