"""CPython's own tests of what uses sockets, descriptors, processes, signals and threads: Debian's package of them."""
import functools
import re

import sources
from suite import FAILED, PASSED, SKIPPED, Suite, Unit

# Those that take long come first, for nothing is to be done beside the last.
MODULES = """
concurrent_futures multiprocessing_spawn multiprocessing_forkserver multiprocessing_fork asyncio signal ssl xmlrpc threading subprocess
multiprocessing_main_handling thread threadsignals logging socket select selectors poll epoll asyncore asynchat telnetlib ftplib poplib
imaplib smtplib smtpd nntplib httplib httpservers socketserver timeout urllib urllib2 urllib2_localnet docxmlrpc wsgiref fcntl fork1 os
posix pty eintr wait3 wait4
""".split()
SHORT = {
    "socket": (),
    "select": (),
    "selectors": (),
    "asyncio": tuple(
        f"test.test_asyncio.test_{part}.*"
        for part in ("buffered_proto", "events", "selector_events", "sendfile", "server", "sock_lowlevel", "sslproto", "streams")
    ),
}
# What a virtual machine answers, or does not, and no TCP.
LEFT_OUT = ("*VSOCK*",)

BEGINS = re.compile(r"^(\w+) \(((?:test|__main__)[\w.]*)\)")
ENDS = re.compile(r"(?:^|\.\.\. )(?:(ok|expected failure)|(FAIL|ERROR|unexpected success)|(skipped .*))$")
WRONG = re.compile(r"^(?:FAIL|ERROR): (\w+) \(([\w.]+)\)", re.MULTILINE)


def parse(text):
    """unittest's verbose output. What a test prints stands between its name and its outcome."""
    found, current = {}, None
    for line in text.splitlines():
        begins = BEGINS.match(line)
        if begins:
            name, where = begins.groups()
            current = where if where.endswith(f".{name}") else f"{where}.{name}"
            found.setdefault(current, None)
        ends = ENDS.search(line)
        if ends and current and found[current] is None:
            good, bad, _ = ends.groups()
            found[current] = PASSED if good else FAILED if bad else SKIPPED
            current = None
    for name, where in WRONG.findall(text):
        found[where if where.endswith(f".{name}") else f"{where}.{name}"] = FAILED
    # Output in between may hide an outcome, but only the last test that began can be the one that hung.
    names = list(found)
    for test in names:
        if found[test] is None and (test != current or re.search(r"^Ran \d+ tests? in", text, re.MULTILINE)):
            found[test] = PASSED
    return found


def command(module, patterns, folder, done, only):
    ignored, matched = folder / "ignored", folder / "matched"
    ignored.write_text("\n".join([*LEFT_OUT, *sorted(done)]) + "\n")
    wanted = sorted(only) or patterns
    matched.write_text("\n".join(wanted) + "\n")
    choice = ["--ignorefile", ignored, *(["--matchfile", matched] if wanted else [])]
    return ["/usr/bin/python3.11", "-m", "test", "-v", "-u", "network", *choice, f"test_{module}"]


class CPython(Suite):
    name = "cpython"
    title = "CPython"
    forks = True

    def prepare(self, place):
        sources.install(place, "python3.11", "libpython3.11-testsuite")

    def version(self, place):
        return sources.installed("libpython3.11-testsuite")

    def units(self, place, short):
        return [
            Unit(
                name=f"test_{module}",
                command=functools.partial(command, module, SHORT[module] if short else ()),
                parse=parse,
                stall=120,
                limit=900,
                selects=True,
            )
            for module in (SHORT if short else MODULES)
        ]


SUITE = CPython()
