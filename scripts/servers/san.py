"""Asks `sanctl status --json` whether a server's connections really are on shared memory."""

import collections
import json
import re
import subprocess

import cpu
from processes import Again, Failure

# The reasons of entries that are sockets, but not connections.
UNCONNECTED = ("listener", "not-connected")
# Why a connection is on TCP of which an end got no processor in time, so that it paused or was not there when the other
# end looked for it.
TIMED = {"handed-over", "peer-returned", "quiet", "pending", "peer-native"}
# Looks of which one at least sees a connection that is there.
ENOUGH_LOOKS = 5
BEFORE_A_LOOK = 0.3
# What a connection goes back to TCP for as it is meant to, to come again.
PASSING = {"quiet", "peer-returned"}


def processes(sanctl, root):
    """What sanctl says of a process and all below it."""
    answer = subprocess.run([sanctl, "status", "--json"], capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise Failure(f"sanctl status --json ended with {answer.returncode}: {answer.stderr}")
    pids = set(cpu.family(root))
    return [process for process in json.loads(answer.stdout)["processes"] if process["pid"] in pids]


def counts(sanctl):
    """Of each process: connections that are on shared memory, and that ever were."""
    answer = subprocess.run([sanctl, "export", "--once"], capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise Failure(f"sanctl export --once ended with {answer.returncode}: {answer.stderr}")
    now, ever = collections.Counter(), collections.Counter()
    for line in answer.stdout.splitlines():
        if found := re.match(r'sanshim_(sockets|connections_moved_total){pid="(\d+)",(.*)} (\d+)', line):
            name, pid, labels, value = found.groups()
            if name != "sockets":
                ever[int(pid)] += int(value)
            elif 'reason="on-san"' in labels and 'provider="shm"' in labels:
                now[int(pid)] += int(value)
    return now, ever


def connections(found):
    return [
        connection
        for process in found
        for connection in process["connections"]
        if connection["reason"] not in UNCONNECTED
    ]


def describe(found):
    kinds = collections.Counter((one["provider"], one["reason"]) for one in found)
    return ", ".join(f"{n} on {provider} ({reason})" for (provider, reason), n in kinds.items()) or "none"


def failure(seen, reasons):
    """What says that the SAN was not used: for these reasons, of what was seen, or there was no time to see it."""
    return Again if seen and reasons <= TIMED else Failure


def look(stage, server, client):
    """What the connections are on a while after the client's start, where it may be anything."""
    stage.pause(BEFORE_A_LOOK)
    found = [] if stage.ended(client) else connections(processes(stage.sanctl, server.pid))
    return describe(found) if found else ""


def require_shm(stage, server, client, count, quiet=0):
    """Returns once the server has `count` connections on shared memory, where each begins on TCP, and no others but
    `quiet` ones; fails if the client ends before that was so."""
    seen, looks = [], 0
    while not stage.ended(client):
        looks += 1
        seen = connections(processes(stage.sanctl, server.pid)) or seen
        others = [one["reason"] for one in seen if one["provider"] != "shm"]
        if len(seen) - len(others) >= count and len(others) <= quiet and set(others) <= TIMED:
            return
        stage.pause(0.02)
    reasons = {one["reason"] for one in seen if one["provider"] != "shm"}
    raise failure(seen or looks < ENOUGH_LOOKS, reasons)(
        f"the SAN was not used: '{client.line}' never had all of its {count} connections to "
        f"'{server.line}' on shared memory; sanctl status last showed {describe(seen)}.\n"
        f"Its output:\n{stage.output(client)}"
    )


def require_kept(stage, server, client, quiet=0):
    """After the client's end: fails if a connection of the server's is left on TCP, or one went back for another
    reason than that it paused for a moment. A proxy keeps its own, up to `quiet` of them, for the next client: they
    pause."""
    found = processes(stage.sanctl, server.pid)
    left = [one for one in connections(found) if one["provider"] != "shm"]
    if len(left) <= quiet and {one["reason"] for one in left} <= PASSING:
        left = []
    returned = [process["returned"] for process in found if process["returned"].keys() - PASSING]
    if found and not left and not returned:
        return
    raise failure(found, {one["reason"] for one in left}.union(*returned))(
        f"the SAN was not used to the end: of the connections of '{client.line}' to '{server.line}' sanctl status "
        f"showed {describe(left)}, and gone back to TCP {returned or 'none'}, in {len(found)} processes."
    )
