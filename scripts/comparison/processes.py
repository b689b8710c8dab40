"""Starts programs on plain TCP or under `sanctl run`, and ends every one of them."""
import contextlib
import os
import pathlib
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


class Stage:
    """A temporary folder and the processes of one comparison; leaving it ends and removes all."""

    def __init__(self, sanctl):
        self.sanctl = sanctl
        self.folder = None
        self.running = []
        self.held, self.asked = False, None
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if name not in ("LD_PRELOAD", "SANSHIM", "SANSHIM_CONFIG")
        }

    def __enter__(self):
        # An end from outside must take the same way out as an error.
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self.interrupted)
        with self.uninterrupted():
            self.folder = pathlib.Path(tempfile.mkdtemp(prefix="sanshim-compare-"))
        return self

    def __exit__(self, *_):
        with self.uninterrupted():
            for process in list(self.running):
                self.end(process)
            shutil.rmtree(self.folder, ignore_errors=True)

    def interrupted(self, number, _):
        self.asked = number
        if not self.held:
            sys.exit(128 + number)

    @contextlib.contextmanager
    def uninterrupted(self):
        """An end from outside waits: what has begun must be known before, or it is left behind."""
        before, self.held = self.held, True
        try:
            yield
        finally:
            self.held = before
            if self.asked and not self.held:
                sys.exit(128 + self.asked)

    def start(self, transport, command):
        with self.uninterrupted():
            return self.launch(transport, command)

    def launch(self, transport, command):
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
        try:
            status = process.wait(HANG)
        except subprocess.TimeoutExpired:
            raise Failure(f"{process.line} hangs:\n{self.output(process)}") from None
        text = self.output(process)
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

    def wait_listening(self, process, port):
        """Waits without connecting: iperf3 would take the first connection for a client."""
        local = f":{port:04X} "
        deadline = time.monotonic() + HANG
        while process.poll() is None and time.monotonic() < deadline:
            lines = [line for table in TABLES for line in table.read_text().splitlines()]
            if any(local in line and line.split()[3] == "0A" for line in lines):
                return
            time.sleep(0.005)
        raise Failure(f"{process.line} does not listen on {port}:\n{self.output(process)}")


def free_port():
    """A free port that nobody else is given: its TIME_WAIT keeps it for who binds it by number."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            listener.accept()[0].close()
    return port
