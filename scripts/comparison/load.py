"""Runs a client against a server. Gives what the client said, what both ends cost, and proof of what carried the
connections."""

import dataclasses
import json
import math
import pathlib
import re

import cpu
import san
from cases import Figure
from processes import Failure

SOURCES = pathlib.Path(__file__).parent / "programs"
MICROSECONDS = {"us": 1, "ms": 1000, "s": 1_000_000}
MILLION, GIB = 1_000_000, 1 << 30


@dataclasses.dataclass(frozen=True)
class Run:
    """A client's output, and the CPU seconds of its servers and of itself."""

    line: str
    text: str
    server_cpu: float
    client_cpu: float
    carried: str = ""

    @property
    def cpu(self):
        return self.server_cpu + self.client_cpu

    def per_million(self, requests):
        return self.cpu / requests * MILLION


def run(stage, transport, command, server, connections, quiet=0, beside=(), is_short=False):
    """Runs the client. `connections` of the server's must be on the SAN, and at most `quiet` others may be on TCP. 0:
    none need be on the SAN, and this only looks at them. Short connections get no look, because a look reads of all
    that linger. The servers in `beside` only add their cost."""
    servers = (server, *beside)
    before = sum(cpu.spent(one.pid) for one in servers)
    handed_over = stage.handed_over()
    client = stage.start(transport, command)
    carried = ""
    if transport == "san" and connections:
        san.require_shm(stage, server, client, connections, quiet)
    elif transport == "san" and not is_short:
        carried = san.look(stage, server, client)
    text = stage.finish(client)
    server_cpu = sum(cpu.spent(one.pid) for one in servers) - before
    if transport == "san" and connections:
        san.require_kept(stage, server, client, quiet)
    if transport == "sockmap" and stage.handed_over() == handed_over:
        raise Failure(f"sockmap was not used: nothing of '{client.line}' was handed over")
    return Run(client.line, text, server_cpu, client.cpu, carried)


def of_report(done):
    """Gives the figure of one of the project's own clients. Such a client prints one line of JSON. The line has the CPU
    time of the measured part alone: the client's and, if the client knows the server's process, the server's."""
    try:
        said = json.loads(done.text.splitlines()[-1])
    except (ValueError, IndexError):
        raise Failure(f"{done.line} gave no figure:\n{done.text}") from None
    spent = (said.get("server_cpu", done.server_cpu) + said["cpu"]) / said["requests"] * MILLION
    percentiles = {float(part): took for part, took in said["percentiles_us"].items()}
    return Figure(said["requests"] / said["seconds"], percentiles[50], percentiles[99], spent, percentiles, done.carried)


def wrk(stage, transport, seconds, where, server, connections, threads=2, count=None, quiet=0, beside=()):
    """Gives the figure of wrk. `where` is host, port and path. `count` of the server's connections are on the SAN."""
    arguments = f"-t{threads} -c{connections} -d{math.ceil(seconds)}s --latency"
    command = ["wrk", *arguments.split(), f"http://{where}"]
    done = run(stage, transport, command, server, connections if count is None else count, quiet, beside)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", done.text)
    requests = re.search(r"(\d+) requests in", done.text)
    latencies = re.findall(r"\b(50|75|90|99)%\s+([\d.]+)(us|ms|s)\b", done.text)
    if not rate or len(latencies) != 4 or "Socket errors" in done.text or "Non-2xx" in done.text:
        raise Failure(f"wrk {arguments} gave no clean figure:\n{done.text}")
    percentiles = {float(part): float(took) * MICROSECONDS[unit] for part, took, unit in latencies}
    cost = done.per_million(int(requests.group(1)))
    return Figure(float(rate.group(1)), percentiles[50], percentiles[99], cost, percentiles)


def compiled(stage, source):
    """Gives a C program of the project's, compiled at the first call."""
    program = stage.folder / pathlib.Path(source).stem
    if not program.exists():
        stage.quietly(["cc", "-O2", "-o", program, SOURCES / source])
    return program


def exchange(stage, transport, seconds, endpoint, server, connections, request, first=""):
    """Gives the figure of the project's own generator. For a time each connection sends the request and waits for all
    of the answer."""
    command = [compiled(stage, "exchange.c"), endpoint.path or endpoint.port, connections, seconds, request, first]
    return of_report(run(stage, transport, [str(word) for word in command], server, connections))
