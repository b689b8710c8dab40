"""interposed.py [libc]: exchanges over a connection by Python's own calls, or by libc's as they are looked up there too; then
prints "ok CALLS", CALLS being how often the preloaded interposer was called, and waits for the end of its input."""
import ctypes
import socket
import sys

from warm_up import warm_up_both

listener = socket.create_server(("127.0.0.1", 0))
connector = socket.create_connection(listener.getsockname())
acceptor, _ = listener.accept()
listener.close()
warm_up_both(connector, acceptor)
libc = ctypes.CDLL("libc.so.6") if "libc" in sys.argv else None
received = ctypes.create_string_buffer(8)
for number in range(100):
    word = b"%8d" % number
    connector.sendall(word)
    if acceptor.recv(8, socket.MSG_WAITALL) != word:
        sys.exit("other bytes than were sent")
    if not libc:
        continue
    if libc.send(acceptor.fileno(), word, 8, 0) != 8:
        sys.exit("libc's send failed")
    if libc.recv(connector.fileno(), received, 8, socket.MSG_WAITALL) != 8 or received.raw != word:
        sys.exit("other bytes than libc sent")
print("ok", ctypes.CDLL(None).interposer_calls(), flush=True)
sys.stdin.read()
