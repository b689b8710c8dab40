"""Starts a PostgreSQL of a folder of its own."""

import os
import pathlib
import pwd

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


def database(stage, name="postgres"):
    """The folder of the database, made when it is first asked for."""
    own = stage.folder / name
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


def start(stage, transport, *options, name="postgres", port=None):
    """The server and what a client needs to find it."""
    own, port = database(stage, name), port or free_port()
    settings = ["-c", "fsync=off", "-c", "listen_addresses=127.0.0.1", *options]
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
