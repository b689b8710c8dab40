"""PostgreSQL's regression and isolation tests over TCP, and those in Perl of replication, failing over, pipelines and programs, with the server and
the programs that are installed. Built are pg_regress, isolationtester, libpq_pipeline and the functions in C that tests load."""
import re

import sources
import tap
from suite import FAILED, PASSED, Suite, Unit

SCHEDULES = {"regress": ("pg_regress", "parallel_schedule"), "isolation": ("pg_isolation_regress", "isolation_schedule")}
PROGRAMS = "/usr/lib/postgresql/15/bin"
# Folders of tests in Perl, and what is left out of them: what takes minutes, needs no connection, or a module of Perl that is not here.
FOLDERS = ("test/recovery", "test/subscription")
LEFT_OUT = (
    "002_archiving", "003_recovery_targets", "008_fsm_truncation", "014_unlogged_reinit", "017_shm", "018_wal_optimize", "020_archive_status",
    "024_archive_recovery", "027_stream_regress", "030_stats_cleanup_replica", "031_recovery_conflict", "039_end_of_wal",
)  # fmt: skip
OF_PROGRAMS = """
test/modules/libpq_pipeline/001_libpq_pipeline bin/pg_basebackup/010_pg_basebackup bin/pg_basebackup/020_pg_receivewal
bin/pg_basebackup/030_pg_recvlogical bin/pg_dump/004_pg_dump_parallel bin/pg_rewind/007_standby_source bin/pgbench/001_pgbench_with_server
bin/psql/001_basic bin/psql/020_cancel
""".split()
# Their servers have Unix sockets where there are any, but for this.
OVER_TCP = "use PostgreSQL::Test::Utils; $PostgreSQL::Test::Utils::use_unix_sockets = 0; 1;\n"
# The server does not run as root.
ANOTHER_USER = ("unshare", "--user", "--map-user=1000")
LINE = re.compile(r"^(?:test|    ) +(\S+) +\.\.\. (?:(ok)|FAILED|failed)\b", re.MULTILINE)


def parse(text):
    """`test boolean ... ok  12 ms`; those of a group that runs at once are indented. One that hangs has no line, then the whole has hung."""
    return {test: PASSED if good else FAILED for test, good in LINE.findall(text)}


class PostgreSQL(Suite):
    name = "postgresql"
    title = "PostgreSQL"
    forks = True

    def prepare(self, place):
        sources.install(place, "gcc", "make", "libc6-dev", "postgresql-15", "postgresql-contrib", "util-linux", "libipc-run-perl")
        source = sources.debian(place, "postgresql-15")
        sources.build(
            place,
            source,
            ["./configure", "--without-readline", "--without-zlib", "CFLAGS=-O1"],
            *(["make", sources.jobs(), "-C", f"src/test/{name}", "all"] for name in (*SCHEDULES, "modules/libpq_pipeline")),
        )
        (place / "perl").mkdir(exist_ok=True)
        (place / "perl" / "OverTCP.pm").write_text(OVER_TCP)

    def version(self, place):
        return sources.debian_version(place)

    def units(self, place, short):
        regress = [
            Unit(
                name=name,
                command=lambda *_, program=program, schedule=schedule: [
                    *ANOTHER_USER, f"./{program}", f"--bindir={PROGRAMS}", "--host=127.0.0.1",
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
        replication = [
            (folder, file.stem)
            for folder in FOLDERS
            for file in sorted((place / "source" / "src" / folder / "t").glob("*.pl"))
            if file.stem not in LEFT_OUT
        ]
        others = [tuple(test.rsplit("/", 1)) for test in OF_PROGRAMS]
        return regress + [self.perl(place, folder, test) for folder, test in replication + others]

    def perl(self, place, folder, test):
        top = place / "source"
        where = top / "src" / folder
        env = {
            "PATH": f"{PROGRAMS}:{where}:/usr/bin:/bin:/usr/sbin:/sbin",
            "TESTDIR": str(where),
            "top_builddir": str(top),
            "PG_REGRESS": str(top / "src/test/regress/pg_regress"),
            "PGPORT": "65432",
        }
        command = ["perl", "-I", place / "perl", "-I", top / "src/test/perl", "-I.", "-MOverTCP", f"t/{test}.pl"]
        return tap.unit(f"{folder}/{test}", [*ANOTHER_USER, *command], cwd=where, env=env, stall=200, limit=400)


SUITE = PostgreSQL()
