"""Ruby's own tests of sockets, its network libraries, TLS, IO and processes, with the ruby that is installed."""
import re

import sources
from suite import FAILED, PASSED, SKIPPED, Suite, Unit

FILES = (
    "socket/test_*.rb", "net/*/test_*.rb", "drb/test_*.rb", "open-uri/test_*.rb", "openssl/test_ssl*.rb", "openssl/test_pair.rb",
    "ruby/test_io*.rb", "ruby/test_process.rb", "ruby/test_thread*.rb", "ruby/test_signal.rb", "io/*/test_*.rb", "monitor/test_*.rb",
)  # fmt: skip

BEGINS = re.compile(r"^\[ *\d+/\d+\] (\S+#\S+)( = [\d.]+ s)?", re.MULTILINE)
ENDS = re.compile(r"^ +\d+\) (Failure|Error|Skipped|Timeout):\n(\S+#\S+?):?(?: |$)", re.MULTILINE)


def parse(text):
    """`[1/8] Class#test = 0.01 s`, and what is not well once more at the end."""
    complete = re.search(r"^Finished tests in", text, re.MULTILINE)
    found = {test: PASSED if ended or complete else None for test, ended in BEGINS.findall(text)}
    for kind, test in ENDS.findall(text):
        found[test] = SKIPPED if kind == "Skipped" else FAILED
    return found


class Ruby(Suite):
    name = "ruby"
    title = "Ruby"
    forks = True

    def prepare(self, place):
        sources.install(place, "ruby3.1")
        sources.debian(place, "ruby3.1")

    def version(self, place):
        return sources.debian_version(place)

    def units(self, place, short):
        source = place / "source"
        files = sorted(file for pattern in FILES for file in (source / "test").glob(pattern))
        return [
            Unit(
                name=str(file.relative_to(source / "test").with_suffix("")),
                command=lambda *_, file=file: [
                    "ruby3.1", "-I", "tool/lib", "test/runner.rb", "--seed=1", "--verbose", file.relative_to(source),
                ],  # fmt: skip
                parse=parse,
                cwd=source,
                stall=120,
                limit=400,
            )
            for file in files
        ]


SUITE = Ruby()
