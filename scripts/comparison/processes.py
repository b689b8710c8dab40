"""Starts programs on plain TCP or under `sanctl run`, and ends every one of them."""
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


class Failure(Exception):
    """What the user must read: the comparison cannot go on."""


class Again(Failure):
    """That, unless it was by chance, which another measurement tells."""


class Stage:
    """A temporary folder and the processes of one comparison; leaving it ends and removes all."""

    def __init__(self, sanctl):
        self.sanctl = sanctl
        self.folder = None
        self.running = []
        self.handlers = {}
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if name not in ("LD_PRELOAD", "SANSHIM", "SANSHIM_CONFIG")
        }

    def __enter__(self):
        # An end from outside takes the same way out as an error, but from `pause` alone: an exception in the
        # middle of subprocess leaves its lock taken, and a process whose start is not known yet is left behind.
        self.asked, self.ask = socket.socketpair()
        self.ask.setblocking(False)
        signal.set_wakeup_fd(self.ask.fileno())
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            if signal.getsignal(number) != signal.SIG_IGN:
                self.handlers[number] = signal.signal(number, lambda *_: None)
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="sanshim-compare-"))
        return self

    def __exit__(self, *_):
        self.end_all()
        shutil.rmtree(self.folder, ignore_errors=True)
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

    def start(self, transport, command):
        if transport == "san":
            command = [self.sanctl, "run", "--", *command]
        log = tempfile.TemporaryFile(dir=self.folder)
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=self.folder,
            env=self.environment,
            process_group=0,
        )
        process.log = log
        process.line = shlex.join(map(str, command))
        self.running.append(process)
        return process

    def output(self, process):
        process.log.seek(0)
        return process.log.read().decode(errors="replace")

    def finish(self, process):
        """Waits for a client's end and gives its output."""
        ended = os.pidfd_open(process.pid)
        try:
            self.pause(HANG, [ended])
        finally:
            os.close(ended)
        status = process.poll()
        text = self.output(process)
        if status is None:
            raise Failure(f"{process.line} hangs:\n{text}")
        self.end(process)
        if status != 0:
            raise Failure(f"{process.line} ended with {status}:\n{text}")
        return text

    def end(self, process):
        """Ends a process group; the leader is not reaped before, so its number is nobody else's."""
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGTERM)
            deadline = time.monotonic() + 5
            ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
            while not os.waitid(os.P_PID, process.pid, ended) and time.monotonic() < deadline:
                time.sleep(0.005)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        process.log.close()
        self.running.remove(process)

    def end_all(self):
        # Clients first: PostgreSQL waits for its own.
        for process in self.running[::-1]:
            self.end(process)

    def wait_listening(self, process, port):
        """Waits without connecting: iperf3 would take the first connection for a client."""
        local = f":{port:04X} "
        deadline = time.monotonic() + HANG
        while process.poll() is None and time.monotonic() < deadline:
            lines = [line for table in TABLES for line in table.read_text().splitlines()]
            if any(local in line and line.split()[3] == "0A" for line in lines):
                return
            self.pause(0.005)
        raise Failure(f"{process.line} does not listen on {port}:\n{self.output(process)}")


def free_port():
    """A free port that nobody else is given: its TIME_WAIT keeps it for who binds it by number."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            listener.accept()[0].close()
    return port
