"""ZeroMQ's tests over TCP, Unix sockets and in one process, with those of its draft sockets. Its unit tests take a
second, static library and no socket: left out, as are WebSocket over TLS, PGM and NORM. It uses its own ciphers: with
libsodium its test of them aborts."""
import fnmatch
import re

import cmake
import sources
from suite import FAILED, PASSED, SKIPPED, Suite

# Unity's: `file:line:name:PASS`, when a test has ended.
LINE = re.compile(r"^.*?:\d+:(\w+):(PASS|FAIL|IGNORE)", re.MULTILINE)
OPTIONS = """
-DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-O1 -DENABLE_DRAFTS=ON -DWITH_LIBSODIUM=OFF -DWITH_TLS=OFF
-DBUILD_STATIC=OFF -DWITH_PERF_TOOL=OFF -DWITH_DOCS=OFF -DWITH_DOC=OFF -DENABLE_CPACK=OFF
""".split()

# They want inputs that are not in the source, and a kernel with TIPC; the last, of Unix sockets, has 0.25 s for
# each step, which a busy machine does not always keep.
LEFT_OUT = ("*_fuzzer", "*_tipc", "test_filter_ipc")


def parse(name, text):
    outcomes = {"PASS": PASSED, "FAIL": FAILED, "IGNORE": SKIPPED}
    return {f"{name}: {test}": outcomes[how] for test, how in LINE.findall(text)}


class ZeroMq(Suite):
    name = "zeromq"
    title = "ZeroMQ"
    forks = True

    def prepare(self, place):
        cmake.build(place, sources.debian(place, "zeromq3"), *OPTIONS)

    def version(self, place):
        return sources.debian_version(place)

    def units(self, place, short):
        return [
            unit
            for unit in cmake.units(place, parse)
            if not any(fnmatch.fnmatch(unit.name, one) for one in LEFT_OUT)
        ]


SUITE = ZeroMq()
