"""PostgreSQL with pgbench: a connection, and with it a process of the server's, for each SELECT."""
import math
import os
import pathlib
import pwd
import re
import subprocess

from cases import Case, Figure
from processes import Failure, free_port


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


def quietly(command, folder):
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failure(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


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
        make = [programs() / "initdb", "-D", own / "data", "-A", "trust", "-U", "me", "--no-sync"]
        quietly([*as_other_user(), *make], stage.folder)
    return own


def start(stage, transport):
    """The server and what a client needs to find it."""
    own, port = database(stage), free_port()
    settings = ["-c", "fsync=off", "-c", "listen_addresses=127.0.0.1"]
    command = [programs() / "postgres", "-D", own / "data", "-p", port, "-k", own, *settings]
    server = stage.start(transport, [str(word) for word in (*as_other_user(), *command)])
    stage.wait_listening(server, port)
    while "ready to accept connections" not in stage.output(server):
        if server.poll() is not None:
            raise Failure(f"{server.line} ended:\n{stage.output(server)}")
        stage.pause(0.01)
    return server, ["-h", "127.0.0.1", "-p", str(port), "-U", "me"]


def measure_short(stage, transport, seconds):
    server, where = start(stage, transport)
    client = [*as_other_user(), str(programs() / "pgbench"), *where]
    filled = stage.folder / "postgres" / "filled"
    if not filled.exists():
        quietly([*client, "-i", "-q", "-s", "1", "postgres"], stage.folder)
        filled.touch()
    arguments = f"-n -S -C -c 8 -j 2 -T {math.ceil(seconds * 2)}"
    text = stage.finish(stage.start(transport, [*client, *arguments.split(), "postgres"]))
    stage.end(server)
    rate = re.search(r"\btps = ([\d.]+)", text)
    failed = re.search(r"failed transactions: (\d+)", text)
    if not rate or failed and failed.group(1) != "0":
        raise Failure(f"pgbench {arguments} gave no clean figure:\n{text}")
    return Figure(float(rate.group(1)))


def cases():
    yield Case(
        "postgres",
        "SELECT, connection per request",
        "transactions/s",
        "pgbench -n -S -C -c 8 -j 2",
        measure_short,
        stays_on_tcp=True,
    )
