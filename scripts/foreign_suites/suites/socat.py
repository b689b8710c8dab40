"""socat's test.sh: the tests that mention TCP, with TLS over it, SOCKS and HTTP proxies. What needs other hosts, or the
machine's own network, it leaves out by itself."""
import os
import re
import subprocess

import sources
from failure import Failure
from suite import FAILED, PASSED, SKIPPED, Suite, Unit

TCP = re.compile(r"\btcp[46x]?[-_:]|\bopenssl|\bssl:|\bproxy|\bsocks4", re.IGNORECASE)
# Where a test's number is counted on: between two of these is one test, though a loop may run it several times.
COUNTED = re.compile(r"^ *N=\$\(\(N\+1\)\)", re.MULTILINE)
LINE = re.compile(r"^test +(\d+) ([\w.]+): .*?\.\.\. *(?:.*?(OK|FAILED|NO RESULT)\b.*|(.*))$", re.MULTILINE)
# What its tests wait for one another, in seconds; its own 0.1 is too short for a busy machine.
PACE = "0.5"
PARTS = {
    "TCP": re.compile("^(?!.*(SSL|PROXY|SOCKS))"),
    "OpenSSL": re.compile("SSL"),
    "proxies": re.compile("^(?!.*SSL).*(PROXY|SOCKS)"),
}
PACKAGES = "gcc make libc6-dev libssl-dev libwrap0-dev openssl net-tools iproute2 iputils-ping procps".split()


def parse(text):
    """`test  86 TCP4: what it does... OK`; what cannot be tested here says why instead."""
    found = {}
    for number, name, how, other in LINE.findall(text):
        # The line of a test that hangs is not ended.
        found[f"{number} {name}"] = {"OK": PASSED, "FAILED": FAILED}.get(how, SKIPPED) if how or other else None
    return found


def telling(source):
    """Writes the script that runs no test, but tells each one's number, and where in test.sh it ends."""
    script = (source / "test.sh").read_text(errors="replace")
    (source / "telling.sh").write_text(COUNTED.sub(r'echo "## $N $LINENO $NAME"; N=$((N+1))', script))


def numbers(source):
    """The numbers and names of the tests that mention TCP."""
    answer = subprocess.run(
        ["bash", "telling.sh", "none"],
        cwd=source,
        env=os.environ | {"TMPDIR": str(source.parent / "telling")},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    ).stdout
    lines, found, before = (source / "test.sh").read_text(errors="replace").splitlines(), {}, {}
    ends = [0, *(number for number, line in enumerate(lines, 1) if COUNTED.match(line))]
    for start, end in zip(ends, ends[1:]):
        before[end] = "\n".join(lines[start:end])
    for number, line, name in re.findall(r"^## (\d+) (\d+) (\S+)", answer, re.MULTILINE):
        if TCP.search(before.get(int(line), "")):
            found[number] = name
    # Without a number test.sh runs all its tests.
    if not found:
        raise Failure(f"{source / 'telling.sh'} tells of no test")
    return found


def command(tests, _, done, only):
    chosen = {test.split()[0] for test in only} or set(tests)
    left = chosen - {test.split()[0] for test in done}
    return ["bash", "test.sh", "-t", PACE, *sorted(left, key=int)]


class Socat(Suite):
    name = "socat"
    title = "socat"
    forks = True

    def prepare(self, place):
        sources.install(place, *PACKAGES)
        source = sources.debian(place, "socat")
        sources.build(
            place,
            source,
            ["./configure", "--disable-readline"],
            ["make", sources.jobs()],
            # Otherwise each run looks for a prime of its own, for up to some minutes.
            "openssl genpkey -genparam -algorithm DH -pkeyopt group:ffdhe2048 -out testcert.dh".split(),
        )
        if not (source / "telling.sh").exists():
            telling(source)

    def version(self, place):
        return sources.debian_version(place)

    def units(self, place, short):
        source = place / "source"
        every = numbers(source)
        parts = {
            part: [number for number, name in every.items() if named.search(name)] for part, named in PARTS.items()
        }
        return [
            Unit(
                name=part,
                command=lambda *now, tests=tests: command(tests, *now),
                parse=parse,
                cwd=source,
                env={"TERM": "dumb"},
                stall=120,
                limit=900,
                selects=True,
            )
            for part, tests in parts.items()
        ]


SUITE = Socat()
