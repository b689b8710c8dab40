"""The servers of a soak: how each is started again on its port, reloaded, and which of its processes may be killed."""

import os
import pathlib
import signal
import time

import cpu
import nginx_server
import postgres_server
import redis_server
from processes import HANG, Failure

PROGRAMS = pathlib.Path(__file__).parent.parent.parent / "tests" / "programs"
PYTHON = "/usr/bin/python3"
FILES = {"index.html": 600, "1": 1, "5k": 5_000, "100k": 100_000, "2m": 2_000_000}


def content(stage):
    """The folder that nginx and the Python server serve."""
    folder = stage.folder / "content"
    folder.mkdir(exist_ok=True)
    for name, size in FILES.items():
        (folder / name).write_bytes(bytes((i * 31 + size) % 253 for i in range(4093)) * (size // 4093) + bytes(size % 4093))
    return folder


class Server:
    """One program on one port. `process` is the one that runs now; `lives` says whether nobody ends it."""

    kind = ""
    ends_by = signal.SIGTERM
    # Its processes that have connections and live while nobody is connected.
    serving = 1

    def __init__(self, stage, transport, lives, log):
        self.stage, self.transport, self.lives, self.log = stage, transport, lives, log
        self.name = self.kind if lives else f"{self.kind}-again"
        self.endpoint = stage.endpoint("tcp")
        self.disturbances = []
        self.process = None

    @property
    def port(self):
        return self.endpoint.port

    def start(self):
        self.stage.environment["SANSHIM_LOG_FILE"] = str(self.log(self.name))
        self.launch()

    def launch(self):
        """Starts it, and returns when it serves."""
        self.process = self.stage.start(self.transport, [str(word) for word in self.command()])
        self.stage.wait_listening(self.process, self.endpoint)

    def command(self):
        raise NotImplementedError

    def reload(self):
        """What the program offers to do on request while it serves; None if it disturbs nobody."""

    def workers(self):
        """Its processes of which one may be killed while the program goes on, or none."""
        return []

    def settle(self):
        """Has it give back memory that it only keeps for later."""

    def family(self):
        return cpu.family(self.process.pid)

    def check(self):
        """Fails if it ended by itself."""
        if self.stage.ended(self.process):
            raise Failure(f"{self.name} ended by itself:\n{self.stage.output(self.process)[-4000:]}")

    def restart(self):
        with Disturbed(self):
            os.kill(self.process.pid, self.ends_by)
            deadline = time.monotonic() + HANG
            while not self.stage.ended(self.process):
                if time.monotonic() > deadline:
                    raise Failure(f"{self.name} does not end: it was asked {HANG} s ago")
                self.stage.pause(0.01)
            self.stage.end(self.process)
            self.start()

    def crash(self):
        with Disturbed(self):
            for pid in self.family():
                kill(pid)
            self.stage.end(self.process)
            self.start()

    def kill_worker(self, which):
        workers = self.workers()
        if not workers:
            return False
        with Disturbed(self):
            kill(workers[which % len(workers)])
            self.recover()
        return True

    def recover(self):
        """Waits until it serves again after a worker's death."""

    def disturbed(self, begin, end, strict=False):
        """Whether a client that ran from `begin` to `end` may have lost its connection; a strict one loses none by a reload."""
        meant = [one for one in self.disturbances if not (strict and one.reload)]
        return any(begin <= one.last and one.first <= end for one in meant)


class Disturbed:
    """A time during which a server's connections may fail: a moment more, for what is under way."""

    def __init__(self, server, reload=False):
        self.server, self.reload = server, reload
        self.first, self.last = time.monotonic() - 0.5, float("inf")

    def __enter__(self):
        self.server.disturbances.append(self)

    def __exit__(self, *_):
        self.last = time.monotonic() + 1


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


class Redis(Server):
    kind = "redis"

    def launch(self):
        folder = self.stage.folder / self.name
        folder.mkdir(exist_ok=True)
        # The one that is killed writes what it acknowledges before it does.
        keeps = [] if self.lives else ["--appendonly", "yes", "--appendfsync", "no", "--auto-aof-rewrite-min-size", "8mb"]
        self.process, _ = redis_server.start(
            self.stage, self.transport, "--dir", str(folder), *keeps, endpoint=self.endpoint
        )
        self.recover()

    def recover(self):
        deadline = time.monotonic() + HANG
        while self.ask("PING") != "PONG":
            self.check()
            if time.monotonic() > deadline:
                raise Failure(f"{self.name} does not answer a PING")
            self.stage.pause(0.05)

    def ask(self, *words):
        client = self.stage.start("tcp", ["redis-cli", "-p", str(self.port), *words])
        try:
            return self.stage.finish(client).strip()
        except Failure:
            return ""

    def reload(self):
        """A child of it writes the data to a file."""
        self.ask("BGSAVE" if self.lives else "BGREWRITEAOF")

    def settle(self):
        self.ask("MEMORY", "PURGE")


class Nginx(Server):
    """Two workers, and a second port, at which it passes all to the Python server."""

    kind = "nginx"
    serving = 2

    def __init__(self, *where, behind=None):
        super().__init__(*where)
        self.behind, self.passing = behind, self.stage.endpoint("tcp")

    def launch(self):
        http = ""
        if self.behind:
            # A connection that it keeps to the server behind it ends before a quiet time is measured.
            http = (
                f"upstream behind {{ server {self.behind.endpoint.address}; keepalive 16; keepalive_timeout 4s; }} client_max_body_size 10m;"
                f"server {{ listen {self.passing.address}; location / {{ proxy_pass http://behind; proxy_http_version 1.1;"
                ' proxy_set_header Connection ""; } }'
            )
        self.process, _ = nginx_server.start(self.stage, self.transport, 2, self.name, http=http, at=self.endpoint)
        if self.behind:
            self.stage.wait_listening(self.process, self.passing)

    def workers(self):
        return self.family()[1:]

    def reload(self):
        """New workers; the old ones end when their connections do, and those that wait for a request do at once."""
        with Disturbed(self, reload=True):
            os.kill(self.process.pid, signal.SIGHUP)
            self.stage.pause(1)

    def recover(self):
        deadline = time.monotonic() + HANG
        while len(self.workers()) < 2:
            if time.monotonic() > deadline:
                raise Failure(f"{self.name} has no new worker")
            self.stage.pause(0.02)

class Postgres(Server):
    kind = "postgres"
    # It ends its clients' connections instead of waiting for them.
    ends_by = signal.SIGINT
    # Whatever of the shared buffers its processes touch is soon all of it; what cleans up does so when it is asked.
    OPTIONS = ("-c", "shared_buffers=2MB", "-c", "autovacuum=off", "-c", "max_connections=60")

    def launch(self):
        self.process, self.client = postgres_server.start(
            self.stage, self.transport, *self.OPTIONS, name=self.name, port=self.port
        )

    def workers(self):
        """Those that serve a client: the server ends them all if one is killed, and begins again."""
        return [pid for pid in self.family()[1:] if b"127.0.0.1" in command_line(pid)]

    def reload(self):
        os.kill(self.process.pid, signal.SIGHUP)

    def sql(self, text):
        """The answer to a statement, natively, over its Unix socket."""
        own = self.stage.folder / self.name
        command = [*postgres_server.as_other_user(), str(postgres_server.programs() / "psql"), "-X", "-q", "-A", "-t"]
        command += ["-h", str(own), "-p", str(self.port), "-U", "me", "-c", text, "postgres"]
        return self.stage.finish(self.stage.start("tcp", command)).strip()

    def recover(self):
        deadline = time.monotonic() + HANG
        while True:
            try:
                return self.sql("SELECT 1")
            except Failure:
                self.check()
                if time.monotonic() > deadline:
                    raise
                self.stage.pause(0.1)


class Python(Server):
    kind = "python"

    def command(self):
        # A thread for each connection, but not a heap for each thread: these grow for an hour.
        return ["env", "MALLOC_ARENA_MAX=1", PYTHON, PROGRAMS / "http_server.py", self.stage.folder / "content", self.port]


class Node(Server):
    kind = "node"

    def command(self):
        return ["node", "--expose-gc", "--max-semi-space-size=2", PROGRAMS / "http_server.js", self.port]

    def settle(self):
        os.kill(self.process.pid, signal.SIGUSR2)


class Java(Server):
    kind = "java"
    # All of its heap is there from the start.
    OPTIONS = "-XX:+UseSerialGC -Xms48m -Xmx48m -XX:+AlwaysPreTouch -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=16m"

    def command(self):
        return ["java", *self.OPTIONS.split(), "-cp", self.stage.folder / "java", "NioEchoServer", self.port]


def command_line(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


KINDS = {one.kind: one for one in (Redis, Nginx, Postgres, Python, Node, Java)}
# What each needs: a program and the package of Debian's that brings it.
NEEDS = {
    "redis": {"redis-server": "redis-server", "redis-benchmark": "redis-tools"},
    "nginx": {"nginx": "nginx", "wrk": "wrk", "ab": "apache2-utils", "curl": "curl"},
    "postgres": {"pg_createcluster": "postgresql"},
    "python": {PYTHON: "python3"},
    "node": {"node": "nodejs"},
    "java": {"java": "default-jdk-headless", "javac": "default-jdk-headless"},
}
