"""Servers and clients as people run them, in two containers that have one folder and nothing else in common: each has a /dev/shm, processes and
mounts of its own, and a network of its own or, as in a pod, one for both. The containers are made by `unshare`, or by podman."""

import os
import pathlib
import re
import time

import paths
import postgres_server
from processes import HANG, Failure

# Where a container's own file systems are made, before the program takes the shell's place.
OWN_MEMORY = 'mount -t tmpfs tmpfs /dev/shm && exec "$@"'
APART = ["unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child", "--mount-proc", "sh", "-c", OWN_MEMORY, "sh"]
# The container with the servers.
SPACE = "two"
READY = {"postgres": "ready to accept connections"}
ROWS = 5000
PAGE = 40000


class Served:
    """One server, and its clients in another container or the same network, made by `unshare`."""

    name = "unshare"
    places = paths.PLACES

    def __init__(self, cross):
        self.cross, self.stage = cross, cross.stage

    def start(self, space, command, log, user):
        """In a container, under the library."""
        become = ["setpriv", "--reuid", user, "--regid", user, "--clear-groups"] if user else []
        inside = [*self.cross.spaces[space].inside, *APART, *become, "env", *self.cross.variables(log)]
        return self.stage.start("tcp", [*inside, *map(str, command)])

    def serve(self, command, log, user):
        return self.start(SPACE, command, log, user)

    def ask(self, place, command, log, user):
        return self.stage.finish(self.start(place.asker, command, log, user))

    def end(self, server):
        self.stage.end(server)

    def table(self, server):
        """The connections of the container's network."""
        return pathlib.Path(f"/proc/{self.cross.spaces[SPACE].process.pid}/net/tcp")

    def wait(self, server, kind, port):
        """Until the server listens on the port there, and says what it says when it is ready."""
        deadline = time.monotonic() + HANG
        listens = f":{port:04X} 0+:0000 0A"
        while not re.search(listens, self.table(server).read_text()) or READY.get(kind, "") not in self.stage.output(server):
            if self.stage.ended(server) or time.monotonic() > deadline:
                raise Failure(f"nothing listens on port {port}: {self.stage.output(server)}")
            self.stage.pause(0.02)

    def redis(self, port, ask):
        yield ["redis-server", "--port", port, "--save", "", "--protected-mode", "no"]
        for command in "set", "get":
            ask(["redis-benchmark", "-h", "{}", "-p", "{:d}", "-t", command, "-n", 30000, "-c", 10, "-d", 300, "--csv"])

    def nginx(self, port, ask):
        root = self.stage.folder / "served"
        root.mkdir(exist_ok=True)
        root.chmod(0o755)
        (root / "page").write_bytes(os.urandom(PAGE))
        settings = f"""user root; daemon off; pid {root}/pid; error_log {root}/log;
            events {{ }} http {{ access_log off; keepalive_requests 1000000; server {{ listen {port}; root {root}; }} }}"""
        (root / "conf").write_text(settings)
        yield ["nginx", "-p", root, "-c", root / "conf", "-e", root / "log"]
        text = ask(["wrk", "-t2", "-c10", "-d2s", "http://{}:{:d}/page"])
        if "Socket errors" in text or "Non-2xx" in text or "requests in" not in text:
            raise Failure(f"wrk saw errors:\n{text}")
        ask(["sh", "-c", f"for i in $(seq 100); do echo url = http://{{}}:{{:d}}/page; echo output = {root}/got; done | "
             f"curl -s -K - && cmp {root}/got {root}/page"])

    def postgres(self, port, ask):
        own = postgres_server.database(self.stage)
        (own / "data" / "pg_hba.conf").write_text("host all all 0.0.0.0/0 trust\nlocal all all trust\n")
        programs = postgres_server.programs()
        options = ["-c", "fsync=off", "-c", "listen_addresses=*", "-k", own, "-p", port]
        yield [programs / "postgres", "-D", own / "data", *options]
        client = [programs / "pgbench", "-h", "{}", "-p", "{:d}", "-U", "me"]
        ask([*client, "-i", "-q", "-s", "1", "postgres"])
        text = ask([*client, "-n", "-S", "-c", 4, "-t", ROWS, "postgres"])
        if "number of failed transactions: 0 " not in text:
            raise Failure(f"pgbench saw errors:\n{text}")

    def over(self, kind, place):
        """Runs a server of that kind and its clients; how many of their connections, and of the server's, came to the SAN."""
        user = "postgres" if kind == "postgres" else ""
        logs = [self.stage.folder / f"{kind}-{place.name}-{self.name}-{end}.log" for end in ("client", "server")]
        for log in logs:
            log.touch()
            log.chmod(0o666)

        def ask(command):
            words = [str(word).replace("{:d}", str(place.port)).replace("{}", place.address) for word in command]
            return self.ask(place, words, logs[0], user)

        steps = getattr(self, kind)(paths.SERVED, ask)
        server = self.serve(next(steps), logs[1], user)
        self.wait(server, kind, paths.SERVED)
        next(steps, None)
        moved = [self.cross.moved(log) for log in logs]
        self.end(server)
        return moved


KINDS = ("redis", "nginx", "postgres")
