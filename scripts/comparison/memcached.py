"""Measures memcached with the project's own generator: GET and SET of 100 bytes over long-lived connections."""

import os

import load
from cases import Case

SET = "set key 0 0 100\r\n" + "x" * 100 + "\r\n"
GET = "get key\r\n"


def measure(stage, transport, seconds, request, connections):
    endpoint = stage.endpoint(transport)
    where = f"-s {endpoint.path}" if endpoint.path else f"-l 127.0.0.1 -p {endpoint.port} -U 0"
    user = "-u root" if os.geteuid() == 0 else ""
    server = stage.start(transport, f"memcached -t 2 {where} {user}".split())
    stage.wait_listening(server, endpoint)
    figure = load.exchange(stage, transport, seconds, endpoint, server, connections, request, first=SET)
    stage.end(server)
    return figure


def cases():
    for label, request, connections in (
        ("get, 1 connection", GET, 1),
        ("get, 32 connections", GET, 32),
        ("set, 32 connections", SET, 32),
    ):
        yield Case(
            "memcached",
            f"{label}",
            "requests/s",
            f"exchange PORT {connections} 1 '{request.split()[0]} key …' (memcached -t 2)",
            lambda *where, what=(request, connections): measure(*where, *what),
            unix=True,
            headline=label == "get, 32 connections",
        )
