"""What the figures were taken on, for the reader of the table."""

import os
import pathlib
import platform
import re
import shlex
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


# How each program is asked what it is.
ASKED = {
    "redis": "redis-server --version",
    "memcached": "memcached --version",
    "PostgreSQL": "pgbench --version",
    "nginx": "nginx -v",
    "haproxy": "haproxy -v",
    "node": "node --version",
    "Java": "java --version",
    "gRPC": "/usr/bin/python3 -c 'import grpc; print(grpc.__version__)'",
    "Python": "/usr/bin/python3 --version",
    "RabbitMQ": "dpkg-query -W -f '${Version}' rabbitmq-server",
    "iperf3": "iperf3 --version",
    "OpenSSH": "ssh -V",
    "rsync": "rsync --version",
    "wrk": "wrk -v",
    "ab": "ab -V",
}


def version(command):
    """The first version number that a program says about itself, on whichever output; None where it is not there."""
    try:
        answer = subprocess.run(shlex.split(command), capture_output=True, text=True, check=False)
    except OSError:
        return None
    found = re.search(r"\d+\.\d+(\.\d+)?", answer.stdout + answer.stderr)
    return found.group(0) if found else None


def versions(sanctl):
    said = {name: version(command) for name, command in {"sanshim": f"{sanctl} --version", **ASKED}.items()}
    return ", ".join(f"{name} {number}" for name, number in said.items() if number)
