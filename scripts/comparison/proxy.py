"""Measures haproxy in front of nginx: each request goes over two connections."""

import web
from cases import Case

CONFIGURATION = """
global
    nbthread 2
defaults
    mode http
    timeout connect 5s
    timeout client 30s
    timeout server 30s
    http-reuse always
frontend before
    bind {outer}
    default_backend behind
backend behind
    server nginx {inner}
"""

# core/src/switch/spin/turn.rs says what a thread on the SAN does that always finds work.
SHARED_CORES = (
    "Two threads of wrk, two of haproxy and nginx are busy at once. Where there are fewer processors, they share them: a thread on the "
    "SAN that always finds work goes on, and gives its processor away every 100 µs. Most requests are faster for it; those whose "
    "thread waits for a processor meanwhile are the slowest, and make the p99."
)


def measure(stage, transport, seconds):
    behind, inner = web.start(stage, transport, name="behind")
    # wrk has no AF_UNIX. For that transport only the connection behind the proxy goes over AF_UNIX.
    outer = stage.endpoint("tcp")
    address = f"unix@{stage.folder}/{inner.path}" if inner.path else inner.address
    settings = stage.folder / "haproxy.cfg"
    settings.write_text(CONFIGURATION.format(outer=outer.address, inner=address))
    server = stage.start(transport, ["haproxy", "-db", "-f", str(settings)])
    stage.wait_listening(server, outer)
    return web.proxied(stage, transport, seconds, server, outer, behind)


def cases():
    yield Case(
        "haproxy",
        f"in front of nginx, {web.PROXIED} connections",
        "requests/s",
        f"wrk -t2 -c{web.PROXIED} --latency (haproxy with 2 threads; AF_UNIX between it and nginx)",
        measure,
        unix=True,
        headline=True,
        footnote=SHARED_CORES,
    )
