"""The paths: where the asker is, what it dials, and what lies between it and the server."""

import dataclasses
import pathlib
import sys

import namespaces

PROXIES = pathlib.Path(__file__).parent / "proxies.py"
CLIENT, SERVER, SERVICE = "10.1.0.2", "10.2.0.2", "10.9.0.1"
HOST_OF_CLIENT, HOST_OF_SERVER, HOST_OF_BRIDGE = "10.1.0.1", "10.2.0.1", "10.77.0.1"
ON_BRIDGE = "10.77.0.2", "10.77.0.3"
BY_IPV6 = "fd77::2", "fd77::3"
# Ports of the server in its container, each treated in another way, and of a server on the host.
PLAIN, MASQUERADED, RANDOM, REDIRECTED, TRANSPARENT = 7000, 7001, 7002, 7003, 7004
OF_HOST, BY_OTHER_NAME = 7010, 7011
# Of a server as people run it, in a container on the bridge, and under which port the host publishes it.
SERVED, PUBLISHED = 7100, 83
# Of what listens on the host and passes bytes on.
SOCAT, SPLICE, SPIN, SPLICE_UNSEEN, SPIN_UNSEEN = 9001, 9002, 9003, 9004, 9005
RULES = f"""
table ip nat {{
  chain in {{
    type nat hook prerouting priority -100;
    ip daddr {SERVICE} tcp dport 80 dnat to {SERVER}:{PLAIN}
    ip daddr {HOST_OF_CLIENT} tcp dport 81 dnat to {SERVER}:{MASQUERADED}
    ip daddr {SERVICE} tcp dport 82 dnat to {SERVER}:{RANDOM}
    ip daddr {HOST_OF_CLIENT} tcp dport {PUBLISHED} dnat to {ON_BRIDGE[1]}:{SERVED}
  }}
  chain own {{
    type nat hook output priority -100;
    ip daddr {SERVICE} tcp dport 80 dnat to {SERVER}:{PLAIN}
    ip daddr 127.0.0.1 tcp dport {BY_OTHER_NAME} redirect to :{OF_HOST}
  }}
  chain out {{
    type nat hook postrouting priority 100;
    ip daddr {SERVER} tcp dport {MASQUERADED} masquerade
    ip daddr {SERVER} tcp dport {RANDOM} masquerade fully-random
    ip daddr {ON_BRIDGE[1]} tcp dport {SERVED} masquerade
  }}
}}
"""
REDIRECTION = f"""
table ip nat {{
  chain in {{
    type nat hook prerouting priority -100;
    tcp dport {REDIRECTED} redirect to :{PLAIN}
  }}
}}
"""


@dataclasses.dataclass(frozen=True)
class Path:
    """`asker` names a namespace. `moves`: most connections come to the SAN, or none may, or (None) any."""

    name: str
    asker: str
    address: str
    port: int
    moves: bool | None
    # At the same time connections go over this one, from the same source ports.
    beside: "Path | None" = None
    is_translated: bool = True


PATHS = [
    Path("bridge", "one", ON_BRIDGE[1], PLAIN, True, is_translated=False),
    Path("bridge-ipv6", "one", BY_IPV6[1], PLAIN, True, is_translated=False),
    Path("host-to-container", "host", ON_BRIDGE[1], PLAIN, True, is_translated=False),
    Path("container-to-host", "one", HOST_OF_BRIDGE, OF_HOST, True, is_translated=False),
    Path("routed", "client", SERVER, PLAIN, True, is_translated=False),
    Path("service", "client", SERVICE, 80, True),
    Path("service-from-host", "host", SERVICE, 80, True),
    Path("published", "client", HOST_OF_CLIENT, 81, True),
    Path("random", "client", SERVICE, 82, True),
    Path("redirected", "client", SERVER, REDIRECTED, True),
    Path("redirected-on-host", "host", "127.0.0.1", BY_OTHER_NAME, True),
    Path("on-host", "host", "127.0.0.1", OF_HOST, True, is_translated=False),
    Path("socat", "client", HOST_OF_CLIENT, SOCAT, False, is_translated=False),
    Path("splice", "client", HOST_OF_CLIENT, SPLICE, False, is_translated=False),
    Path("spin", "client", HOST_OF_CLIENT, SPIN, False, is_translated=False),
    # These have the client's address and port towards the server: the ends find each other, and the proof tells.
    Path("transparent-splice", "client", HOST_OF_CLIENT, SPLICE_UNSEEN, False, is_translated=False),
    Path("transparent-spin", "client", HOST_OF_CLIENT, SPIN_UNSEEN, False, is_translated=False),
    # Two connections from one address and port, to two addresses that lead to two programs.
    Path("twins", "client", SERVICE, 80, None, beside=Path("twin", "client", HOST_OF_BRIDGE, OF_HOST, None)),
]

# Where the client of a server is that people run, and what it dials.
PLACES = [
    Path("pod", "two", "127.0.0.1", SERVED, True, is_translated=False),
    Path("bridge", "one", ON_BRIDGE[1], SERVED, True, is_translated=False),
    Path("published", "client", HOST_OF_CLIENT, PUBLISHED, True),
]


def build(net):
    """The namespaces by name, with all that leads from one to another."""
    made = {"host": net.host} | {name: net.container() for name in ("client", "server", "one", "two")}
    net.host.forward()
    net.link(made["client"], f"{CLIENT}/24", outer=f"{HOST_OF_CLIENT}/24")
    net.link(made["server"], f"{SERVER}/24", outer=f"{HOST_OF_SERVER}/24")
    net.bridge("br0", f"{HOST_OF_BRIDGE}/24")
    for name, address, by_ipv6 in zip(("one", "two"), ON_BRIDGE, BY_IPV6):
        device = net.link(made[name], f"{address}/24", bridge="br0")
        made[name].run("ip", "address", "add", f"{by_ipv6}/64", "dev", device, "nodad")
    net.host.run("ip", "route", "add", f"{SERVICE}/32", "via", SERVER)
    if namespaces.may_translate():
        net.host.rules(RULES)
        made["server"].rules(REDIRECTION)
    # What the server answers a transparent program in the middle is for the host, whatever address it has.
    net.host.run("ip", "rule", "add", "iif", "h2", "ipproto", "tcp", "sport", str(TRANSPARENT), "lookup", "100")
    net.host.run("ip", "route", "add", "local", "default", "dev", "lo", "table", "100")
    return made


def servers():
    """Where servers of ours run, and their ports."""
    return [("server", [PLAIN, MASQUERADED, RANDOM, TRANSPARENT]), ("two", [PLAIN]), ("host", [OF_HOST])]


def proxies():
    """Commands of what passes bytes on, on the host."""
    target = f"{SERVER}:{PLAIN}"
    yield ["socat", f"TCP-LISTEN:{SOCAT},fork,reuseaddr,nodelay,backlog=512", f"TCP:{target},nodelay"]
    for kind, port in ("splice", SPLICE), ("spin", SPIN):
        yield [sys.executable, PROXIES, kind, port, target]
    for kind, port in ("splice", SPLICE_UNSEEN), ("spin", SPIN_UNSEEN):
        yield [sys.executable, PROXIES, kind, port, f"{SERVER}:{TRANSPARENT}", "transparent"]
