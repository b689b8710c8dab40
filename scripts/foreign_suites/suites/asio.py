"""Boost.Asio's tests that use sockets, signals and its loop, each with epoll and with select. Left out are those that only compile, and those
that read and write streams in memory. Its two programs that measure round trips count as a test each."""
import re

import scripted
import sources
from suite import FAILED, PASSED, Suite, Unit

TESTS = """
buffered_read_stream buffered_stream buffered_write_stream connect generic/stream_protocol io_context ip/tcp ip/udp ip/unicast ip/v6_only
local/connect_pair local/stream_protocol socket_base ssl/stream strand
""".split()
PAIR = ("latency/tcp_server", "latency/tcp_client")
# Bytes of each of the hundred thousand round trips, in turn over so many connections.
ROUND_TRIPS = {64: 1, 1000: 8, 5000: 3}
WAYS = {"epoll": "", "select": "-DBOOST_ASIO_DISABLE_EPOLL"}
LINE = re.compile(r"^(\S.*) (passed|failed)$", re.MULTILINE)


def parse(name, text):
    """`test_accept passed`, when it has."""
    return {f"{name}: {test}": PASSED if how == "passed" else FAILED for test, how in LINE.findall(text)}


class Asio(Suite):
    name = "asio"
    title = "Boost.Asio"

    def programs(self, place):
        """Each program's name, file, source, and the flag of its way."""
        return [
            (f"{test} with {way}", place / "build" / f"{test.replace('/', '_')}_{way}", f"libs/asio/test/{test}.cpp", flag)
            for test in (*TESTS, *PAIR)
            for way, flag in WAYS.items()
        ]

    def prepare(self, place):
        sources.install(place, "g++", "make", "libc6-dev", "libboost1.74-dev", "libssl-dev", "iproute2")
        source = sources.debian(place, "boost1.74")
        (place / "build").mkdir(exist_ok=True)
        (place / "build" / "Makefile").write_text(
            "".join(
                f"all: {program}\n{program}: {file}\n\tg++ -w -O0 {flag} -o $@ $< -pthread -lssl -lcrypto\n"
                for _, program, file, flag in self.programs(place)
            )
        )
        sources.build(place, source, ["make", sources.jobs(), "-f", place / "build" / "Makefile", "all"])

    def version(self, place):
        return sources.debian_version(place)

    def units(self, place, short):
        programs = {name: program for name, program, _, _ in self.programs(place)}
        tests = [
            Unit(
                name=name,
                command=lambda *_, program=program: [program],
                parse=lambda text, name=name: parse(name, text),
                limit=120,
            )
            for name, program in programs.items()
            if not name.startswith(PAIR)
        ]
        return tests + [
            scripted.unit(
                f"round trips of {size} bytes with {way}",
                [programs[f"{PAIR[1]} with {way}"], "127.0.0.1", "7000", str(connections), str(size), "block"],
                setup=f"{programs[f'{PAIR[0]} with {way}']} 7000 {connections} {size} block & until ss -ltn | grep -q :7000; do sleep 0.1; done",
                stall=200,
                limit=300,
            )
            for way in WAYS
            for size, connections in ROUND_TRIPS.items()
        ]


SUITE = Asio()
