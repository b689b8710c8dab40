"""ZeroMQ's tests and unit tests."""
import re

import cmake
import sources
from suite import FAILED, PASSED, SKIPPED, Suite, Unit

# Unity's: `test_tcp.cpp:42:test_name:PASS`.
LINE = re.compile(r"^\S+?:\d+:(\w+):(PASS|FAIL|IGNORE)", re.MULTILINE)


def parse(name, text):
    kinds = {"PASS": PASSED, "FAIL": FAILED, "IGNORE": SKIPPED}
    return {f"{name}: {test}": kinds[kind] for test, kind in LINE.findall(text)}


class ZeroMQ(Suite):
    name = "zeromq"
    title = "ZeroMQ"

    def prepare(self, place):
        source = sources.debian(place, "zeromq3")
        cmake.build(place, source, "-DBUILD_TESTS=ON", "-DWITH_DOCS=OFF", "-DBUILD_STATIC=ON", "-DENABLE_CURVE=OFF", "-DWITH_PERF_TOOL=OFF")

    def version(self, place):
        return sources.debian_version(place)

    def units(self, place, short):
        return [
            Unit(
                name=name,
                command=lambda *_, command=command: command,
                parse=lambda text, name=name: parse(name, text),
                cwd=place / "build",
                limit=180,
            )
            for name, command in cmake.programs(place)
        ]


SUITE = ZeroMQ()
