"""Starts programs as they are, under `sanctl run` or under sockmap, and ends every one of them."""

import dataclasses
import os
import pathlib
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

HANG = 60
TABLES = pathlib.Path("/proc/net/tcp"), pathlib.Path("/proc/net/tcp6")
MEMORY, ROOM = pathlib.Path("/dev/shm"), 3 << 30
UNIX_TABLE = pathlib.Path("/proc/net/unix")


class Failure(Exception):
    """What the user must read: the script cannot go on."""


class Again(Failure):
    """That, unless it was by chance, which another measurement tells."""


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """Where a server listens: a port of 127.0.0.1, or a path in the stage's folder."""

    port: int
    path: str = ""

    @property
    def address(self):
        return self.path or f"127.0.0.1:{self.port}"


class Stage:
    """A temporary folder, whose name begins with `prefix`, and the processes of one script; leaving it ends and removes all."""

    def __init__(self, sanctl, prefix):
        self.sanctl, self.prefix = sanctl, prefix
        self.sockmap = None
        self.endpoints = 0
        self.folder = None
        self.in_memory = None
        self.running = []
        self.handlers = {}
        self.environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}

    def __enter__(self):
        # An end from outside takes the same way out as an error, but from `pause` alone: an exception in the
        # middle of subprocess leaves its lock taken, and a process whose start is not known yet is left behind.
        self.asked, self.ask = socket.socketpair()
        self.ask.setblocking(False)
        signal.set_wakeup_fd(self.ask.fileno())
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            if signal.getsignal(number) != signal.SIG_IGN:
                self.handlers[number] = signal.signal(number, lambda *_: None)
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix=self.prefix))
        return self

    def __exit__(self, *_):
        self.end_all()
        if self.sockmap:
            self.sockmap.close()
        for folder in filter(None, (self.folder, self.in_memory)):
            shutil.rmtree(folder, ignore_errors=True)
        for number, handler in self.handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(-1)
        self.pause(0)
        self.asked.close()
        self.ask.close()

    def pause(self, seconds, ended=()):
        """Waits, but not longer than until one of the descriptors is ready; leaves when asked to end."""
        ready, _, _ = select.select([self.asked, *ended], [], [], seconds)
        if self.asked in ready:
            sys.exit(128 + self.asked.recv(1)[0])

    def memory(self):
        """A folder for large files, in memory where there is room: how fast the disk is should not matter."""
        if not self.in_memory:
            room = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM
            self.in_memory = pathlib.Path(
                tempfile.mkdtemp(prefix=self.prefix, dir=MEMORY if room else self.folder)
            )
        return self.in_memory

    def handed_over(self):
        return self.sockmap.messages() if self.sockmap else 0

    def endpoint(self, transport):
        """A new one; a short path, since an address has room for a hundred letters."""
        self.endpoints += 1
        return Endpoint(0, f"{self.endpoints}.sock") if transport == "unix" else Endpoint(free_port())

    def quietly(self, command):
        """What has to be done before, and succeed."""
        done = subprocess.run(
            [str(word) for word in command],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise Failure(f"{shlex.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")

    def start(self, transport, command, stdin=subprocess.DEVNULL, **environment):
        if transport == "san":
            command = [self.sanctl, "run", "--", *command]
        if transport == "sockmap":
            command = self.sockmap.command(command)
        log = tempfile.TemporaryFile(dir=self.folder)
        process = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=self.folder,
            env=self.environment | environment,
            process_group=0,
        )
        process.log = log
        process.cpu = 0
        process.line = shlex.join(map(str, command))
        self.running.append(process)
        return process

    def output(self, process):
        process.log.seek(0)
        return process.log.read().decode(errors="replace")

    def ended(self, process):
        """Whether it is; what it cost is still to be had from it."""
        return process.returncode is not None or bool(
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        )

    def finish(self, process):
        """Waits for a client's end and gives its output."""
        ended = os.pidfd_open(process.pid)
        try:
            self.pause(HANG, [ended])
        finally:
            os.close(ended)
        text = self.output(process)
        if not self.ended(process):
            raise Failure(f"{process.line} hangs:\n{text}")
        self.end(process)
        if process.returncode != 0:
            raise Failure(f"{process.line} ended with {process.returncode}:\n{text}")
        return text

    def end(self, process):
        """Ends a process group; the leader is not reaped before, so its number is nobody else's."""
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGTERM)
            deadline = time.monotonic() + 5
            while not self.ended(process) and time.monotonic() < deadline:
                time.sleep(0.005)
            os.killpg(process.pid, signal.SIGKILL)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            process.cpu = usage.ru_utime + usage.ru_stime
        process.log.close()
        self.running.remove(process)

    def end_all(self):
        # Clients first: PostgreSQL waits for its own.
        for process in self.running[::-1]:
            self.end(process)

    def wait_listening(self, process, endpoint):
        """Waits without connecting: iperf3 would take the first connection for a client."""
        deadline = time.monotonic() + HANG
        while not self.ended(process) and time.monotonic() < deadline:
            if listens(endpoint):
                return
            self.pause(0.005)
        raise Failure(f"{process.line} does not listen on {endpoint.address}:\n{self.output(process)}")


def listens(endpoint):
    if endpoint.path:
        lines = [line.split() for line in UNIX_TABLE.read_text().splitlines()[1:]]
        # Its flags say that it listens.
        return any(line[3] == "00010000" and line[-1].endswith(endpoint.path) for line in lines)
    local = f":{endpoint.port:04X} "
    lines = [line for table in TABLES for line in table.read_text().splitlines()]
    return any(local in line and line.split()[3] == "0A" for line in lines)


def free_port():
    """A free port that nobody else is given: its TIME_WAIT keeps it for who binds it by number."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            listener.accept()[0].close()
    return port
