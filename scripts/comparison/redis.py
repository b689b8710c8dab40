"""redis-server with redis-benchmark: GET and SET, 50 connections and 1, pipelined and not, and a connection per request."""
import csv
import subprocess

import san
from cases import Case, Figure
from processes import Failure, free_port

# redis-benchmark is told a number of requests, not a time: the rate seen last gives the number.
rates = {}


def start(stage, transport):
    """The server and its port."""
    port = free_port()
    server = stage.start(
        transport,
        ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(stage.folder)],
    )
    stage.wait_listening(server, port)
    # The key that redis-benchmark uses, so that GET finds something.
    subprocess.run(
        ["redis-cli", "-p", str(port), "set", "key:__rand_int__", "xxx"],
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return server, port


def measure(stage, transport, seconds, command, clients, pipeline):
    server, port = start(stage, transport)
    where, what = (stage, transport, server, port), (command, clients, pipeline)
    key = (transport, *what)
    if key not in rates:
        rates[key] = calibrate(where, what, seconds / 2)
    requests = int(rates[key] * seconds)
    figure = run(*where, requests, *what, check=transport == "san")
    rates[key] = figure.rate
    stage.end(server)
    return figure


def measure_short(stage, transport, seconds):
    server, port = start(stage, transport)
    # A number of connections for which there are ports; below a second only whether it works is asked.
    requests = 20000 if seconds >= 1 else 5000
    arguments = f"-p {port} --csv -t get -k 0 -n {requests}"
    text = stage.finish(stage.start(transport, ["redis-benchmark", *arguments.split()]))
    stage.end(server)
    return figure_of(arguments, text)


def calibrate(where, what, seconds):
    """The rate of a run that lasted long enough to tell."""
    requests = 5000
    while True:
        rate = run(*where, requests, *what, check=False).rate
        if requests / rate >= seconds:
            return rate
        requests = max(int(rate * seconds), 2 * requests)


def run(stage, transport, server, port, requests, command, clients, pipeline, check):
    arguments = f"-p {port} --csv -t {command} -c {clients} -P {pipeline} -n {requests}"
    client = stage.start(transport, ["redis-benchmark", *arguments.split()])
    if check:
        san.require_shm(stage, server, client, clients)
    text = stage.finish(client)
    if check:
        san.require_kept(stage, server, client)
    return figure_of(arguments, text)


def figure_of(arguments, text):
    rows = list(csv.DictReader(text[text.index('"test"') :].splitlines())) if '"test"' in text else []
    if len(rows) != 1:
        raise Failure(f"redis-benchmark {arguments} gave no figure:\n{text}")
    return Figure(float(rows[0]["rps"]), float(rows[0]["p50_latency_ms"]) * 1000)


def cases():
    for clients in (50, 1):
        for pipeline in (1, 16):
            for command in ("get", "set"):
                yield Case(
                    "redis",
                    f"{command.upper()}, {clients} connection{'s' * (clients > 1)}"
                    + (f", pipeline of {pipeline}" if pipeline > 1 else ""),
                    "requests/s",
                    f"redis-benchmark -t {command} -c {clients} -P {pipeline}",
                    lambda *where, what=(command, clients, pipeline): measure(*where, *what),
                )
    yield Case(
        "redis",
        "GET, connection per request",
        "requests/s",
        "redis-benchmark -t get -k 0 -n 20000",
        measure_short,
        stays_on_tcp=True,
    )
