"""rsync's testsuite as it is, and its tests of the daemon with one that listens. In the testsuite rsync itself starts the
daemon, on one end of a TCP connection that it made. In the tests of the daemon it connects to port 873, and the daemon
forks for each connection. A remote shell is pipes, without TCP."""
import re
import shutil

import sources
from suite import FAILED, PASSED, SKIPPED, Suite, Unit

PACKAGES = """
gcc g++ make libc6-dev libacl1-dev libattr1-dev libpopt-dev liblz4-dev libxxhash-dev libzstd-dev zlib1g-dev libssl-dev
acl attr gawk perl
""".split()

BEGINS = re.compile(r"^TEST ([\w-]+)$", re.MULTILINE)
ENDS = re.compile(r"^(PASS|FAIL|XFAIL|SKIP) +([\w-]+)", re.MULTILINE)

# What a test says to have its daemon started for it, on a line of its own or before a command.
STARTED = re.compile(
    r'^(\s*)RSYNC_CONNECT_PROG="\$RSYNC --config=\$conf --daemon"(?: \\)?\n(?:export RSYNC_CONNECT_PROG\n)?',
    re.MULTILINE,
)
# What it says instead. Whoever listens is seen in the kernel's table: another connection would be in the daemon's log.
LISTENS = r"""
listens() {
    grep -q '^ *[0-9]*: [0-9A-F]*:0369 [0-9A-F:]* 0A ' /proc/net/tcp /proc/net/tcp6
}

listening() {
    [ ! -f "$TOOLDIR/listening.pid" ] || kill `cat "$TOOLDIR/listening.pid"` 2>/dev/null || true
    while listens; do sleep 0.05; done
    $RSYNC --config="$conf" --daemon --no-detach </dev/null >/dev/null 2>&1 &
    echo $! >"$TOOLDIR/listening.pid"
    while ! listens; do kill -0 $! && sleep 0.05 || test_fail "the daemon does not listen"; done
}
"""
ONE_BY_ONE = 'for test; do echo "TEST $test"; whichtests=$test.test sh runtests.sh; done'


def parse(text):
    found = dict.fromkeys(BEGINS.findall(text))
    for how, test in ENDS.findall(text):
        found[test] = {"PASS": PASSED, "SKIP": SKIPPED}.get(how, FAILED)
    return found


def unit(name, source, tests):
    def command(_, done, only):
        return ["sh", "-c", ONE_BY_ONE, "sh", *(test for test in sorted(only) or tests if test not in done)]

    return Unit(
        name=name,
        command=command,
        parse=parse,
        cwd=source,
        stall=150,
        limit=900,
        selects=True,
    )


class Rsync(Suite):
    name = "rsync"
    title = "rsync"
    forks = True

    def prepare(self, place):
        sources.install(place, *PACKAGES)
        source = sources.debian(place, "rsync")
        sources.build(
            place,
            source,
            # By their times these may seem older than what they are made of: make would make them again, two at once.
            ["touch", "aclocal.m4", "config.h.in", "configure.sh"],
            ["./configure", "--disable-md2man"],
            # One test has all programs made that tests need.
            ["make", sources.jobs(), "check", "whichtests=00-hello.test"],
        )
        listening, half = place / "listening", place / "copying"
        if not listening.exists():
            shutil.rmtree(half, ignore_errors=True)
            shutil.copytree(source, half, symlinks=True)
            with open(half / "testsuite" / "rsync.fns", "a", encoding="utf-8") as functions:
                functions.write(LISTENS)
            for test in half.glob("testsuite/*.test"):
                if not test.is_symlink():
                    test.write_text(STARTED.sub(r"\1listening\n", test.read_text()))
            half.rename(listening)

    def version(self, place):
        return sources.debian_version(place)

    def units(self, place, short):
        every = {test.stem: test.read_text() for test in (place / "source").glob("testsuite/*.test")}
        daemon = [test for test, text in every.items() if STARTED.search(text)]
        return [
            unit("testsuite", place / "source", sorted(every)),
            unit("testsuite with a daemon that listens", place / "listening", sorted(daemon)),
        ]


SUITE = Rsync()
