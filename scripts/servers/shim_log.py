"""What the library's log tells of connections."""

import collections
import re

# A connection's change, as the library logs it at the level info.
CHANGE = re.compile(r"^sanshim\[(\d+)\] info: fd \d+: (\S+) (\S+) provider=(\w+) reason=\S+ role=(\w+)", re.MULTILINE)


def moved(log, role):
    """How many connections the file tells of, and how many of these were on the SAN at some time. The lines of one role
    count, so that each connection does once: "acceptor" or "connector"."""
    carried = collections.defaultdict(set)
    text = log.read_text(errors="replace") if log.exists() else ""
    for pid, local, peer, provider, of in CHANGE.findall(text):
        if of == role:
            carried[pid, local, peer].add(provider)
    return len(carried), sum(providers != {"tcp"} for providers in carried.values())
