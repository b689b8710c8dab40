"""The load of a soak: so many clients at a time, of kinds that change, each judged when it ends."""

import collections
import mmap
import random
import re
import time

import clients
from processes import Failure
from programs.keys import KEYS

# Writers of keys, each with keys of its own; and how long the keys of one that was killed rest, since what it sent may still come.
WRITERS = 6
REST = 5
# Seconds with so many clients.
SLOT = 12
NATIVE_SHARE = 0.2
AT_ONCE_SHARE = 0.25


class Load:
    def __init__(self, stage, servers, transport, seed, content):
        self.stage, self.servers, self.transport, self.seed, self.content = stage, servers, transport, seed, content
        self.running, self.started, self.ended = [], 0, collections.Counter()
        self.writers = {}
        self.transactions = collections.Counter()
        self.line = stage.folder / "line"
        self.line.write_text("\n")
        self.rows = clients.write_rows(stage.folder)
        self.kinds = [kind for kind in clients.CLIENTS if any(one.kind == kind.server for one in servers)]

    # What kinds of clients ask for.

    def journal(self, server):
        """The file of a redis server's writers."""
        path = self.stage.folder / f"{server.name}.journal"
        if not path.exists():
            with path.open("wb") as file:
                file.truncate(-(-WRITERS * KEYS * 16 // mmap.PAGESIZE) * mmap.PAGESIZE)
        return path

    def take_writer(self, server):
        """A writer of this server that nobody is, or None."""
        now = time.monotonic()
        free = self.writers.setdefault(server.name, dict.fromkeys(range(WRITERS), 0.0))
        number = next((one for one, since in free.items() if since <= now), None)
        if number is not None:
            free[number] = float("inf")
        return number

    def give_writer(self, server, number):
        self.writers[server.name][number] = time.monotonic() + REST

    def count_transactions(self, server):
        def over(text):
            if found := re.search(r"transactions actually processed: (\d+)", text):
                self.transactions[server.name] += int(found.group(1))

        return over

    # What runs.

    def level(self, at):
        """How many clients there are at a time: the same for the same seed."""
        return random.Random(f"{self.seed} level {int(at // SLOT)}").choice([0, 1, 2, 2, 3, 4, 6])

    def start_one(self):
        """The next client: its kind, its server and how it runs follow from the seed and its number."""
        self.started += 1
        chance = random.Random(f"{self.seed} client {self.started}")
        kind = chance.choice(self.kinds)
        server = chance.choice([one for one in self.servers if one.kind == kind.server])
        if kind.through and not server.behind:
            return
        made = kind.command(self, server, chance)
        if made is None:
            return
        command, over = made
        transport = "tcp" if chance.random() < NATIVE_SHARE else self.transport
        extra = {"SANSHIM_MOVE_AFTER": "0"} if chance.random() < AT_ONCE_SHARE else {}
        extra["SANSHIM_LOG_FILE"] = str(self.stage.folder / "logs" / "clients.log")
        # Some wait for a line before they go on.
        with self.line.open() as line:
            process = self.stage.start(transport, [str(word) for word in command], stdin=line, **extra)
        meant = [server, server.behind] if kind.through else [server]
        self.running.append(clients.Client(process, kind.name, meant, time.monotonic(), over, kind.strict))

    def reap(self):
        """Judges those that ended."""
        for client in self.running[:]:
            if self.stage.ended(client.process):
                self.running.remove(client)
                text = self.stage.output(client.process)
                self.stage.end(client.process)
                if client.over:
                    client.over(text)
                clients.judge(client, client.process.returncode, text)
                self.ended[client.kind] += 1
            elif time.monotonic() - client.began > clients.HANG:
                raise Failure(f"{client.kind} hangs: {client.process.line}\n{self.stage.output(client.process)[-4000:]}")

    def step(self, level):
        self.reap()
        for server in self.servers:
            server.check()
        if len(self.running) < level:
            self.start_one()

    def finish(self):
        """Waits for all of them."""
        while self.running:
            self.reap()
            self.stage.pause(0.05)
