"""libevent's regress, with each way of waiting that it has."""
import re

import sources
from suite import FAILED, PASSED, SKIPPED, Suite, Unit

WAYS = {"epoll": ("POLL", "SELECT"), "poll": ("EPOLL", "SELECT"), "select": ("EPOLL", "POLL")}

# What waits long is left out of the short form.
SHORT = [f"{group}/.." for group in ("main", "bufferevent", "listener", "et", "thread", "evbuffer", "signal", "rpc", "ssl")]
SHORT += [f"http/{test}" for test in ("base", "post", "put", "delete", "persist_connection", "chunk_out", "stream_out")]

LINE = re.compile(r"^([\w/-]+): (?:\[forking\] )?(.*)$")
ENDS = re.compile(r"(OK|FAILED|SKIPPED|DISABLED)\b")


def parse(text):
    """tinytest's: `group/test: [forking] OK`, with what the test says in between."""
    found, current = {}, None
    for line in text.splitlines():
        begins = LINE.match(line)
        if begins and "/" in begins[1]:
            current = begins[1]
            found.setdefault(current, None)
            line = begins[2]
        ends = ENDS.search(line)
        if current and ends and found[current] is None:
            found[current] = {"OK": PASSED, "FAILED": FAILED}.get(ends[1], SKIPPED)
    return found


class Libevent(Suite):
    name = "libevent"
    title = "libevent"
    forks = True

    def prepare(self, place):
        sources.install(place, "gcc", "make", "libc6-dev", "libssl-dev", "zlib1g-dev", "autoconf", "automake", "libtool")
        source = sources.debian(place, "libevent")
        sources.build(place, source, ["autoreconf", "-fi"], ["./configure", "--disable-shared", "--disable-samples"], ["make", sources.jobs()])

    def version(self, place):
        return sources.debian_version(place)

    def units(self, place, short):
        return [
            Unit(
                name=f"regress with {way}",
                command=lambda _, done, only: [
                    place / "source" / "test" / "regress",
                    *(sorted(only) or (SHORT if short else ())),
                    *(f":{test}" for test in sorted(done)),
                ],
                parse=parse,
                cwd=place / "source" / "test",
                env={f"EVENT_NO{other}": "1" for other in others},
                limit=600,
                selects=True,
            )
            for way, others in WAYS.items()
            if way == "epoll" or not short
        ]


SUITE = Libevent()
