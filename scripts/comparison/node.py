"""Measures a Node HTTP server with the project's own generator, over keep-alive connections."""

import load
from cases import Case

REQUEST = "GET / HTTP/1.1\r\nHost: here\r\n\r\n"


def measure(stage, transport, seconds, connections):
    endpoint = stage.endpoint(transport)
    server = stage.start(
        transport, ["node", str(load.SOURCES / "node_server.js"), str(endpoint.path or endpoint.port)]
    )
    stage.wait_listening(server, endpoint)
    # This run lets the interpreter compile before the measurement what it compiles as it runs.
    warm = [load.compiled(stage, "exchange.c"), endpoint.path or endpoint.port, connections, 0.5, REQUEST]
    stage.finish(stage.start(transport, [str(word) for word in warm]))
    figure = load.exchange(stage, transport, seconds, endpoint, server, connections, REQUEST)
    stage.end(server)
    return figure


def cases():
    for connections in (1, 32):
        yield Case(
            "node",
            f"HTTP server, {connections} connection{'s' * (connections > 1)}",
            "requests/s",
            f"exchange PORT {connections} 1 'GET / …' (node node_server.js)",
            lambda *where, what=connections: measure(*where, what),
            unix=True,
            headline=connections > 1,
        )
