"""What carries a stream: messages, RDMA, or what measurement prefers, side by side."""

import ctypes
import json
import os
import re
import socket
import subprocess
import tempfile
import time
from collections import Counter
from statistics import median

from runner import clean_environment
from tables import size_name

# `rdma_threshold` of the configuration, by the name in the table.
CARRIERS = {"messages": '"never"', "rdma": "4096", "measured": '"measured"'}
STREAMS = (65536, 1 << 20)
# prctl(PR_CAPBSET_DROP, CAP_SYS_PTRACE): whoever may access every process's memory uses none of its peers', as root.
DROP, ACCESS_TO_ALL = 24, 19
IPERF3 = {"iperf3": (), "iperf3 -l 1M": ("-l", "1M")}


def carriers(runner, quick):
    """One row per program: its GB/s with each carrier, medians over rounds; of sanbench also what
    measurement decided for, in so many rounds."""
    if not runner.library:
        return []
    ctypes.CDLL(None).prctl(DROP, ACCESS_TO_ALL, 0, 0, 0)
    decided = {}
    rows = {f"sanbench, {size_name(size)}": {} for size in STREAMS} | {name: {} for name in IPERF3}
    with tempfile.TemporaryDirectory(prefix="sanbench-") as folder:
        for _ in range(2 if quick else 9):
            for name, threshold in CARRIERS.items():
                config = os.path.join(folder, f"{name}.toml")
                with open(config, "w") as file:
                    file.write(f"[shm]\nrdma_threshold = {threshold}\n")
                for size in STREAMS:
                    arguments = ("socket", "stream", "--size", size, "--placement", "two-cores")
                    line = runner.run(arguments, shimmed="both", on_san=True, config=config, level="debug")
                    if not line:
                        continue
                    row = f"sanbench, {size_name(size)}"
                    rows[row].setdefault(name, []).append(line["gb_per_s"])
                    if ways := re.findall(r"much data goes by (\w+) now: decided", line["log"]):
                        decided.setdefault(row, []).append(ways[-1])
                for program, options in IPERF3.items():
                    rate = iperf3(runner, config, options)
                    if rate:
                        rows[program].setdefault(name, []).append(rate)
    return [{"program": program, "decided": dict(Counter(decided.get(program, ())))}
            | {name: median(found) for name, found in values.items()}
            for program, values in rows.items()]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as one:
        return str(one.getsockname()[1])


def iperf3(runner, config, options):
    """GB/s that arrived, or None."""
    environment = clean_environment(config) | {"LD_PRELOAD": runner.library}
    port = free_port()
    server = subprocess.Popen(["iperf3", "-s", "-1", "-p", port], env=environment,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(50):
            time.sleep(0.05)
            client = ["iperf3", "-c", "127.0.0.1", "-p", port, "-J", "-t", "1", *options]
            done = subprocess.run(client, env=environment, capture_output=True, text=True, timeout=30)
            if done.returncode == 0:
                return json.loads(done.stdout)["end"]["sum_received"]["bits_per_second"] / 8e9
        runner.fail(f"iperf3: {done.stdout.strip()[-200:]}")
        return None
    finally:
        server.kill()
        server.wait()
