"""Measures where the SAN must not lose: redis with the project's own generator, under circumstances that are bad for a
program that looks instead of sleeping, or that pays for each connection."""

import os
import signal

import busy
import load
import redis
import san
from cases import Case, Figure

GET = "*2\r\n$3\r\nGET\r\n$16\r\nkey:__rand_int__\r\n"
RATES = 100, 1000, 10000
# So many requests give a p99. A paced run is at least three times as long as others.
PACED_REQUESTS, PACED_TIMES = 1000, 3
# So many busy loops run on each processor. A measurement beside them is so many times as long.
LOOPS, LONGER = 3, 3


def generator(stage, server, where, seconds, connections=1, idle=0, rate=0):
    words = [load.compiled(stage, "exchange.c"), where[-1], connections, seconds, GET, "", idle, rate, server.pid]
    return [str(word) for word in words]


def on_processor(which):
    """Gives the command that starts an end on the first processor, or on the last."""
    processors = sorted(os.sched_getaffinity(0))
    return ["taskset", "--cpu-list", str(processors[which])]


def one(stage, transport, seconds, on_san, starters=((), ()), **how):
    """Measures a server and a generator, which `starters` start. `on_san` of the server's connections are to be on the
    SAN."""
    server, where = redis.start(stage, transport, "--maxclients", "20000", starter=starters[0])
    command = [*starters[1], *generator(stage, server, where, seconds, **how)]
    quiet = how.get("idle", 0) + how.get("connections", 1) - on_san
    figure = load.of_report(load.run(stage, transport, command, server, on_san, quiet))
    stage.end(server)
    return figure


def paced_times(rate):
    return max(PACED_TIMES, PACED_REQUESTS // rate)


def paced(stage, transport, seconds, rate, **how):
    """Measures with each end on a processor of its own, if there are two. Ends that mostly sleep and are free to move
    are on one processor in some runs and on two in others, and they are twice as fast on one."""
    starters = on_processor(0), on_processor(-1)
    return one(stage, transport, paced_times(rate) * seconds, 0, starters, rate=rate, **how)


def eight_pairs(stage, transport, seconds):
    """Measures eight pairs at once. Gives the rate of all pairs, and the latencies of the slowest. Looks at what
    carries one of them."""
    servers = [redis.start(stage, transport) for _ in range(8)]
    clients = [stage.start(transport, generator(stage, server, where, seconds)) for server, where in servers]
    carried = san.look(stage, servers[-1][0], clients[-1]) if transport == "san" else ""
    figures = []
    for (server, _), client in zip(servers, clients):
        text = stage.finish(client)
        figures.append(load.of_report(load.Run(client.line, text, 0, client.cpu)))
        stage.end(server)
    rates = [figure.rate for figure in figures]
    costs = sum(figure.cpu * figure.rate for figure in figures) / sum(rates)
    slowest = max(one.p50_us for one in figures), max(one.p99_us for one in figures)
    return Figure(sum(rates), *slowest, costs, carried=carried)


def beside_a_stopped_peer(stage, transport, seconds):
    server, where = redis.start(stage, transport)
    stopped = stage.start(transport, generator(stage, server, where, 1000))
    stage.pause(0.3)
    os.killpg(stopped.pid, signal.SIGSTOP)
    client = generator(stage, server, where, seconds)
    done = load.run(stage, transport, client, server, 1, 1)
    stage.end(stopped)
    stage.end(server)
    return load.of_report(done)


def beside_compilers(stage, transport, seconds):
    with busy.beside(stage, busy.COMPILE):
        return one(stage, transport, seconds, 0, connections=4)


def beside_loops(stage, transport, seconds):
    with busy.beside(stage, busy.LOOP, LOOPS):
        return one(stage, transport, LONGER * seconds, 0)


def cases():
    def case(label, measure, command, **more):
        return Case("adverse", label, "requests/s", f"{command} (redis-server)", measure, **more)

    def paced_case(label, connections, rate):
        return case(
            label,
            lambda *where: paced(*where, connections=connections, rate=rate),
            f"exchange PORT {connections} {paced_times(rate)} GET '' 0 {rate}, the ends on the first and the last processor",
            may_stay_on_tcp=f"in a second each connection has {rate / connections:g} requests, and it moves with the 32nd transfer",
            again=True,
            pace=(connections, rate),
        )

    for rate in RATES:
        for connections in (1, 500):
            over = f"{connections} connection{'s' * (connections > 1)}"
            yield paced_case(f"{rate:,} requests a second over {over}", connections, rate)
    yield paced_case("10,000 connections, each with a request a second", 10000, 10000)
    yield case(
        "one busy connection beside 1,000 idle ones",
        lambda *where: one(*where, 1, idle=1000),
        "exchange PORT 1 1 GET '' 1000",
    )
    yield case(
        "eight pairs at once",
        eight_pairs,
        "8 times exchange PORT 1 1 GET",
        may_stay_on_tcp="who waits long for a processor looks idle",
    )
    yield case(
        "one busy connection beside a stopped client's", beside_a_stopped_peer, "exchange PORT 1 1 GET, twice"
    )
    yield case(
        "four connections, a compiler on each processor",
        beside_compilers,
        "exchange PORT 4 1 GET, while cc -O3 runs on each processor",
        may_stay_on_tcp="who waits long for a processor looks idle",
    )
    yield case(
        "one connection, three busy loops on each processor",
        beside_loops,
        "exchange PORT 1 3 GET, while three shells loop for each processor",
        may_stay_on_tcp="who waits long for a processor looks idle",
        again=True,
    )
