"""What servers have and cost: memory, descriptors, mappings and processor time, and /dev/shm; and whether it is back in the end."""

import csv
import dataclasses
import statistics
import time

import cpu
import usage

# A value may be a twentieth above that of the start, and so much more: what a program keeps by itself, and what a clock tick rounds. The library
# keeps up to 32 ends of connections for the next ones in each process, a mapping and 20 KiB each; and of killed processes some sixteen names stay
# in /dev/shm until others start.
SHARE = 0.05
SLACK = {"memory_kib": 2048, "descriptors": 4, "mappings": 40, "cpu": 0.02, "shm_kib": 1024, "shm_files": 16}
TITLES = {
    "memory_kib": "memory (Pss), MiB",
    "descriptors": "descriptors, but of files with data",
    "mappings": "mappings",
    "cpu": "processor seconds a second",
    "shm_kib": "/dev/shm, MiB",
    "shm_files": "files in /dev/shm",
    "on_san": "connections on the SAN",
    "moved": "connections that came to the SAN, of processes that run",
}


@dataclasses.dataclass
class Sample:
    """One look at one server, or at the host."""

    at: float
    phase: str
    name: str
    values: dict


class Spent:
    """The processor time of a server's processes, as what it grew by since the last look: processes come and go."""

    def __init__(self):
        self.last, self.since = {}, time.monotonic()

    def rate(self, pids):
        now, grown, seen = time.monotonic(), 0.0, {}
        for pid in pids:
            try:
                seen[pid] = cpu.clock(pid)
            except OSError:
                continue
            # Of one that is new all of it counts, unless there was no look before.
            grown += seen[pid] - self.last.get(pid, 0 if self.last else seen[pid])
        rate = max(grown, 0) / max(now - self.since, 1e-6)
        self.last, self.since = seen, now
        return rate


class Measures:
    """Takes samples, and has them as a table."""

    def __init__(self, began):
        self.began, self.samples, self.spent = began, [], {}

    def take(self, phase, servers, on_san, moved):
        """One sample of each server and one of the host. The last two say of processes how many connections are on the SAN, and ever came there."""
        at = time.monotonic() - self.began
        for server in servers:
            family = server.family()
            # PostgreSQL has more or fewer files of its tables open, as it likes.
            values = usage.of_family(family, apart_from=f"{server.stage.folder}/")
            values["cpu"] = round(self.spent.setdefault(server.name, Spent()).rate(family), 4)
            values["on_san"] = sum(on_san.get(pid, 0) for pid in family)
            values["moved"] = sum(moved.get(pid, 0) for pid in family)
            self.samples.append(Sample(at, phase, server.name, values))
        self.samples.append(Sample(at, phase, "host", usage.of_shared_memory()))

    def write(self, path):
        names = [*TITLES]
        with path.open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["seconds", "phase", "server", *names])
            for one in self.samples:
                table.writerow([f"{one.at:.1f}", one.phase, one.name, *(one.values.get(name, "") for name in names)])

    def medians(self, phase):
        """Of each server and value of a phase."""
        found = {}
        for one in self.samples:
            if one.phase == phase:
                for name, value in one.values.items():
                    found.setdefault((one.name, name), []).append(value)
        return {key: statistics.median(values) for key, values in found.items()}

    def most(self, name, value):
        return max((one.values.get(value, 0) for one in self.samples if one.name == name), default=0)


def compare(start, end, serving):
    """Lines of server, value, start, end, and the slack if that is not back. `serving` says of a server how many processes have connections."""
    for (server, name), first in sorted(start.items()):
        if name in SLACK:
            last, slack = end[server, name], SLACK[name] * serving.get(server, 1)
            yield server, name, first, last, None if last <= first * (1 + SHARE) + slack else slack
