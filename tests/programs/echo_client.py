"""Echo clients in the ways Python programs write them: echo_client.py KIND PORT CONNECTIONS [HOST].

Sends messages of many sizes and checks each answer, prints "hold" and waits for a line on stdin
with its connections open, then streams both ways at once, ends its side, reads to the end of the
stream and prints "ok" with the number of bytes that came back on all connections.
"""
import asyncio
import selectors
import socket
import sys
import threading

SIZES = [1, 2, 7, 64, 1000, 1519, 1520, 1521, 1536, 4096, 65535, 65536, 300000]
STREAM = 3_000_000
ROUNDS = 300
CHUNK = 65536


def payload(size, seed):
    block = bytes((seed * 7 + i * 31) % 251 for i in range(4093))
    return (block * (size // len(block) + 1))[:size]


def check(got, wanted, what):
    if got != wanted:
        at = next((i for i, (a, b) in enumerate(zip(got, wanted)) if a != b), None)
        sys.exit(f"{what}: {len(got)} of {len(wanted)} bytes, first difference at {at}")


def hold():
    print("hold", flush=True)
    sys.stdin.readline()


def receive_exactly(connection, size):
    data = bytearray()
    while len(data) < size:
        part = connection.recv(min(CHUNK, size - len(data)))
        if not part:
            sys.exit(f"end of stream after {len(data)} of {size} bytes")
        data += part
    return bytes(data)


def receive_all(connection):
    data = bytearray()
    while part := connection.recv(CHUNK):
        data += part
    return bytes(data)


def threads(port, count, host, timeout):
    """Blocking sockets, or with a time-out: then Python makes them non-blocking and polls."""
    connections = [socket.create_connection((host, port), timeout=timeout) for _ in range(count)]
    for seed, connection in enumerate(connections):
        # As long as a forking server's parent has the connection as well, it stays on TCP.
        for _ in range(ROUNDS):
            connection.sendall(b"x")
            check(receive_exactly(connection, 1), b"x", "first bytes")
        for size in SIZES:
            message = payload(size, seed)
            connection.sendall(message)
            check(receive_exactly(connection, size), message, f"message of {size}")
    hold()
    received = [None] * count

    def receive(i):
        received[i] = receive_all(connections[i])

    def send(i):
        connections[i].sendall(payload(STREAM, i))
        connections[i].shutdown(socket.SHUT_WR)

    workers = [
        threading.Thread(target=work, args=(i,)) for i in range(count) for work in (receive, send)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for i, data in enumerate(received):
        check(data or b"", payload(STREAM, i), "stream")
    for connection in connections:
        connection.close()


def asynchronous(port, count, host):
    async def messages(seed):
        reader, writer = await asyncio.open_connection(host, port)
        for size in SIZES:
            message = payload(size, seed)
            writer.write(message)
            await writer.drain()
            check(await reader.readexactly(size), message, f"message of {size}")
        return reader, writer

    async def stream(seed, reader, writer):
        async def send():
            writer.write(payload(STREAM, seed))
            writer.write_eof()
            await writer.drain()

        _, data = await asyncio.gather(send(), reader.read(-1))
        check(data, payload(STREAM, seed), "stream")
        writer.close()
        await writer.wait_closed()

    async def run():
        streams = await asyncio.gather(*(messages(seed) for seed in range(count)))
        await asyncio.get_running_loop().run_in_executor(None, hold)
        await asyncio.gather(*(stream(i, *pair) for i, pair in enumerate(streams)))

    asyncio.run(run())


class Exchange:
    """What one connection of the selectors client still has to send and has received."""

    def __init__(self, seed):
        self.seed, self.unsent, self.received = seed, b"", bytearray()


def selecting(selector, port, count, host):
    both = selectors.EVENT_READ | selectors.EVENT_WRITE
    for seed in range(count):
        connection = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        connection.setblocking(False)
        connection.connect_ex((host, port))
        selector.register(connection, selectors.EVENT_WRITE, Exchange(seed))

    def drive(size, end):
        for key in list(selector.get_map().values()):
            key.data.unsent, key.data.received = payload(size, key.data.seed), bytearray()
            selector.modify(key.fileobj, both, key.data)
        waiting = count
        while waiting:
            for key, events in selector.select():
                waiting -= step(key, events, size, end)

    def step(key, events, size, end):
        connection, exchange = key.fileobj, key.data
        try:
            if events & selectors.EVENT_WRITE and exchange.unsent:
                exchange.unsent = exchange.unsent[connection.send(exchange.unsent[:CHUNK]) :]
                if not exchange.unsent:
                    selector.modify(connection, selectors.EVENT_READ, exchange)
                    if end:
                        connection.shutdown(socket.SHUT_WR)
            if not events & selectors.EVENT_READ:
                return 0
            part = connection.recv(CHUNK)
        except BlockingIOError:
            return 0
        exchange.received += part
        if part and (end or len(exchange.received) < size):
            return 0
        check(bytes(exchange.received), payload(size, exchange.seed), f"message of {size}")
        if not part:
            selector.unregister(connection)
            connection.close()
        return 1

    for size in SIZES:
        drive(size, end=False)
    hold()
    drive(STREAM, end=True)


KINDS = {
    "blocking": lambda *where: threads(*where, timeout=None),
    "timeout": lambda *where: threads(*where, timeout=30),
    "asyncio": asynchronous,
    "epoll": lambda *where: selecting(selectors.EpollSelector(), *where),
    "poll": lambda *where: selecting(selectors.PollSelector(), *where),
    "select": lambda *where: selecting(selectors.SelectSelector(), *where),
}

if __name__ == "__main__":
    kind, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    KINDS[kind](port, count, sys.argv[4] if len(sys.argv) > 4 else "127.0.0.1")
    print("ok", count * (sum(SIZES) + STREAM))
