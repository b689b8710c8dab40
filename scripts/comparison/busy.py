"""Runs other work on the processors during a measurement: compilers, or loops that do nothing else."""

import contextlib
import os
import signal
import subprocess

import load

LOOP = "while :; do :; done"
COMPILE = f"while :; do cc -O3 -o /dev/null -x c '{load.SOURCES / 'exchange.c'}'; done"


@contextlib.contextmanager
def beside(stage, work, each=1):
    """Runs the work `each` times for each processor."""
    started = []
    try:
        for _ in range(each * (os.cpu_count() or 1)):
            process = subprocess.Popen(
                ["sh", "-c", work],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=stage.environment,
                process_group=0,
            )
            started.append(process)
        yield
    finally:
        for process in started:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
