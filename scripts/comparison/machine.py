"""What the figures were taken on, for the reader of the table."""
import os
import pathlib
import platform
import re
import subprocess


def first_line(path, pattern):
    found = re.search(pattern, pathlib.Path(path).read_text(), re.MULTILINE)
    return found.group(1).strip() if found else "unknown"


def describe():
    cores = len(os.sched_getaffinity(0))
    model = first_line("/proc/cpuinfo", r"^model name[^:]*:(.*)")
    memory = int(first_line("/proc/meminfo", r"^MemTotal:\s+(\d+)")) / 1024 / 1024
    system = first_line("/etc/os-release", r'^PRETTY_NAME=.?([^"\n]*)')
    return f"{cores} cores of {model}, {memory:.0f} GiB, {system}, Linux {platform.release()}"


def version(*command):
    """The first version number that a program says about itself, on whichever output."""
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"\d+\.\d+(\.\d+)?", answer.stdout + answer.stderr)
    return found.group(0) if found else "unknown"


def versions(sanctl):
    return ", ".join(
        f"{name} {version(*command)}"
        for name, command in {
            "sanshim": (sanctl, "--version"),
            "redis": ("redis-server", "--version"),
            "iperf3": ("iperf3", "--version"),
            "nginx": ("nginx", "-v"),
            "wrk": ("wrk", "-v"),
            "ab": ("ab", "-V"),
            "PostgreSQL": ("pgbench", "--version"),
        }.items()
    )
