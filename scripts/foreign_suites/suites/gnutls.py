"""GnuTLS' tests that connect its own client to its own server over TCP, with those that are installed. Most of its others are programs that talk to
themselves through a socket pair."""
import scripted
import sources
from suite import Suite

# Those with this in them have a server.
SERVER = ("launch_server", "launch_bare_server", "TCP-LISTEN")
PROGRAMS = {"SERV": "gnutls-serv", "CLI": "gnutls-cli", "DCLI": "gnutls-cli-debug", "CERTTOOL": "certtool", "OCSPTOOL": "ocsptool"}
# UDP, and what needs a program of the tests that the library's source must be built for.
LEFT_OUT = ("serv-udp", "protocol-set-allowlist", "system-override-curves-allowlist", "testpkcs11", "scripts/common")


class GnuTLS(Suite):
    name = "gnutls"
    title = "GnuTLS"

    def prepare(self, place):
        # chat is in ppp.
        sources.install(place, "gcc", "libc6-dev", "gnutls-bin", "datefudge", "socat", "ppp", "openssl", "iproute2")
        source = sources.debian(place, "gnutls28")
        sources.build(place, source, ["gcc", "-include", "stdlib.h", "-o", "tests/datefudge-check", "tests/datefudge-check.c"])

    def version(self, place):
        return sources.debian_version(place)

    def units(self, place, short):
        tests = place / "source" / "tests"
        found = {
            str(file.relative_to(tests).with_suffix("")): file
            for file in sorted(tests.rglob("*.sh"))
            if any(word in file.read_text(errors="replace") for word in SERVER)
        }
        env = {name: f"/usr/bin/{program}" for name, program in PROGRAMS.items()}
        env |= {name: str(place / "source") for name in ("top_srcdir", "top_builddir", "abs_top_builddir")}
        return [
            # They look for their files from where they are started, and so do these.
            scripted.unit(
                name,
                [file],
                cwd=tests / "cert-tests" if name.startswith("cert-tests/") else tests,
                env=env,
                stall=100,
                limit=300,
            )
            for name, file in found.items()
            if name not in LEFT_OUT
        ]


SUITE = GnuTLS()
