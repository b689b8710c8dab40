"""memcached's t/."""
import sources
import tap
from suite import Suite


# How many tests they have depends on how long they take.
LEFT_OUT = ("binary-extstore", "maxconns")


class Memcached(Suite):
    name = "memcached"
    title = "memcached"

    def prepare(self, place):
        sources.install(place, "gcc", "make", "libc6-dev", "libevent-dev", "perl", "autoconf", "automake")
        source = sources.debian(place, "memcached")
        # Its tests take a Unix socket where it has them.
        sources.build(place, source, ["./configure", "--disable-docs", "--disable-unix-socket"], ["make", sources.jobs()])

    def version(self, place):
        return sources.debian_version(place)

    def units(self, place, short):
        source = place / "source"
        return [
            tap.unit(test.stem, ["perl", "-Ilib", f"t/{test.name}"], cwd=source, stall=200, limit=300, env={"PERL_USE_UNSAFE_INC": "1"})
            for test in sorted((source / "t").glob("*.t"))
            if test.stem not in LEFT_OUT
        ]


SUITE = Memcached()
