"""Where the SAN must not lose: redis with a generator of ours under circumstances that are bad for who looks instead of
sleeping, or for who pays for each connection."""

import os
import signal

import load
import redis
from cases import Case, Figure

GET = "*2\r\n$3\r\nGET\r\n$16\r\nkey:__rand_int__\r\n"
RATES = 100, 1000, 10000


def generator(stage, where, seconds, connections=1, idle=0, rate=0):
    words = [load.compiled(stage, "exchange.c"), where[-1], connections, seconds, GET, "", idle, rate]
    return [str(word) for word in words]


def one(stage, transport, seconds, on_san, **how):
    """A server and a generator; `on_san` of its connections are to be on the SAN."""
    server, where = redis.start(stage, transport, "--maxclients", "20000")
    command = generator(stage, where, seconds, **how)
    quiet = how.get("idle", 0) + how.get("connections", 1) - on_san
    figure = load.of_report(load.run(stage, transport, command, server, on_san, quiet))
    stage.end(server)
    return figure


def eight_pairs(stage, transport, seconds):
    """All at once: the rate of all, the latencies of the slowest."""
    servers = [redis.start(stage, transport) for _ in range(8)]
    clients = [stage.start(transport, generator(stage, where, seconds)) for _, where in servers]
    figures = []
    for (server, _), client in zip(servers, clients):
        text = stage.finish(client)
        spent = load.cpu.spent(server.pid)
        figures.append(load.of_report(load.Run(client.line, text, spent, client.cpu)))
        stage.end(server)
    rates = [figure.rate for figure in figures]
    costs = sum(figure.cpu * figure.rate for figure in figures) / sum(rates)
    return Figure(sum(rates), max(one.p50_us for one in figures), max(one.p99_us for one in figures), costs)


def beside_a_stopped_peer(stage, transport, seconds):
    server, where = redis.start(stage, transport)
    stopped = stage.start(transport, generator(stage, where, 1000))
    stage.pause(0.3)
    os.killpg(stopped.pid, signal.SIGSTOP)
    client = generator(stage, where, seconds)
    done = load.run(stage, transport, client, server, 1, 1)
    stage.end(stopped)
    stage.end(server)
    return load.of_report(done)


def beside_a_compiler(stage, transport, seconds):
    source = load.SOURCES / "exchange.c"
    loop = f"while :; do cc -O3 -o /dev/null -x c {source}; done"
    compilers = [stage.start("tcp", ["sh", "-c", loop]) for _ in range(os.cpu_count() or 1)]
    try:
        return one(stage, transport, seconds, 0, connections=4)
    finally:
        for compiler in compilers:
            stage.end(compiler)


def cases():
    def case(label, measure, command, **more):
        return Case("adverse", label, "requests/s", f"{command} (redis-server)", measure, **more)

    paced = "its requests are too far apart"
    for rate in RATES:
        for connections in (1, 500):
            yield case(
                f"{rate:,} requests a second over {connections} connection{'s' * (connections > 1)}",
                lambda *where, how=(rate, connections): one(*where, 0, rate=how[0], connections=how[1]),
                f"exchange PORT {connections} 1.5 GET '' 0 {rate}",
                stays_on_tcp=paced,
            )
    yield case(
        "10,000 connections, each with a request a second",
        lambda *where: one(*where, 0, connections=10000, rate=10000),
        "exchange PORT 10000 1.5 GET '' 0 10000",
        stays_on_tcp=paced,
    )
    yield case(
        "one busy connection beside 1,000 idle ones",
        lambda *where: one(*where, 1, idle=1000),
        "exchange PORT 1 1.5 GET '' 1000",
    )
    yield case("eight pairs at once", eight_pairs, "8 times exchange PORT 1 1.5 GET")
    yield case(
        "one busy connection beside a stopped client's", beside_a_stopped_peer, "exchange PORT 1 1.5 GET, twice"
    )
    yield case(
        "four connections, a compiler on each processor",
        beside_a_compiler,
        "exchange PORT 4 1.5 GET, while cc -O3 runs on each processor",
    )
