"""Measures Python: asyncio's streams, and gRPC, with both ends in the interpreter of the distribution."""

import load
from cases import Case

# gRPC comes as a package of Debian's, for Debian's interpreter.
PYTHON = "/usr/bin/python3"


def measure(stage, transport, seconds, name, connections, *options):
    endpoint = stage.endpoint(transport)
    where = str(endpoint.path or endpoint.port)
    if name == "grpc":
        where = f"unix:{endpoint.path}" if endpoint.path else endpoint.address
    server = stage.start(transport, [PYTHON, str(load.SOURCES / f"{name}_server.py"), where])
    stage.wait_listening(server, endpoint)
    command = [PYTHON, str(load.SOURCES / f"{name}_client.py"), where, *options, str(seconds)]
    figure = load.of_report(load.run(stage, transport, command, server, connections))
    stage.end(server)
    return figure


def asyncio_cases():
    for connections in (1, 16):
        yield Case(
            "asyncio",
            f"64-byte lines, {connections} connection{'s' * (connections > 1)}",
            "requests/s",
            f"asyncio_client.py PORT {connections} 1 (asyncio_server.py)",
            lambda *where, what=connections: measure(*where, "asyncio", what, str(what)),
            unix=True,
        )


def grpc_cases():
    yield Case(
        "grpc",
        "64-byte calls, 1 channel",
        "requests/s",
        "grpc_client.py ADDRESS 1 (grpc_server.py)",
        lambda *where: measure(*where, "grpc", 0),
        may_stay_on_tcp="the interpreter's threads pause between the messages of a call",
        unix=True,
        headline=True,
    )
