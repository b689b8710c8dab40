"""A fork child has a connection to its parent that was never used. Prints "ends" with the parent's descriptor and the child's number."""
import os
import signal
import socket
import sys

# Whoever waits for a line that never comes sees the end instead.
signal.alarm(120)
listener = socket.create_server(("127.0.0.1", 0))
near = socket.create_connection(listener.getsockname())
far, _ = listener.accept()
child = os.fork()
if child == 0:
    near.close()
    listener.close()
    # Until the other end closes it.
    far.recv(1)
    os._exit(0)
far.close()
print("ends", near.fileno(), child, flush=True)
sys.stdin.read()
near.close()
os.waitpid(child, 0)
