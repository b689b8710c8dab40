"""PostgreSQL with pgbench: SELECTs and TPC-B over long-lived connections, and a connection, and with it a process
of the server's, for each SELECT."""

import math
import os
import pathlib
import pwd
import re

import load
from cases import SHORT, Case, Figure
from processes import Endpoint, Failure, free_port


def programs():
    """The folder of the newest version's programs: Debian keeps the server's out of PATH."""
    found = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not found:
        raise Failure("PostgreSQL is not installed: run scripts/install")
    return found[-1].parent


def as_other_user():
    """PostgreSQL refuses to run as root: what makes a command another user's."""
    if os.geteuid() != 0:
        return []
    return ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups"]


def database(stage):
    """The folder of the database, made when it is first asked for."""
    own = stage.folder / "postgres"
    if not own.exists():
        # Its user must get through the stage's folder.
        stage.folder.chmod(0o711)
        own.mkdir(mode=0o700)
        if os.geteuid() == 0:
            user = pwd.getpwnam("postgres")
            os.chown(own, user.pw_uid, user.pw_gid)
        stage.quietly(
            [*as_other_user(), programs() / "initdb", "-D", own / "data", "-A", "trust", "-U", "me", "--no-sync"]
        )
    return own


def start(stage, transport):
    """The server and what a client needs to find it."""
    own, port = database(stage), free_port()
    settings = ["-c", "fsync=off", "-c", "listen_addresses=127.0.0.1"]
    command = [programs() / "postgres", "-D", own / "data", "-p", port, "-k", own, *settings]
    server = stage.start(transport, [str(word) for word in (*as_other_user(), *command)])
    stage.wait_listening(server, Endpoint(port))
    while "ready to accept connections" not in stage.output(server):
        if stage.ended(server):
            raise Failure(f"{server.line} ended:\n{stage.output(server)}")
        stage.pause(0.01)
    host = str(own) if transport == "unix" else "127.0.0.1"
    client = [*as_other_user(), str(programs() / "pgbench"), "-h", host, "-p", str(port), "-U", "me"]
    filled = own / "filled"
    if not filled.exists():
        # Where the client belongs: sockmap has no way from a connection in its cgroup to one outside.
        stage.finish(stage.start(transport, [*client, "-i", "-q", "-s", "1", "postgres"]))
        filled.touch()
    return server, client


def measure(stage, transport, seconds, options, clients, on_san):
    is_short = "-C" in options.split()
    # Of few a second, more.
    seconds *= SHORT_TIMES if is_short else 1
    server, client = start(stage, transport)
    logs = stage.folder / "postgres" / "log"
    # Of a run before that did not count.
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
    # A line for each transaction; its third word is what it took, in microseconds.
    took = []
    for log in logs.parent.glob("log.*"):
        took += [int(line.split()[2]) for line in log.read_text().splitlines()]
    return Figure(float(rate.group(1)), *load.percentiles(took), done.per_million(int(count.group(1))), done.carried)


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
