"""Measures RabbitMQ, an Erlang server, with a publisher and a consumer of Debian's pika."""

import load
from cases import Case
from processes import Endpoint, free_port
from python import PYTHON

SERVER = "/usr/lib/rabbitmq/bin/rabbitmq-server"


def measure(stage, transport, seconds):
    endpoint, names = stage.endpoint(transport), Endpoint(free_port())
    # The measurement starts Erlang's name service itself, because a service that a node starts stays when the node
    # ends.
    service = stage.start(transport, ["epmd", "-port", str(names.port), "-address", "127.0.0.1"])
    stage.wait_listening(service, names)
    folder = stage.folder / f"rabbitmq-{endpoint.port}"
    folder.mkdir()
    (folder / "enabled_plugins").write_text("[].\n")
    environment = {
        "HOME": folder,
        "ERL_EPMD_PORT": names.port,
        "RABBITMQ_NODENAME": f"compare-{endpoint.port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": endpoint.port,
        "RABBITMQ_DIST_PORT": free_port(),
        "RABBITMQ_MNESIA_BASE": folder,
        "RABBITMQ_LOG_BASE": folder,
        "RABBITMQ_ENABLED_PLUGINS_FILE": folder / "enabled_plugins",
        "RABBITMQ_CONF_ENV_FILE": folder / "none",
        "RABBITMQ_CONFIG_FILE": folder / "none",
    }
    server = stage.start(transport, [SERVER], **{name: str(value) for name, value in environment.items()})
    stage.wait_listening(server, endpoint)
    command = [PYTHON, str(load.SOURCES / "rabbitmq_client.py"), str(endpoint.port), str(seconds)]
    figure = load.of_report(load.run(stage, transport, command, server, 2, quiet=2))
    stage.end(server)
    stage.end(service)
    return figure


def cases():
    yield Case(
        "rabbitmq",
        "publish and consume, 64 bytes",
        "messages/s",
        "rabbitmq_client.py PORT 1 (rabbitmq-server)",
        measure,
        headline=True,
    )
