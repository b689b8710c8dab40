"""haproxy's reg-tests, run by varnishtest: vtest, which Debian does not have, is the same program on its own."""
import re

import sources
from suite import FAILED, PASSED, SKIPPED, Suite, Unit

PACKAGES = """
gcc make libc6-dev libpcre2-dev libssl-dev liblua5.3-dev pkg-config varnish socat openssl procps
""".split()
MAKE = """
TARGET=linux-glibc USE_PCRE2=1 USE_OPENSSL=1 USE_SLZ=1 USE_LUA=1 USE_PROMEX=1 LUA_INC=/usr/include/lua5.3 IGNOREGIT=true
DEBUG_CFLAGS=-g0 CPU_CFLAGS=-O1
""".split()
# Those that haproxy's own script leaves out, of earlier versions among them.
BROKEN = re.compile(r"^#(REGTEST_TYPE=broken|REQUIRE_VERSION_BELOW=)", re.MULTILINE)

LINE = re.compile(r"^#\s+top\s+TEST (\S+) (passed|FAILED|skipped|timed out)", re.MULTILINE)


def parse(text):
    return {
        test.removeprefix("reg-tests/").removesuffix(".vtc"): {"passed": PASSED, "skipped": SKIPPED}.get(how, FAILED)
        for test, how in LINE.findall(text)
    }


class Haproxy(Suite):
    name = "haproxy"
    title = "haproxy"
    forks = True

    def prepare(self, place):
        sources.install(place, *PACKAGES)
        source = sources.debian(place, "haproxy")
        sources.build(place, source, ["make", sources.jobs(), *MAKE])

    def version(self, place):
        return sources.debian_version(place)

    def units(self, place, short):
        source = place / "source"
        tests = {
            str(path.relative_to(source / "reg-tests").with_suffix(""))
            for path in source.glob("reg-tests/**/*.vtc")
            if not BROKEN.search(path.read_text())
        }
        folders = sorted({test.partition("/")[0] for test in tests})
        return [
            self.unit(source, folder, {test for test in tests if test.startswith(f"{folder}/")})
            for folder in folders
        ]

    def unit(self, source, folder, tests):
        def command(_, done, only):
            chosen = sorted((set(only) or tests) - set(done))
            return ["varnishtest", "-b", "2M", "-k", "-t", "30", *(f"reg-tests/{test}.vtc" for test in chosen)]

        return Unit(
            name=folder,
            command=command,
            parse=parse,
            cwd=source,
            env={"HAPROXY_PROGRAM": str(source / "haproxy"), "HAPROXY_ARGS": "-dM"},
            stall=120,
            limit=600,
            selects=True,
        )


SUITE = Haproxy()
