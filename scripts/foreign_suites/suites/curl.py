"""curl's own tests over HTTP, HTTPS, FTP, SMTP, IMAP, POP3, telnet, MQTT, RTSP, gopher and proxies, with the servers that it has for them.
Left out: those of its parts alone, files, SFTP and TFTP."""
import collections
import re

import sources
from suite import FAILED, PASSED, SKIPPED, Suite, Unit

# A test belongs to the first of these that its servers begin with; those of HTTP alone are many.
SERVERS = ("ftp", "smtp", "imap", "pop3", "telnet", "mqtt", "rtsp", "gopher", "socks", "https", "http")
PORTION = 120

BEGINS = re.compile(r"^test (\d+)(?:\.\.\.| SKIPPED)", re.MULTILINE)
PART = "<{0}>(.*?)</{0}>"


def parse(text):
    """`test 0001...[HTTP GET]`, what is wrong, or `OK (`."""
    found, begun = {}, list(BEGINS.finditer(text))
    for each, following in zip(begun, [*begun[1:], None]):
        said = text[each.start() : following.start() if following else len(text)]
        if "SKIPPED" in each[0]:
            outcome = SKIPPED
        elif " OK (" in said:
            outcome = PASSED
        else:
            outcome = FAILED if following or "TESTDONE:" in said else None
        found[str(int(each[1]))] = outcome
    return found


def servers(file):
    text = file.read_text(errors="replace")
    part = re.search(PART.format("server"), text, re.DOTALL)
    tool = re.search(PART.format("tool"), text, re.DOTALL)
    return part[1].split() if part else [], tool is not None and "unit" in tool[1]


def portions(folder):
    """The numbers of the tests by kind of server."""
    disabled = {line.strip() for line in (folder / "DISABLED").read_text().splitlines()}
    of = collections.defaultdict(list)
    for file in folder.glob("test*"):
        number = file.name.removeprefix("test")
        if not number.isdigit() or number in disabled:
            continue
        names, unit = servers(file)
        kind = next((kind for kind in SERVERS if any(name.startswith(kind) for name in names)), None)
        if kind and not unit:
            of[kind].append(int(number))
    for kind, numbers in of.items():
        numbers.sort()
        for first in range(0, len(numbers), PORTION):
            portion = numbers[first : first + PORTION]
            yield (kind if len(numbers) <= PORTION else f"{kind} {portion[0]} to {portion[-1]}"), portion


class Curl(Suite):
    name = "curl"
    title = "curl"

    def prepare(self, place):
        tools = ("gcc", "make", "libc6-dev", "libssl-dev", "zlib1g-dev", "autoconf", "automake", "libtool", "perl", "stunnel4", "python3")
        sources.install(place, *tools)
        source = sources.debian(place, "curl")
        without = ("--disable-shared", "--without-libpsl", "--without-nghttp2", "--disable-manual", "--disable-ldap", "--disable-dependency-tracking")
        sources.build(
            place,
            source,
            ["autoreconf", "-fi"],
            ["./configure", "--with-openssl", *without, "CFLAGS=-O1"],
            ["make", sources.jobs()],
            ["make", sources.jobs(), "-C", "tests"],
        )

    def version(self, place):
        return sources.debian_version(place)

    def units(self, place, short):
        tests = place / "source" / "tests"

        def command(portion, done, only):
            return ["perl", "runtests.pl", "-n", "-a", *sorted(only or {str(number) for number in portion} - done, key=int)]

        return [
            Unit(
                name=name,
                command=lambda _, done, only, portion=portion: command(portion, done, only),
                parse=parse,
                cwd=tests,
                env={"USER": "root"},
                limit=600,
                selects=True,
            )
            for name, portion in portions(tests / "data")
        ]


SUITE = Curl()
