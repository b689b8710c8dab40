"""OpenSSL's tests that go over TCP: those where a proxy in Perl stands between s_client and s_server and changes what they say, those with a server for
HTTP and CMP, and the old ones of TLS, which use pairs in memory and sockets. Built is what these need, without assembler and optimisation."""
import sources
import tap
from suite import Suite

# A recipe with one of these in it.
USES = ("TLSProxy", "s_server", "cmp_http", "http_test", "ssl_old_test")
BUILT = ("apps/openssl", "engines/ossltest.so", "providers/legacy.so", "test/ssl_old_test", "test/http_test", "util/wrap.pl", "util/shlib_wrap.sh")


class OpenSSL(Suite):
    name = "openssl"
    title = "OpenSSL"
    forks = True

    def prepare(self, place):
        sources.install(place, "gcc", "make", "libc6-dev", "perl")
        source = sources.debian(place, "openssl")
        sources.build(
            place,
            source,
            ["./Configure", "linux-x86_64", "no-asm", "-O0"],
            ["make", sources.jobs(), "build_generated"],
            ["make", sources.jobs(), *BUILT],
        )

    def version(self, place):
        return sources.debian_version(place)

    def units(self, place, short):
        source = place / "source"
        env = {
            "SRCTOP": str(source),
            "BLDTOP": str(source),
            "PERL": "perl",
            "HARNESS_ACTIVE": "1",
            "OPENSSL_CONF": str(source / "apps" / "openssl.cnf"),
            "OPENSSL_CONF_INCLUDE": str(source / "test"),
            "OPENSSL_MODULES": str(source / "providers"),
            "OPENSSL_ENGINES": str(source / "engines"),
            "CTLOG_FILE": str(source / "test" / "ct" / "log_list.cnf"),
        }
        return [
            tap.unit(file.stem, ["perl", "-w", "-Iutil/perl", file.relative_to(source)], cwd=source, env=env, stall=150, limit=400)
            for file in sorted((source / "test" / "recipes").glob("*.t"))
            if any(word in file.read_text(errors="replace") for word in USES)
        ]


SUITE = OpenSSL()
