"""Runs one command of a foreign suite where it meets nobody: its own network with `lo` alone, processes, /tmp and /dev/shm.
Whatever it leaves running ends with it, and it ends when it has printed nothing for too long."""
import dataclasses
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import threading
import time

from failure import Failure

SPACES = ("--net", "--pid", "--mount", "--ipc", "--fork", "--kill-child", "--mount-proc")
# The shell stays as the first process: that one has no default actions of signals, and collects orphans.
ENTER = """
ip link set lo up || exit 125
# Suites that choose a port themselves choose one below.
echo 50000 60999 >/proc/sys/net/ipv4/ip_local_port_range || exit 125
mount -t tmpfs tmpfs /dev/shm || exit 125
[ -z "$FOREIGN_TMP" ] || mount --bind "$FOREIGN_TMP" /tmp || exit 125
# What it writes where it runs is this run's alone.
here=$PWD
mount -t tmpfs tmpfs "$FOREIGN_LAYER" && mkdir "$FOREIGN_LAYER/upper" "$FOREIGN_LAYER/work" &&
    mount -t overlay -o "lowerdir=$here,upperdir=$FOREIGN_LAYER/upper,workdir=$FOREIGN_LAYER/work" overlay "$here" &&
    cd / && cd "$here" || exit 125
unset FOREIGN_TMP FOREIGN_LAYER here
"$@"
exit $?
"""
# Nothing of the caller's environment but this: a suite must run alike wherever it is started.
KEPT = ("PATH", "CARGO_HOME", "RUSTUP_HOME")


# Set when the user ends all of it: no run goes on or begins then.
stopped = threading.Event()


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a command ended; `status` is None if it was ended because it hung."""

    status: int | None
    seconds: float


def spaces():
    """What `unshare` is called with here, or None where namespaces cannot be had."""
    for user in ((), ("--user", "--map-root-user")):
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as layer:
            command = ["unshare", *user, *SPACES, "sh", "-c", ENTER, "sh", "true"]
            environ = os.environ | {"FOREIGN_TMP": "", "FOREIGN_LAYER": layer}
            if subprocess.run(command, capture_output=True, cwd=folder, env=environ, check=False).returncode == 0:
                return ["unshare", *user, *SPACES]
    return None


def environment(home):
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    # Cargo and rustup are found by the home folder otherwise.
    there = pathlib.Path(os.environ.get("HOME", "/root"))
    kept.setdefault("CARGO_HOME", str(there / ".cargo"))
    kept.setdefault("RUSTUP_HOME", str(there / ".rustup"))
    return kept | {"HOME": str(home), "LANG": "C.UTF-8", "USER": "root", "SHELL": "/bin/sh", "TERM": "dumb"}


class Sandbox:
    """One run's place: `folder` is made fresh, with `home` and `tmp` in it."""

    def __init__(self, folder, unshare):
        shutil.rmtree(folder, ignore_errors=True)
        self.folder, self.unshare = folder, unshare
        self.home, self.tmp, self.layer = folder / "home", folder / "tmp", folder / "layer"
        self.home.mkdir(parents=True)
        self.layer.mkdir()
        self.tmp.mkdir(mode=0o1777)
        self.tmp.chmod(0o1777)

    def run(self, command, output, cwd, extra, stall, limit):
        """Runs it until it ends, has printed nothing for `stall` seconds, or has run for `limit`."""
        environ = environment(self.home) | extra | {"FOREIGN_LAYER": str(self.layer)}
        # A project that itself lies below /tmp must stay visible: then /tmp is shared.
        if pathlib.Path("/tmp") not in self.folder.resolve().parents:
            environ["FOREIGN_TMP"] = str(self.tmp)
        began = time.monotonic()
        with open(output, "ab") as out:
            process = subprocess.Popen(
                [*self.unshare, "sh", "-c", ENTER, "sh", *map(str, command)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=cwd or self.home,
                env=environ,
                start_new_session=True,
            )
        try:
            status = self.watch(process, output, began, stall, limit)
        finally:
            # unshare takes the first process of the namespace with it, and that one all others.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return Ended(status, time.monotonic() - began)

    def watch(self, process, output, began, stall, limit):
        size, since = -1, began
        ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while True:
            # It is left unreaped, so that its number stays its own until the group is ended.
            found = os.waitid(os.P_PID, process.pid, ended)
            if found:
                return found.si_status if found.si_code == os.CLD_EXITED else 128 + found.si_status
            if stopped.is_set():
                raise Failure("ended by a signal")
            now, grown = time.monotonic(), output.stat().st_size
            if grown != size:
                size, since = grown, now
            if now - since > stall or now - began > limit:
                return None
            time.sleep(0.05)
