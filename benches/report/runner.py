"""Runs sanbench and checks that what should be on the SAN was."""

import json
import os
import platform
import re
import subprocess
import tempfile

# Seconds; far above any run.
TIMEOUT = 60
# How often a run is tried of which a part was on TCP by chance: a busy machine makes pauses, and pauses make it TCP.
ATTEMPTS = 5
# Of an end's line in the library's log: which end, and what carries it.
CARRIED = re.compile(r"sanshim\[(\d+)\] \w+: fd (\d+): .*?provider=(\w+)")
# What `sanbench` ends with when this machine cannot do a measurement.
UNAVAILABLE = 75


def machine():
    """What a reader needs to judge the figures."""
    model = "unknown CPU"
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    return {
        "cpu": model,
        "cpus": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
        "load": round(os.getloadavg()[0], 2),
    }


def clean_environment(config=None):
    """This process's, without the library and its user's settings; `config`: the library's, where it is loaded."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SANSHIM")}
    environment.pop("LD_PRELOAD", None)
    return environment | {"SANSHIM_CONFIG": config or os.devnull}


def not_on_san(log, may_return):
    """Why a run does not count as one on the SAN, or None. Each connection begins on TCP; once both ends have moved
    neither may go back, unless they `may_return` because they are idle."""
    moved = set()
    for pid, fd, provider in CARRIED.findall(log):
        if provider == "shm":
            moved.add((pid, fd))
        elif (pid, fd) in moved and not may_return:
            return "went back to TCP"
    return None if len({pid for pid, _ in moved}) > 1 else "never moved to the SAN"


class Runner:
    """The sanbench binary, the library (None: no SAN runs) and the failures so far."""

    def __init__(self, sanbench, library, seconds):
        self.sanbench = sanbench
        self.library = library
        self.seconds = seconds
        self.failures = []
        self.hung = set()

    def fail(self, text):
        if text not in self.failures:
            self.failures.append(text)

    def run(self, arguments, shimmed=None, on_san=False, prefix=(), seconds=None, config=None,
            level=None, may_return=False, at_once=False):
        """One measurement: its JSON line as a dict, or None.

        `shimmed`: None for no library, else both, client or server. `on_san`: the library must
        say that both ends were on shared memory to the end, or, if they `may_return`, at some time; the run fails otherwise.
        `prefix`: a command around it.
        `config`: the library's; `level`: of its log, which the result then has as `log`. `at_once`: connections move before they
        have shown that they will live.
        """
        command = [*prefix, self.sanbench, *map(str, arguments)]
        if "--count" not in command:
            command += ["--seconds", str(seconds or self.seconds)]
        if shimmed:
            command += ["--library", self.library, "--shimmed", shimmed]
        name = " ".join(map(str, arguments)) + (f" (shimmed: {shimmed})" if shimmed else "")
        for _ in range(ATTEMPTS):
            result, missing = self.attempt(command, name, on_san, config, level, may_return, at_once)
            if not missing:
                return result
        self.fail(f"{name}: not on the SAN ({missing}, by the library's log)")
        return None

    def attempt(self, command, name, on_san, config, level, may_return, at_once):
        """A run's result, and why it was not on the SAN where it should have been."""
        # One time-out is enough: later rounds do not wait for it again.
        if name in self.hung:
            return None, None
        with tempfile.TemporaryDirectory(prefix="sanbench-") as folder:
            log = os.path.join(folder, "log")
            environment = clean_environment(config)
            if at_once:
                environment["SANSHIM_MOVE_AFTER"] = "0"
            if on_san:
                environment |= {"SANSHIM_LOG": level or "info", "SANSHIM_LOG_FILE": log}
            # After a time-out only sanbench itself is killed; its ends die with their parent.
            try:
                done = subprocess.run(
                    command, env=environment, capture_output=True, text=True, timeout=TIMEOUT
                )
            except subprocess.TimeoutExpired:
                self.hung.add(name)
                self.fail(f"{name}: no result after {TIMEOUT} s")
                return None, None
            if done.returncode == UNAVAILABLE:
                return None, None
            if done.returncode != 0:
                said = done.stderr.strip().splitlines()[-1:] or ["no message"]
                self.fail(f"{name}: status {done.returncode}: {said[0]}")
                return None, None
            said = self.read(log)
            if on_san and (missing := not_on_san(said, may_return)):
                return None, missing
        try:
            return json.loads(done.stdout) | ({"log": said} if level else {}), None
        except ValueError:
            self.fail(f"{name}: printed {done.stdout[:80]!r} instead of a result")
            return None, None

    @staticmethod
    def read(log):
        try:
            with open(log, errors="replace") as file:
                return file.read()
        except FileNotFoundError:
            return ""
