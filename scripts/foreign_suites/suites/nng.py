"""nng's tests."""
import re

import cmake
import sources
from suite import FAILED, PASSED, Suite

# acutest's, `Test name... [ OK ]`; the older tests are known as a whole.
BEGINS = re.compile(r"^Test (.+?)\.\.\. ", re.MULTILINE)
ENDS = re.compile(r"\[ +(OK|FAILED) +\]")


def parse(name, text):
    found, begun = {}, list(BEGINS.finditer(text))
    for each, following in zip(begun, [*begun[1:], None]):
        ends = ENDS.search(text, each.end(), following.start() if following else len(text))
        found[f"{name}: {each[1]}"] = ends and (PASSED if ends[1] == "OK" else FAILED)
    return found


class Nng(Suite):
    name = "nng"
    title = "nng"

    def prepare(self, place):
        source = sources.debian(place, "nng")
        cmake.build(place, source, "-DNNG_TESTS=ON", "-DNNG_TOOLS=ON")

    def version(self, place):
        return sources.debian_version(place)

    def units(self, place, short):
        return cmake.units(place, parse)


SUITE = Nng()
