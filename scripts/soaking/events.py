"""What happens to the programs of a soak: which events come when, by the seed, and how each is done."""

import dataclasses
import os
import random
import shutil
import signal

import cpu
from processes import Failure
from servers import kill

# How often each comes, against the others. `again` stands for the servers that may be ended.
WEIGHTS = {
    "restart": 3,
    "crash": 3,
    "kill-worker": 2,
    "kill-client": 6,
    "reload": 4,
    "detach": 5,
    "rotate": 2,
    "upgrade": 2,
    "stop": 2,
}
OF_THE_AGAIN_ONES = {"restart", "crash"}
# Seconds from one to the next.
APART = (1, 5)
STOPPED = 2


@dataclasses.dataclass(frozen=True)
class Event:
    """At `at` seconds; `which` chooses among what is there then."""

    at: float
    what: str
    which: int


def plan(seed, seconds):
    """All events of so many seconds of load: the same for the same seed, and a longer run begins as a shorter one. First comes each kind once."""
    chance, at = random.Random(f"{seed} events"), 0.0
    first = chance.sample(list(WEIGHTS), len(WEIGHTS))
    while (at := at + chance.uniform(*APART)) < seconds:
        what = first.pop() if first else chance.choices(list(WEIGHTS), WEIGHTS.values())[0]
        yield Event(at, what, chance.randrange(1 << 20))


class Events:
    """Does them."""

    def __init__(self, soak):
        self.soak, self.counts = soak, dict.fromkeys(WEIGHTS, 0)

    def do(self, event):
        """Does it, and gives what it was done to, or None where there was nothing."""
        servers = [one for one in self.soak.servers if not (event.what in OF_THE_AGAIN_ONES and one.lives)]
        server = servers[event.which % len(servers)]
        done = getattr(self, event.what.replace("-", "_"))(server, event.which // len(servers))
        if done is not None:
            self.counts[event.what] += 1
        return done

    def restart(self, server, _):
        server.restart()
        return server.name

    def crash(self, server, _):
        server.crash()
        return server.name

    def kill_worker(self, _, which):
        having = [one for one in self.soak.servers if one.workers()]
        if not having:
            return None
        server = having[which % len(having)]
        return server.name if server.kill_worker(which // len(having)) else None

    def kill_client(self, _, which):
        clients = self.soak.load.running
        if not clients:
            return None
        client = clients[which % len(clients)]
        client.killed = True
        for pid in cpu.family(client.process.pid):
            kill(pid)
        return client.kind

    def reload(self, server, _):
        server.reload()
        return server.name

    def detach(self, server, which):
        family = server.family()
        pid = family[which % len(family)]
        command = [self.soak.stage.sanctl, "detach", "--wait", "0", str(pid), "all"]
        process = self.soak.stage.start("tcp", command)
        try:
            self.soak.stage.finish(process)
        except Failure:
            # It may have ended, or not run under the library, as workers do that serve nobody.
            if server.process.pid == pid and self.soak.transport == "san":
                raise
        return server.name

    def rotate(self, server, which):
        """The log files are moved away, or copied and cut short, as logrotate does both; and nginx opens its own again."""
        self.soak.rotate_logs(copies=which % 2 == 1)
        if server.kind == "nginx":
            os.kill(server.process.pid, signal.SIGUSR1)
        return "all"

    def upgrade(self, _, which):
        """Another libsanshim.so takes the name of the one that programs run with."""
        library = self.soak.library
        new = library.with_suffix(".new")
        shutil.copy(self.soak.builds[which % len(self.soak.builds)], new)
        new.rename(library)
        return library.name

    def stop(self, server, _):
        family = server.family()
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in family:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass
            if number == signal.SIGSTOP:
                self.soak.pause(STOPPED)
        return server.name
