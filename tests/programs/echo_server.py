"""Echo servers in the ways Python programs write them: echo_server.py KIND [HOST].

Prints "port N" once it listens, sends back what it receives until the client's end of stream, and
runs until it is killed.
"""
import asyncio
import selectors
import socket
import socketserver
import sys
import threading

CHUNK = 65536


def announce(listener):
    print("port", listener.getsockname()[1], flush=True)


def listen(host):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, 0), family=family, backlog=128)


def echo_until_end(connection):
    with connection:
        while data := connection.recv(CHUNK):
            connection.sendall(data)


def blocking(host):
    listener = listen(host)
    announce(listener)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=echo_until_end, args=(connection,), daemon=True).start()


def asynchronous(host):
    async def serve_one(reader, writer):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def serve():
        server = await asyncio.start_server(serve_one, host, 0)
        announce(server.sockets[0])
        await server.serve_forever()

    asyncio.run(serve())


def selecting(selector, host):
    """One thread, non-blocking sockets; what cannot be sent yet is kept and stops the reading."""
    listener = listen(host)
    listener.setblocking(False)
    selector.register(listener, selectors.EVENT_READ)
    announce(listener)
    unsent = {}
    while True:
        for key, events in selector.select():
            connection = key.fileobj
            if connection is listener:
                accepted, _ = listener.accept()
                accepted.setblocking(False)
                unsent[accepted] = b""
                selector.register(accepted, selectors.EVENT_READ)
                continue
            if events & selectors.EVENT_READ:
                data = connection.recv(CHUNK)
                if not data:
                    selector.unregister(connection)
                    del unsent[connection]
                    connection.close()
                    continue
                unsent[connection] = data
            try:
                sent = connection.send(unsent[connection])
            except BlockingIOError:
                sent = 0
            unsent[connection] = unsent[connection][sent:]
            wanted = selectors.EVENT_WRITE if unsent[connection] else selectors.EVENT_READ
            selector.modify(connection, wanted)


class EchoHandler(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(CHUNK):
            self.request.sendall(data)


class ThreadingServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True
    request_queue_size = 128


class ForkingServer(socketserver.ForkingMixIn, socketserver.TCPServer):
    request_queue_size = 128


def class_based(server_class, host):
    with server_class((host, 0), EchoHandler) as server:
        announce(server.socket)
        server.serve_forever()


KINDS = {
    "blocking": blocking,
    "asyncio": asynchronous,
    "epoll": lambda host: selecting(selectors.EpollSelector(), host),
    "poll": lambda host: selecting(selectors.PollSelector(), host),
    "select": lambda host: selecting(selectors.SelectSelector(), host),
    "threading": lambda host: class_based(ThreadingServer, host),
    "forking": lambda host: class_based(ForkingServer, host),
}

if __name__ == "__main__":
    KINDS[sys.argv[1]](sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1")
