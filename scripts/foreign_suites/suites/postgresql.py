"""PostgreSQL's regression and isolation tests over TCP: the server and the programs that are installed, and pg_regress, isolationtester and
the functions in C that the tests load, of the same version's source. The rest of it (contrib, TAP) goes over Unix sockets."""
import re

import sources
from suite import FAILED, PASSED, Suite, Unit

SCHEDULES = {"regress": ("pg_regress", "parallel_schedule"), "isolation": ("pg_isolation_regress", "isolation_schedule")}
PROGRAMS = "/usr/lib/postgresql/15/bin"
LINE = re.compile(r"^(?:test|    ) +(\S+) +\.\.\. (?:(ok)|FAILED|failed)\b", re.MULTILINE)


def parse(text):
    """`test boolean ... ok  12 ms`; those of a group that runs at once are indented. One that hangs has no line, then the whole has hung."""
    return {test: PASSED if good else FAILED for test, good in LINE.findall(text)}


class PostgreSQL(Suite):
    name = "postgresql"
    title = "PostgreSQL"
    forks = True

    def prepare(self, place):
        sources.install(place, "gcc", "make", "libc6-dev", "postgresql-15", "postgresql-contrib", "util-linux")
        source = sources.debian(place, "postgresql-15")
        sources.build(
            place,
            source,
            ["./configure", "--without-readline", "--without-zlib", "CFLAGS=-O1"],
            *(["make", sources.jobs(), "-C", f"src/test/{name}", "all"] for name in SCHEDULES),
        )

    def version(self, place):
        return sources.debian_version(place)

    def units(self, place, short):
        return [
            Unit(
                name=name,
                # The server does not run as root.
                command=lambda *_, program=program, schedule=schedule: [
                    "unshare", "--user", "--map-user=1000", f"./{program}", f"--bindir={PROGRAMS}", "--host=127.0.0.1",
                    "--temp-instance=/tmp/instance", "--inputdir=.", "--outputdir=.", "--dlpath=.", "--max-connections=20",
                    f"--schedule=./{schedule}",
                ],  # fmt: skip
                parse=parse,
                cwd=place / "source" / "src" / "test" / name,
                stall=300,
                limit=1200,
            )
            for name, (program, schedule) in SCHEDULES.items()
        ]


SUITE = PostgreSQL()
