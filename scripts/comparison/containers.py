"""Measures redis in a container. Its client is in the same pod, in another container on a bridge, or on another
network, from which the host's published port leads to the server. Each container has a network and a /dev/shm of its
own. The containers share one folder, as a Docker volume. One row has no container, to compare with. A run is long, because
connections between network namespaces move only after the proof that both ends belong together."""

import os
import pathlib
import time

import redis
from cases import Case
from namespaces import Net, may_translate
from processes import HANG, Failure, free_port

SERVER, NEIGHBOUR, BRIDGE = "10.77.0.2", "10.77.0.3", "10.77.0.1"
CLIENT, GATEWAY, PUBLISHED = "10.1.0.2", "10.1.0.1", 6380
CLIENTS = 50
# A measurement is so many times as long as others.
LONGER = 4
OWN_MEMORY = 'mount -t tmpfs tmpfs /dev/shm && exec "$@"'
# This command begins a container's programs.
INSIDE = ["unshare", "--mount", "sh", "-c", OWN_MEMORY, "sh"]
PLACES = {
    "pod": "in one pod",
    "bridge": "two containers, bridge",
    "published": "two containers, published port",
}


def rules(port):
    return f"""
table ip nat {{
  chain in {{
    type nat hook prerouting priority -100;
    ip daddr {GATEWAY} tcp dport {PUBLISHED} dnat to {SERVER}:{port}
  }}
  chain out {{
    type nat hook postrouting priority 100;
    ip daddr {SERVER} tcp dport {port} masquerade
  }}
}}
"""


class Containers:
    """The networks of one measurement. They end with its processes."""

    def __init__(self, stage, port):
        net = Net(stage, is_own=False)
        self.server, self.neighbour, self.client = (net.container() for _ in range(3))
        self.processes = [one.process for one in (self.client, self.neighbour, self.server, net.host)]
        net.host.forward()
        net.bridge("br0", f"{BRIDGE}/24")
        net.link(self.server, f"{SERVER}/24", bridge="br0")
        net.link(self.neighbour, f"{NEIGHBOUR}/24", bridge="br0")
        net.link(self.client, f"{CLIENT}/24", outer=f"{GATEWAY}/24")
        net.host.rules(rules(port))

    def wait(self, stage, server, port):
        """Waits until the server listens."""
        table = pathlib.Path(f"/proc/{self.server.process.pid}/net/tcp")
        deadline = time.monotonic() + HANG
        while f":{port:04X} 00000000:0000 0A" not in table.read_text():
            if stage.ended(server) or time.monotonic() > deadline:
                raise Failure(f"{server.line} does not listen:\n{stage.output(server)}")
            stage.pause(0.02)

    def of_client(self, place, port):
        """Gives the container of the client, and the address and port that it dials."""
        return {
            "pod": (self.server, "127.0.0.1", port),
            "bridge": (self.neighbour, SERVER, port),
            "published": (self.client, GATEWAY, PUBLISHED),
        }[place]


def measure(stage, transport, seconds, place, is_met=True, has_folder=True):
    """Measures one place of the client. `is_met`: the server runs under the library, too. `has_folder`: both ends have
    the folder."""
    if transport == "unix":
        # The Unix socket lies in a volume: it does not matter in which networks its ends are.
        return without_container(stage, transport, seconds)
    # The name is short, because the folder of a configuration has at most 33 bytes.
    volume = stage.folder / "v"
    volume.mkdir(exist_ok=True)
    volume.chmod(0o1777)
    port = free_port()
    containers = Containers(stage, port)
    # A program that does not run under the library does not use this.
    given = ["env", f"SANSHIM_FOLDER={volume}"] if has_folder else []
    begin = [*given, *containers.server.inside, *INSIDE]
    options = ["--bind", "0.0.0.0", "--port", str(port), "--save", "", "--protected-mode", "no"]
    server = stage.start(transport if is_met else "tcp", [*begin, "redis-server", *options])
    containers.wait(stage, server, port)
    space, address, port = containers.of_client(place, port)
    begin, where = [*given, *space.inside, *INSIDE], ["-h", address, "-p", str(port)]
    stage.finish(stage.start(transport, [*begin, "redis-cli", *where, "set", "key:__rand_int__", "xxx"]))
    arguments = [*where, "-t", "get", "-c", str(CLIENTS)]
    key = (transport, place, is_met, has_folder)
    on_san = CLIENTS if is_met and has_folder else 0
    figure = redis.run_for(LONGER * seconds, key, stage, transport, server, arguments, on_san, begin)
    for process in (server, *containers.processes):
        stage.end(process)
    return figure


def without_container(stage, transport, seconds):
    return redis.measure(stage, transport, LONGER * seconds, "get", CLIENTS, 1)


def lacking():
    """Gives what the containers need and cannot have here."""
    return [] if os.geteuid() == 0 and may_translate(["unshare", "-n"]) else ["root's rights, or the kernel's NAT"]


def cases():
    def case(label, measure, **more):
        return Case(
            "containers",
            f"redis GET, {CLIENTS} connections, {label}",
            "requests/s",
            f"redis-benchmark -t get -c {CLIENTS}",
            measure,
            sockmap=False,
            **more,
        )

    yield case("no container", without_container, unix=True)
    for place, label in PLACES.items():
        yield case(label, lambda *how, place=place: measure(*how, place), unix=True)
    yield case(
        "the server without the library",
        lambda *how: measure(*how, "bridge", is_met=False),
        may_stay_on_tcp="its server does not run under the library",
        again=True,
    )
    yield case(
        "no folder",
        lambda *how: measure(*how, "bridge", has_folder=False),
        may_stay_on_tcp="its ends have no folder in which they could meet",
        again=True,
    )
