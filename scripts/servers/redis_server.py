"""Starts a redis-server that writes no file unless it is told to."""


def start(stage, transport, *options, starter=(), endpoint=None):
    """The server, started by the command `starter` if there is one, and what its clients find it by."""
    endpoint = endpoint or stage.endpoint(transport)
    where = ["--port", str(endpoint.port), "--bind", "127.0.0.1"]
    if endpoint.path:
        where += ["--unixsocket", endpoint.path]
    server = stage.start(transport, [*starter, "redis-server", *where, "--save", "", *options])
    stage.wait_listening(server, endpoint)
    return server, ["-s", endpoint.path] if endpoint.path else ["-p", str(endpoint.port)]
