"""A memcached client in the text protocol: memcached_client.py PORT.

Stores and reads values small and large, counts, reads many keys at once, pipelines, uses several
connections from threads, prints "hold", waits for a line on stdin with them open, checks everything
again and prints "ok".
"""
import socket
import sys
import threading

PORT = int(sys.argv[1])
SIZES = [0, 1, 100, 1500, 4096, 65536, 1_000_000, 4_000_000]


def value(size, seed):
    block = bytes((seed * 13 + i * 17) % 253 for i in range(1009))
    return (block * (size // len(block) + 1))[:size]


class Client:
    def __init__(self):
        self.socket = socket.create_connection(("127.0.0.1", PORT), timeout=30)
        self.file = self.socket.makefile("rb")

    def ask(self, request, wanted):
        self.socket.sendall(request)
        self.expect(wanted)

    def expect(self, wanted):
        line = self.file.readline()
        if line != wanted:
            sys.exit(f"answer {line[:80]!r} where {wanted!r} was due")

    def store(self, key, data):
        self.ask(b"set %s 0 0 %d\r\n%s\r\n" % (key, len(data), data), b"STORED\r\n")

    def fetch(self, *keys):
        self.socket.sendall(b"get %s\r\n" % b" ".join(keys))
        found = {}
        while (line := self.file.readline()) != b"END\r\n":
            _, key, _, size = line.split()
            found[key] = self.file.read(int(size))
            self.expect_rest()
        return found

    def expect_rest(self):
        if self.file.read(2) != b"\r\n":
            sys.exit("a value does not end where its size says")


def check(found, wanted):
    for key, data in wanted.items():
        if found.get(key) != data:
            sys.exit(f"{key!r}: {len(found.get(key, b''))} bytes instead of {len(data)}, or other ones")


def work(client, seed, failures):
    try:
        values = {b"k%d-%d" % (seed, size): value(size, seed) for size in SIZES}
        for key, data in values.items():
            client.store(key, data)
        check(client.fetch(*values), values)
        for key, data in values.items():
            check(client.fetch(key), {key: data})
        counter = b"n%d" % seed
        client.store(counter, b"0")
        for i in range(1, 201):
            client.ask(b"incr %s 1\r\n" % counter, b"%d\r\n" % i)
        client.socket.sendall(b"".join(b"incr %s 1\r\n" % counter for _ in range(2000)))
        for i in range(201, 2201):
            client.expect(b"%d\r\n" % i)
        client.ask(b"delete %s\r\n" % counter, b"DELETED\r\n")
    except (Exception, SystemExit) as failure:
        failures.append(failure)


clients = [Client() for _ in range(4)]
for phase in range(2):
    failures = []
    threads = [
        threading.Thread(target=work, args=(client, seed, failures))
        for seed, client in enumerate(clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        sys.exit(f"{failures[0]!r}")
    if phase == 0:
        print("hold", flush=True)
        sys.stdin.readline()
for client in clients:
    client.socket.sendall(b"quit\r\n")
    if client.file.read() != b"":
        sys.exit("bytes after quit")
print("ok")
