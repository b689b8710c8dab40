"""Measures redis-server with redis-benchmark: GET and SET, over 50 connections and one, pipelined and not, and over
short connections."""

import csv

import load
import redis_server
from cases import SHORT, Case, Figure
from processes import Failure

# redis-benchmark takes a number of requests, not a time. The last rate gives that number.
rates = {}


def start(stage, transport, *options, starter=()):
    """Starts the server, by the command `starter` if there is one. Gives the server, and how its clients find it."""
    server, where = redis_server.start(stage, transport, *options, starter=starter)
    # redis-benchmark uses this key, so GET finds something.
    stage.finish(stage.start(transport, ["redis-cli", *where, "set", "key:__rand_int__", "xxx"]))
    return server, where


def measure(stage, transport, seconds, command, clients, pipeline):
    server, where = start(stage, transport)
    what = ["-t", command, "-c", str(clients), "-P", str(pipeline)]
    figure = run_for(seconds, (transport, *what), stage, transport, server, [*where, *what], clients)
    stage.end(server)
    return figure


def run_for(seconds, key, stage, transport, server, arguments, clients, starter=()):
    """Gives the figure of a run of about `seconds`. `key` says which runs have the same rate."""
    if key not in rates:
        rates[key] = calibrate(stage, transport, server, arguments, seconds / 2, starter)
    figure = run(stage, transport, server, arguments, int(rates[key] * seconds), clients, starter)
    rates[key] = figure.rate
    return figure


def measure_short(stage, transport, seconds):
    server, where = start(stage, transport)
    # There are ports for so many connections. A run below a second only shows whether the measurement works.
    requests = 20000 if seconds >= 1 else 5000
    figure = run(stage, transport, server, [*where, "-t", "get", "-k", "0"], requests, 0)
    stage.end(server)
    return figure


def calibrate(stage, transport, server, arguments, seconds, starter):
    """Gives the rate of a run that lasted long enough to tell."""
    requests = 5000
    while True:
        rate = run(stage, transport, server, arguments, requests, 0, starter).rate
        if requests / rate >= seconds:
            return rate
        requests = max(int(rate * seconds), 2 * requests)


def run(stage, transport, server, arguments, requests, connections, starter=()):
    command = [*starter, "redis-benchmark", *arguments, "--csv", "-n", str(requests)]
    done = load.run(stage, transport, command, server, connections, is_short=not connections)
    rows = []
    if '"test"' in done.text:
        rows = list(csv.DictReader(done.text[done.text.index('"test"') :].splitlines()))
    if len(rows) != 1:
        raise Failure(f"{done.line} gave no figure:\n{done.text}")
    percentiles = {part: float(rows[0][f"p{part}_latency_ms"]) * 1000 for part in (50, 95, 99)}
    cost = done.per_million(requests)
    return Figure(float(rows[0]["rps"]), percentiles[50], percentiles[99], cost, percentiles, done.carried)


def cases():
    for command, clients, pipeline in (("get", 50, 1), ("set", 50, 1), ("get", 50, 16), ("get", 1, 1), ("get", 1, 16)):
        yield Case(
            "redis",
            f"{command.upper()}, {clients} connection{'s' * (clients > 1)}"
            + f", pipeline of {pipeline}" * (pipeline > 1),
            "requests/s",
            f"redis-benchmark -t {command} -c {clients} -P {pipeline}",
            lambda *where, what=(command, clients, pipeline): measure(*where, *what),
            unix=True,
            headline=(command, clients, pipeline) == ("get", 50, 1),
        )
    yield Case(
        "redis",
        "GET, connection per request",
        "requests/s",
        "redis-benchmark -t get -k 0 -n 20000",
        measure_short,
        may_stay_on_tcp=SHORT,
        again=True,
        unix=True,
    )
