"""Keys of a redis whose values say which they are: keys.py write|check PORT JOURNAL WRITER [SECONDS CONNECTIONS PIPELINE SEED].

`write` sets and reads the keys of one writer for a time, and notes in the journal, a file that outlives it, which generation of each key it
sends and which was acknowledged. `check` reads the keys of as many writers as WRITER says, each of which has a generation between the two, whole.
Exit status 3: a value is wrong; 1: the connection failed.
"""
import mmap
import pathlib
import random
import socket
import sys
import time
import zlib

KEYS = 64
LARGEST = 20_000
PATTERN = bytes(i % 251 for i in range(LARGEST + 251))
TIMEOUT = 60


class Journal:
    """Two numbers of a key: the generation that was sent last, and the last that was acknowledged."""

    def __init__(self, path, writers):
        size = writers * KEYS * 16
        with pathlib.Path(path).open("r+b") as file:
            self.map = mmap.mmap(file.fileno(), size)
        self.numbers = memoryview(self.map).cast("Q")

    def sent(self, key):
        return self.numbers[2 * key]

    def acknowledged(self, key):
        return self.numbers[2 * key + 1]

    def send(self, key, generation):
        self.numbers[2 * key] = generation

    def acknowledge(self, key, generation):
        self.numbers[2 * key + 1] = generation


def value(key, generation):
    """Mostly small ones; one in sixteen is as large as some messages together."""
    mixed = zlib.crc32(f"{key} {generation}".encode())
    size = mixed % (LARGEST if mixed >> 28 == 0 else 600)
    body = PATTERN[mixed % 251 :][:size]
    return b"%d %d %d " % (key, generation, zlib.crc32(body)) + body


def wrong(text):
    print(f"wrong: {text}", flush=True)
    sys.exit(3)


class Redis:
    """One connection."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.reader = self.socket.makefile("rb")

    def send(self, commands):
        parts = []
        for words in commands:
            parts.append(b"*%d\r\n" % len(words))
            parts += [b"$%d\r\n%s\r\n" % (len(word), word) for word in words]
        self.socket.sendall(b"".join(parts))

    def line(self):
        line = self.reader.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionResetError("end of stream within an answer")
        if line.startswith(b"-LOADING"):
            raise ConnectionResetError("redis is loading")
        return line[:-2]

    def answer(self):
        line = self.line()
        if not line.startswith(b"$"):
            return line
        size = int(line[1:])
        if size < 0:
            return None
        data = self.reader.read(size + 2)
        if len(data) < size + 2:
            raise ConnectionResetError("end of stream within a value")
        if not data.endswith(b"\r\n"):
            wrong(f"a value of {size} bytes does not end as it must: {data[-20:]!r}")
        return data[:-2]

    def close(self):
        self.reader.close()
        self.socket.close()


def judge(key, got, least, most):
    """Whether a value is that of a generation from `least` to `most`."""
    if got is None:
        if least:
            wrong(f"key {key} is gone; generation {least} was acknowledged")
        return
    try:
        generation = int(got.split(b" ", 2)[1])
    except (IndexError, ValueError):
        return wrong(f"key {key} has no generation: {got[:60]!r}")
    if not least <= generation <= most:
        wrong(f"key {key} has generation {generation}, not one from {least} to {most}")
    if got != value(key, generation):
        wanted = value(key, generation)
        at = next((i for i, (a, b) in enumerate(zip(got, wanted)) if a != b), min(len(got), len(wanted)))
        wrong(f"key {key}, generation {generation}: {len(got)} bytes instead of {len(wanted)}, other ones from {at} on")


class Writer:
    """The keys of one writer, by some connections: each has a pipeline under way at once."""

    def __init__(self, port, journal, number, connections, pipeline, seed):
        self.journal, self.random, self.pipeline = journal, random.Random(seed), pipeline
        self.keys = range(number * KEYS, (number + 1) * KEYS)
        self.connections = [Redis(port) for _ in range(connections)]

    def step(self):
        """Sets or reads keys of its own, no key on two connections at once; how many."""
        count = min(self.pipeline, KEYS // len(self.connections))
        chosen = self.random.sample(self.keys, count * len(self.connections))
        under_way = []
        for number, connection in enumerate(self.connections):
            asked, commands = [], []
            for key in chosen[number * count :][:count]:
                name = b"soak:%d" % key
                if self.random.random() < 0.5:
                    generation = self.journal.sent(key) + 1
                    self.journal.send(key, generation)
                    asked.append((key, generation))
                    commands.append((b"SET", name, value(key, generation)))
                else:
                    asked.append((key, None))
                    commands.append((b"GET", name))
            connection.send(commands)
            under_way.append(asked)
        for connection, asked in zip(self.connections, under_way):
            for key, generation in asked:
                answer = connection.answer()
                if generation is None:
                    judge(key, answer, self.journal.acknowledged(key), self.journal.sent(key))
                elif answer == b"+OK":
                    self.journal.acknowledge(key, generation)
                else:
                    wrong(f"SET of key {key} was answered {answer!r}")
        return len(chosen)

    def close(self):
        for connection in self.connections:
            connection.close()


def write(port, path, number, seconds, connections, pipeline, seed):
    writer = Writer(port, Journal(path, number + 1), number, connections, pipeline, seed)
    end, done = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        done += writer.step()
    writer.close()
    print("ok", done)


def check(port, path, writers):
    """While writers write: what is acknowledged before the value is read is the least, what is sent after it the most."""
    journal, redis = Journal(path, writers), Redis(port)
    there = 0
    for key in range(writers * KEYS):
        least = journal.acknowledged(key)
        redis.send([(b"GET", b"soak:%d" % key)])
        got = redis.answer()
        judge(key, got, least, journal.sent(key))
        there += got is not None
    redis.close()
    print("ok", there)


if __name__ == "__main__":
    what, numbers = sys.argv[1], [sys.argv[2], *sys.argv[4:]]
    port, writer, *rest = map(int, numbers)
    try:
        if what == "write":
            write(port, sys.argv[3], writer, *rest)
        else:
            check(port, sys.argv[3], writer)
    except (OSError, EOFError) as error:
        sys.exit(f"connection: {error}")
