"""Many connections, processes and threads, and a full listen queue, natively and under the library. See scripts/overload."""

import argparse
import os
import pathlib
import resource
import subprocess
import sys
import time

sys.path.append(str(pathlib.Path(__file__).parent.parent / "servers"))

import cpu
import machine
import san
import usage
from processes import Failure, Stage

HANG = 400
# What a program has open beside its connections, as in tests/overload/main.c.
OTHERS = 100
BACKLOG = 4096
ROUNDS = 40
# Where all are to come to the SAN: both ends look for each other at their transfers.
MANY_ROUNDS = 200
CLIENTS = 4
THREADS = 100
QUEUE, CROWD = 16, 120
MODES = {"tcp": "natively", "san": "under the library"}


def say(text):
    print(text, file=sys.stderr, flush=True)


class Programs:
    """Starts the program of tests/overload in one mode, and waits for its words."""

    def __init__(self, stage, transport):
        self.stage, self.transport, self.program = stage, transport, os.environ["OVERLOAD_PROGRAM"]

    def start(self, *words):
        command = [self.program, *(str(word) for word in words)]
        return self.stage.start(self.transport, command, stdin=subprocess.PIPE)

    def word(self, process, wanted):
        """What stands behind the word, once the process says it."""
        deadline = time.monotonic() + HANG
        while True:
            ended = self.stage.ended(process)
            text = self.stage.output(process)
            for line in text.splitlines():
                if line.split(" ")[0] == wanted:
                    return line.partition(" ")[2]
            if ended:
                raise Failure(f"{process.line} ended with {process.poll()}:\n{text}")
            if time.monotonic() > deadline:
                raise Failure(f"{process.line} hangs; it says:\n{text}")
            self.stage.pause(0.02)

    def go_on(self, process):
        process.stdin.write(b"\n")
        process.stdin.flush()

    def finish(self, process):
        self.word(process, "ok")
        process.stdin.close()
        self.stage.finish(process)

    def serve(self, count):
        server = self.start("serve", BACKLOG, count)
        return server, self.word(server, "port")

    def on_san(self, process):
        if self.transport != "san":
            return 0
        now, _ = san.counts(self.stage.sanctl)
        return sum(now[pid] for pid in cpu.family(process.pid))


def each(process, before, count):
    """What a connection costs a process, from what it had before."""
    now = usage.of_family(cpu.family(process.pid))
    return {name: (now[name] - before[name]) / count for name in now}


def wait_for_end(programs, server, before):
    """Waits until the server has closed its connections, and gives what it keeps."""
    deadline = time.monotonic() + HANG
    while True:
        left = each(server, before, 1)
        if left["descriptors"] < OTHERS:
            return left
        if time.monotonic() > deadline:
            raise Failure(f"the server has {left['descriptors']} descriptors more than before its clients, long after their end")
        programs.stage.pause(0.1)


def hold(programs, server, clients, count, before):
    """The course of clients of `serve`, and what was measured while all connections were there."""
    began = time.monotonic()
    for client in clients:
        programs.word(client, "connected")
    connected = time.monotonic() - began
    for client in clients:
        programs.go_on(client)
    for client in clients:
        programs.word(client, "exchanged")
    found = {
        "connections": count,
        "on the SAN": programs.on_san(server),
        "to connect, s": connected,
        "to exchange, s": time.monotonic() - began - connected,
    }
    costs = each(server, before, count)
    found |= {"server, KiB": costs["memory_kib"], "server, descriptors": costs["descriptors"], "server, mappings": costs["mappings"]}
    of_clients = [usage.of_family(cpu.family(client.pid)) for client in clients]
    found["clients, KiB"] = sum(one["memory_kib"] for one in of_clients) / count
    found["clients, descriptors"] = sum(one["descriptors"] for one in of_clients) / count
    for client in clients:
        programs.go_on(client)
    for client in clients:
        programs.finish(client)
    left = wait_for_end(programs, server, before)
    found["left, KiB"], found["left, descriptors"] = left["memory_kib"], left["descriptors"]
    server.stdin.close()
    programs.stage.end(server)
    return found


def connections(programs, chosen, count=None, rounds=ROUNDS):
    """So many to one process, from four processes and as many addresses."""
    share = (count or chosen.connections) // CLIENTS
    server, port = programs.serve(share * CLIENTS)
    before = usage.of_family(cpu.family(server.pid))
    clients = [programs.start("clients", port, 2 + number, share, rounds) for number in range(CLIENTS)]
    return hold(programs, server, clients, share * CLIENTS, before)


