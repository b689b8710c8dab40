"""Measures scp and rsync of a gigabyte, each to a server of its own."""

import getpass
import os
import time

import load
from cases import Case, Figure

# This cipher is far faster than the default one where the processor knows AES.
CIPHER = "aes128-gcm@openssh.com"
SSHD = """
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/client_key.pub
PidFile none
UsePAM no
StrictModes no
Subsystem sftp internal-sftp
"""
RSYNCD = """
use chroot = no
uid = {user}
gid = *
[into]
path = {folder}/into
read only = no
"""


def file(stage, seconds):
    """Gives the file to copy, and its size: a gigabyte, or less for a run that only shows whether the measurement
    works."""
    mebibytes = 1024 if seconds >= 1 else 128
    source = stage.memory() / f"{mebibytes}-mebibytes"
    if not source.exists():
        with source.open("wb") as out:
            for piece in range(mebibytes):
                out.write(bytes((piece % 251,)) * (1 << 20))
    (stage.memory() / "into").mkdir(exist_ok=True)
    return source, mebibytes << 20


def copy(stage, transport, seconds, server, command):
    source, size = file(stage, seconds)
    into = stage.memory() / "into" / source.name
    start = time.monotonic()
    done = load.run(stage, transport, [word.format(source=source, into=into) for word in command], server, 0)
    took = time.monotonic() - start
    if into.stat().st_size != size:
        raise load.Failure(f"{done.line} copied {into.stat().st_size} of {size} bytes")
    into.unlink()
    stage.end(server)
    return Figure(size / took / 1e6, cpu=done.cpu / (size / load.GIB), carried=done.carried)


def scp(stage, transport, seconds):
    if not (stage.folder / "host_key").exists():
        for key in ("host_key", "client_key"):
            stage.quietly(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", stage.folder / key])
        (stage.folder / "sshd_config").write_text(SSHD.format(folder=stage.folder))
    if os.geteuid() == 0:
        # The service makes this folder at boot, and sshd starts as root only if it is there.
        os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
    endpoint = stage.endpoint(transport)
    settings = str(stage.folder / "sshd_config")
    # sshd wants to be called by its path.
    server = stage.start(
        transport,
        ["/usr/sbin/sshd", "-D", "-e", "-f", settings, "-p", str(endpoint.port), "-o", "ListenAddress=127.0.0.1"],
    )
    stage.wait_listening(server, endpoint)
    options = "StrictHostKeyChecking=no UserKnownHostsFile=/dev/null LogLevel=ERROR IdentitiesOnly=yes"
    command = [
        "scp",
        "-q",
        "-c",
        CIPHER,
        "-P",
        str(endpoint.port),
        "-i",
        str(stage.folder / "client_key"),
        "-F",
        "none",
    ]
    command += [word for option in options.split() for word in ("-o", option)]
    command += ["{source}", f"{getpass.getuser()}@127.0.0.1:{{into}}"]
    return copy(stage, transport, seconds, server, command)


def rsync(stage, transport, seconds):
    settings = stage.folder / "rsyncd.conf"
    settings.write_text(RSYNCD.format(folder=stage.memory(), user=getpass.getuser()))
    endpoint = stage.endpoint(transport)
    server = stage.start(
        transport,
        f"rsync --daemon --no-detach --address=127.0.0.1 --port={endpoint.port} --config={settings}".split(),
    )
    stage.wait_listening(server, endpoint)
    command = ["rsync", "--whole-file", "--inplace", "{source}", f"rsync://127.0.0.1:{endpoint.port}/into/"]
    return copy(stage, transport, seconds, server, command)


def scp_cases():
    yield Case(
        "scp",
        "a gigabyte",
        "MB/s",
        f"scp -c {CIPHER} FILE 127.0.0.1:",
        scp,
        may_stay_on_tcp="sshd starts itself anew with each connection, and two of its processes have it",
        headline=True,
    )


def rsync_cases():
    yield Case(
        "rsync",
        "a gigabyte to a daemon",
        "MB/s",
        "rsync --whole-file --inplace FILE rsync://127.0.0.1/into/",
        rsync,
        may_stay_on_tcp="the end that receives forks, and both its processes have the connection",
    )
