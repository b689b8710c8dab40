"""Measures the JDK's HTTP server with wrk, over keep-alive connections."""

import load
from cases import Case

CONNECTIONS = 16


def measure(stage, transport, seconds):
    if not (stage.folder / "Server.class").exists():
        stage.quietly(["javac", "-d", stage.folder, load.SOURCES / "Server.java"])
    endpoint = stage.endpoint(transport)
    # Without `nodelay` the second part of an answer waits for the acknowledgement of the first.
    options = "-XX:+UseSerialGC -Xmx256m -Dsun.net.httpserver.nodelay=true"
    command = f"java {options} -cp {stage.folder} Server {endpoint.port}".split()
    server = stage.start(transport, command)
    stage.wait_listening(server, endpoint)
    where = f"{endpoint.address}/"
    # This run lets the virtual machine compile before the measurement what it compiles as it runs.
    stage.finish(stage.start(transport, f"wrk -t1 -c{CONNECTIONS} -d3s http://{where}".split()))
    figure = load.wrk(stage, transport, seconds, where, server, CONNECTIONS, threads=1)
    stage.end(server)
    return figure


def cases():
    yield Case(
        "java",
        f"HTTP server, {CONNECTIONS} connections",
        "requests/s",
        f"wrk -t1 -c{CONNECTIONS} --latency (com.sun.net.httpserver)",
        measure,
        headline=True,
    )