def fitting(programs, chosen):
    """A quarter of them, and so few that all have room on the SAN: with the two descriptors that each takes there, a quarter of
    RLIMIT_NOFILE is free."""
    return connections(programs, chosen, min(chosen.connections // 4, hard_limit() // 4 - OTHERS), MANY_ROUNDS)


def processes(programs, chosen):
    """So many processes with a connection each."""
    server, port = programs.serve(chosen.processes)
    before = usage.of_family(cpu.family(server.pid))
    return hold(programs, server, [programs.start("processes", port, chosen.processes, ROUNDS)], chosen.processes, before)


def threads(programs, chosen):
    """So many on one socket: they send records, and receive a stream."""
    process = programs.start("threads", THREADS)
    peer = programs.start("peer", programs.word(process, "port"), THREADS)
    programs.word(process, "sent")
    found = {"threads": THREADS, "on the SAN": programs.on_san(process)}
    programs.finish(process)
    programs.finish(peer)
    return found


def queue(programs, chosen):
    """A listen queue that is full: as many connections are made as natively, and the others when there is room."""
    server = programs.start("queue", QUEUE)
    crowd = programs.start("crowd", programs.word(server, "port"), CROWD)
    made = int(programs.word(crowd, "made"))
    programs.go_on(server)
    programs.go_on(crowd)
    programs.finish(crowd)
    server.stdin.close()
    programs.stage.end(server)
    return {"connections": CROWD, "made before one is accepted": made}


CASES = {"connections": connections, "fitting": fitting, "processes": processes, "threads": threads, "queue": queue}
# What is not the machine's speed, and must be as it is natively.
AS_NATIVELY = ("made before one is accepted",)


def hard_limit():
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def allowed(wanted):
    """How many connections RLIMIT_NOFILE allows a process, of those wanted: raised where that is allowed."""
    for hard in (1 << 20, 1 << 18, 4 * wanted + OTHERS):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[0], hard))
            break
        except (ValueError, OSError):
            continue
    hard = hard_limit()
    if hard < wanted + OTHERS:
        say(f"RLIMIT_NOFILE allows {hard} descriptors: {hard - OTHERS} connections instead of {wanted}")
    return min(wanted, hard - OTHERS)


def shown(value):
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def run(name, chosen, stage):
    """One case in both modes."""
    found = {}
    for transport, mode in MODES.items():
        say(f"{name}, {mode}")
        try:
            found[transport] = CASES[name](Programs(stage, transport), chosen)
        except Failure as failure:
            raise Failure(f"{name}, {mode}: {failure}") from None
        stage.end_all()
    print(f"{name}:")
    for what in found["tcp"]:
        print(f"  {what:28} {shown(found['tcp'][what]):>12} {shown(found['san'][what]):>12}", flush=True)
    for what in AS_NATIVELY:
        if found["tcp"].get(what) != found["san"].get(what):
            raise Failure(f"{name}: {what} is {found['san'][what]} under the library, and {found['tcp'][what]} natively")
    # Of very many connections there may be room for none.
    if found["san"].get("on the SAN") == 0 and name != "connections":
        raise Failure(f"{name}: no connection came to the SAN")


def main():
    parser = argparse.ArgumentParser(prog="scripts/overload")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--connections", type=int, default=20_000)
    parser.add_argument("--processes", type=int, default=1_000)
    parser.add_argument("--only", action="append", choices=CASES)
    parser.add_argument("--library", type=pathlib.Path)
    chosen = parser.parse_args()
    if chosen.short:
        chosen.connections, chosen.processes = 2_000, 100
    if chosen.connections < CLIENTS or chosen.processes < 1:
        parser.error(f"--connections needs {CLIENTS} or more, --processes 1 or more")
    chosen.connections = allowed(chosen.connections)
    library = chosen.library or pathlib.Path(os.environ["SANSHIM_LIBRARY"])
    if not library.is_file():
        parser.error(f"{library} is not there: name a libsanshim.so")
    print(f"{machine.describe()}; natively, and under the library; KiB (Pss) and descriptors for each connection", flush=True)
    with Stage(os.environ["SANCTL"], "sanshim-overload-") as stage:
        stage.environment |= {"SANSHIM_LIBRARY": str(library.resolve()), "SANSHIM_CONFIG": "/dev/null"}
        for name in chosen.only or CASES:
            run(name, chosen, stage)


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"scripts/overload: {failure}")
