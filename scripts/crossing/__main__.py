"""Connections over each path, whose bytes both ends check. See scripts/cross."""

import argparse
import dataclasses
import os
import pathlib
import re
import shutil
import sys
import time

sys.path.append(str(pathlib.Path(__file__).parent.parent / "servers"))

import namespaces
import paths
import podman
import recipes
import served
from processes import Failure, Stage

# How long (s) all connections of one run may take: so long, and so much more for each on a busy machine.
HANG, HANG_EACH = 600, 0.1
SHORT, USUAL = 40, 1000
# Exchanges over a connection: the ends look for each other after some thirty.
ROUNDS, BESIDE = 400, 8
# Of the connections that may come to the SAN so many must, where the path promises that.
MOST = 0.8
FIRST_PORT = 20000
# Of so many connections with exchanges there is one stream of each kind, and so many at least.
ONE_STREAM_OF, FEWEST_STREAMS = 25, 8


@dataclasses.dataclass(frozen=True)
class Stream:
    """Records in one direction: so many, of up to so many bytes, and so many microseconds apart."""

    direction: str
    records: int
    largest: int
    pause: int

    @property
    def lasts(self):
        """True if it is not over before its ends have met, whatever they have the processor for."""
        return self.pause > 0

    def __str__(self):
        return f"{self.direction}, {self.largest} bytes, {self.pause} µs"


# Names for --only besides those of paths.
SERVERS, RECIPES = "servers", "recipes"
# With --short the first so many of them.
SHORT_STREAMS = 6
# Slow and quick ones, small and large, and those that flow without a pause.
KINDS = (500, 1200, 1000), (400, 1 << 15, 500), (4000, 1200, 0), (400, 1 << 17, 0), (300, 100, 5000)
STREAMS = [Stream(direction, *kind) for kind in KINDS for direction in ("up", "down")]
MOVED = re.compile(r"provider=shm reason=on-san")


def options():
    parser = argparse.ArgumentParser(prog="scripts/cross")
    parser.add_argument("--connections", type=int, default=USUAL)
    parser.add_argument("--only", action="append", choices=[*(path.name for path in paths.PATHS), SERVERS, RECIPES])
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--library", type=pathlib.Path)
    parser.add_argument("--keep", type=pathlib.Path)
    return parser.parse_args()


