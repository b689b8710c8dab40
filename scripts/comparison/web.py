"""Measures nginx: a small static file over keep-alive connections (wrk), through a proxy, and over short connections
(ab)."""

import re

import load
from cases import SHORT, Case, Figure
from nginx_server import start
from processes import Failure

UPSTREAM = "upstream behind {{ server {address}; keepalive 64; keepalive_requests 100000000; }}"
PROXIED = 8
PROXY = 'location / { proxy_pass http://behind; proxy_http_version 1.1; proxy_set_header Connection ""; }'


def measure(stage, transport, seconds, threads, connections):
    server, endpoint = start(stage, transport, threads)
    figure = load.wrk(stage, transport, seconds, f"{endpoint.address}/index.html", server, connections, threads)
    stage.end(server)
    return figure


def measure_proxy(stage, transport, seconds):
    """Measures a proxy. wrk has no AF_UNIX: for that transport only the connections behind the proxy go over
    AF_UNIX."""
    behind, inner = start(stage, transport, name="behind")
    address = f"unix:{inner.path}" if inner.path else inner.address
    http = UPSTREAM.format(address=address)
    server, outer = start(stage, transport, http=http, server=PROXY, listen_on="tcp")
    return proxied(stage, transport, seconds, server, outer, behind)


def proxied(stage, transport, seconds, server, outer, behind):
    """Gives the figure of a proxy. More connections than wrk's are on the SAN. Some of those behind the proxy pause,
    and they stay when wrk has gone."""
    where = f"{outer.address}/index.html"
    figure = load.wrk(stage, transport, seconds, where, server, PROXIED, 2, PROXIED + 1, PROXIED, [behind])
    stage.end(server)
    stage.end(behind)
    return figure


def measure_short(stage, transport, seconds, workers, option):
    server, endpoint = start(stage, transport, workers, option=option)
    # ab takes a number of requests. A run below a second only shows whether the measurement works.
    requests = 20000 if seconds >= 1 else 5000
    command = f"ab -q -n {requests} -c 50 http://{endpoint.address}/index.html"
    done = load.run(stage, transport, command.split(), server, 0, is_short=True)
    stage.end(server)
    rate = re.search(r"Requests per second:\s+([\d.]+)", done.text)
    failed = re.search(r"Failed requests:\s+(\d+)", done.text)
    if not rate or not failed or failed.group(1) != "0" or "Non-2xx" in done.text:
        raise Failure(f"{command} gave no clean figure:\n{done.text}")
    # ab gives the latency in whole milliseconds, which is too coarse to compare.
    return Figure(float(rate.group(1)), cpu=done.per_million(requests), carried=done.carried)


def cases():
    for threads, connections in ((1, 1), (2, 32)):
        yield Case(
            "nginx",
            f"600-byte file, {connections} connection{'s' * (connections > 1)}",
            "requests/s",
            f"wrk -t{threads} -c{connections} --latency (nginx with {threads} worker{'s' * (threads > 1)})",
            lambda *where, what=(threads, connections): measure(*where, *what),
            headline=connections > 1,
        )
    yield Case(
        "nginx",
        f"proxy to nginx, {PROXIED} connections",
        "requests/s",
        f"wrk -t2 -c{PROXIED} --latency (nginx before an upstream of nginx; AF_UNIX between the two)",
        measure_proxy,
        unix=True,
    )
    for workers, option, how in ((1, "", "1 worker"), (2, " reuseport", "2 workers, reuseport")):
        yield Case(
            "nginx",
            f"connection per request, {how}",
            "requests/s",
            f"ab -n 20000 -c 50 (nginx with {how})",
            lambda *where, what=(workers, option): measure_short(*where, *what),
            may_stay_on_tcp=SHORT,
            again=True,
            headline=workers == 1,
        )
