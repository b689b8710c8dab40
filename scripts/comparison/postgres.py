"""Measures PostgreSQL with pgbench: SELECTs and TPC-B over long-lived connections, and SELECTs with a connection each.
The server makes a process for each connection."""

import math
import re

import load
from cases import SHORT, Case, Figure
from percentiles import percentiles
from postgres_server import start
from processes import Failure


def measure(stage, transport, seconds, options, clients, on_san):
    is_short = "-C" in options.split()
    # A run with few transactions a second lasts longer.
    seconds *= SHORT_TIMES if is_short else 1
    server, client = start(stage, transport)
    logs = stage.folder / "postgres" / "log"
    # These logs are left from an earlier run that did not count.
    for log in logs.parent.glob("log.*"):
        log.unlink()
    options = f"-n {options} -c {clients} -j 2 -T {math.ceil(seconds)} -l --log-prefix={logs}"
    command = [*client, *options.split(), "postgres"]
    done = load.run(stage, transport, command, server, clients if on_san else 0, is_short=is_short)
    stage.end(server)
    rate = re.search(r"\btps = ([\d.]+)", done.text)
    count = re.search(r"transactions actually processed: (\d+)", done.text)
    failed = re.search(r"failed transactions: (\d+)", done.text)
    if not rate or not count or failed and failed.group(1) != "0":
        raise Failure(f"{done.line} gave no clean figure:\n{done.text}")
    # The log has a line for each transaction. The third word is the time that it took, in microseconds.
    took = []
    for log in logs.parent.glob("log.*"):
        took += [int(line.split()[2]) for line in log.read_text().splitlines()]
    known, cost = percentiles(took), done.per_million(int(count.group(1)))
    return Figure(float(rate.group(1)), known[50], known[99], cost, known, done.carried)


SHORT_TIMES = 3
SLOW = "where there are more processes than cores, each waits longer for the next message than looking for it pays"


def cases():
    for label, options, clients, stays in (
        ("SELECT, 1 connection", "-S -M prepared", 1, ""),
        ("SELECT, 8 connections", "-S -M prepared", 8, SLOW),
        ("TPC-B, 8 connections", "-M prepared", 8, SLOW),
        ("SELECT, connection per request", "-S -C", 8, SHORT),
    ):
        yield Case(
            "postgres",
            label,
            "transactions/s",
            f"pgbench -n {options} -c {clients} -j 2",
            lambda *where, what=(options, clients, not stays): measure(*where, *what),
            may_stay_on_tcp=stays,
            again=stays == SHORT,
            unix=True,
            headline=clients == 1,
        )