class Cross:
    """The namespaces, and the servers in them."""

    def __init__(self, stage, connections):
        self.stage, self.connections = stage, connections
        self.program = os.environ["CROSS_PROGRAM"]
        self.spaces = paths.build(namespaces.Net(stage))
        # A short name: the folder of a configuration has at most 33 bytes.
        self.folder = stage.folder / "f"
        self.folder.mkdir()
        self.folder.chmod(0o1777)
        self.logs = {}
        for name, ports in paths.servers():
            self.logs[name] = self.log(f"server-{name}")
            self.listen(name, [self.program, "serve", ",".join(map(str, ports))], self.logs[name])
        for command in paths.proxies():
            self.listen("host", command, None)

    def log(self, name):
        return self.stage.folder / f"{name}.log"

    def start(self, name, command, log):
        """In a namespace; under the library where that has a log."""
        given = ["env", *self.variables(log)] if log else []
        return self.stage.start("tcp", [*self.spaces[name].inside, *given, *map(str, command)])

    def variables(self, log):
        """What a program under the library has in its environment, as env takes it."""
        variables = {
            "LD_PRELOAD": os.environ["SANSHIM_LIBRARY"],
            "SANSHIM_FOLDER": self.folder,
            "SANSHIM_CONFIG": "/dev/null",
            "SANSHIM_LOG": "info",
            "SANSHIM_LOG_FILE": log,
        }
        return [f"{name}={value}" for name, value in variables.items()]

    def listen(self, name, command, log):
        process = self.start(name, command, log)
        says = "listens" if command[0] != "socat" else ""
        deadline = time.monotonic() + 20
        while says not in self.stage.output(process):
            if self.stage.ended(process) or time.monotonic() > deadline:
                raise Failure(f"{process.line} does not listen: {self.stage.output(process)}")
            self.stage.pause(0.02)
        return process

    def ask(self, path, first, stream):
        log = self.log(path.name)
        log.unlink(missing_ok=True)
        if stream:
            how = [stream.direction, path.address, path.port, self.streams, stream.records, BESIDE, first, stream.largest, stream.pause]
        else:
            how = ["ask", path.address, path.port, self.connections, ROUNDS, BESIDE, first]
        return self.start(path.asker, [self.program, *how], log), log

    @property
    def streams(self):
        return max(self.connections // ONE_STREAM_OF, FEWEST_STREAMS)

    def over(self, path, stream=None):
        """What came of one path: how many of the asker's connections, and of the servers', came to the SAN. With exchanges, or as a stream."""
        others = [path.beside] if path.beside else []
        first = FIRST_PORT if others else 0
        before = {name: self.moved(log) for name, log in self.logs.items()}
        asking = [self.ask(one, first, stream) for one in [path, *others]]
        for process, _ in asking:
            deadline = time.monotonic() + HANG + HANG_EACH * self.connections
            while not self.stage.ended(process):
                if time.monotonic() > deadline:
                    raise Failure(f"{path.name}: {process.line} hangs: {self.stage.output(process)}")
                self.stage.pause(0.05)
            if (status := process.wait()) != 0:
                raise Failure(f"{path.name}: {process.line} ended with {status}: {self.stage.output(process)}")
        asked = sum(self.moved(log) for _, log in asking)
        answered = sum(self.moved(log) - before[name] for name, log in self.logs.items())
        return asked, answered, (self.streams if stream else self.connections) * len(asking)

    @staticmethod
    def moved(log):
        return len(MOVED.findall(log.read_text())) if log.exists() else 0


def judge(path, stream, asked, answered, count):
    if path.moves is False and asked + answered:
        return f"{asked} and {answered} connections came to the SAN, through a program in the middle"
    must = path.moves and (not stream or stream.lasts)
    if must and asked < count * MOST:
        return f"{asked} of {count} connections came to the SAN"
    return ""


def serve(cross, others, may_translate):
    """Servers as people run them, in containers; what went wrong."""
    wrong = []
    for maker in (served.Served(cross), *others):
        for kind in served.KINDS:
            for place in maker.places:
                if place.is_translated and not may_translate:
                    continue
                asked, answered = maker.over(kind, place)
                name = f"{kind}, {place.name}, {maker.name}"
                print(f"{name:40} on the SAN {asked:6} {answered:6}", flush=True)
                if not (asked and answered):
                    wrong.append(f"{name}: no connection came to the SAN")
    return wrong


def follow(by_podman):
    """What the documentation tells people to write; what went wrong."""
    wrong = []
    for name, (asked, answered) in recipes.Recipes(by_podman).over():
        print(f"{name:40} on the SAN {asked:6} {answered:6}", flush=True)
        if not (asked and answered):
            wrong.append(f"{name}: no connection came to the SAN")
    return wrong


def main():
    chosen = options()
    missing = [name for name in ("nft", "socat", "ip", "nsenter") if not namespaces.has(name)]
    if missing:
        raise Failure(f"{', '.join(missing)} missing: run scripts/install")
    may_translate = namespaces.may_translate()
    if not may_translate:
        print("left out: address translation, which the kernel does not have here (nf_tables)", file=sys.stderr)
    connections = SHORT if chosen.short else chosen.connections
    wrong = []
    with Stage(os.environ["SANCTL"], "cross-") as stage:
        cross = Cross(stage, connections)
        for path in paths.PATHS:
            is_chosen = not chosen.only or path.name in chosen.only
            if not is_chosen or path.is_translated and not may_translate:
                continue
            for stream in (None, *(STREAMS[:SHORT_STREAMS] if chosen.short else STREAMS)):
                began = time.monotonic()
                asked, answered, count = cross.over(path, stream)
                why = judge(path, stream, asked, answered, count)
                name = f"{path.name}, {stream or 'both ways'}"
                print(f"{name:45} {count:6} connections, on the SAN {asked:6} {answered:6}  {time.monotonic() - began:6.1f} s  {why}", flush=True)
                wrong += [f"{name}: {why}"] if why else []
        if not chosen.only or {SERVERS, RECIPES} & set(chosen.only):
            with podman.Podman(cross) as by_podman:
                if why := by_podman.begin():
                    print(f"left out: podman, {why}; containers are made by unshare alone", file=sys.stderr)
                if not chosen.only or SERVERS in chosen.only:
                    wrong += serve(cross, [] if why else [by_podman], may_translate)
                if not why and (not chosen.only or RECIPES in chosen.only):
                    wrong += follow(by_podman)
        if chosen.keep:
            chosen.keep.mkdir(parents=True, exist_ok=True)
            for log in stage.folder.glob("*.log"):
                shutil.copy(log, chosen.keep)
    if wrong:
        raise Failure("\n".join(wrong))


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"scripts/cross: {failure}")
