"""The clients of a soak: what each runs, and whether it ended as it may. All check what they receive."""

import dataclasses
import hashlib
import pathlib
import re
import time

import postgres_server
from processes import Failure
from servers import FILES, PROGRAMS, PYTHON

OWN = pathlib.Path(__file__).parent / "programs"
HANG = 180
WRONG = 3
ROWS = 40_000
# How programs say that a connection was lost, or was refused, and no more.
LOST = re.compile(
    r"connection:|Connection(Reset|Refused|Aborted)Error|BrokenPipe|RemoteDisconnected|IncompleteRead|end of stream|ECONNRESET|EPIPE|"
    r"ECONNREFUSED|socket hang up|ECONNABORTED|aborted|Connection reset|Connection refused|Broken pipe|Could not connect|"
    r"Error from server|Server closed|I/O error|EOFException|curl: \((7|18|52|56|92)\)|HTTP Error 50[24]|BadStatusLine|"
    r"Socket errors|apr_|server closed the connection|could not connect|terminating connection|the database system is|"
    r"connection to server|lost synchronization|PANIC|crash of another server process|Non-2xx"
)
DIFFERENCE = re.compile(r"(\d+) of \d+ bytes, first difference at (None|\d+)")


@dataclasses.dataclass
class Client:
    """One that runs."""

    process: object
    kind: str
    servers: list
    began: float
    # What to do when it is over: a writer's place is free again, transactions count.
    over: object
    # A reload of its server is no reason to fail.
    strict: bool
    killed: bool = False


@dataclasses.dataclass(frozen=True)
class Kind:
    """`command(load, server, random)` gives a command, and what to do with its output when it is over."""

    name: str
    server: str
    command: object
    strict: bool = False
    through: bool = False


def shell(text):
    return ["sh", "-c", text]


def keys(load, server, random):
    number = load.take_writer(server)
    if number is None:
        return None
    connections, pipeline = random.choice([(1, 1), (1, 16), (4, 4), (16, 2)])
    seconds = random.choice([1, 3, 6])
    where = [server.port, load.journal(server), number, seconds, connections, pipeline, random.randrange(1 << 30)]
    return [PYTHON, OWN / "keys.py", "write", *where], lambda _: load.give_writer(server, number)


def benchmark(load, server, random):
    clients, pipeline = random.choice([(1, 1), (8, 1), (50, 1), (10, 16)])
    count = 20_000 if pipeline > 1 or clients > 1 else 5_000
    options = ["-q", "-n", count, "-c", clients, "-P", pipeline, "-r", 1000, "-d", 100, "-t", "set,get"]
    return ["redis-benchmark", "-p", server.port, *options], None


def short_benchmark(load, server, random):
    return ["redis-benchmark", "-p", server.port, "-q", "-n", 1000, "-c", 10, "-k", 0, "-t", "get"], None


def fetch(load, server, random):
    return [PYTHON, OWN / "files.py", "get", server.port, load.content, random.choice([50, 300])], None


def fetch_through(load, server, random):
    return [PYTHON, OWN / "files.py", "post", server.passing.port, load.content, random.choice([20, 120])], None


def fetch_and_post(load, server, random):
    names = list(FILES) * random.choice([2, 8])
    return [PYTHON, PROGRAMS / "http_client.py", server.port, load.content, *names], None


def curl(load, server, random):
    names = [random.choice(list(FILES)) for _ in range(60)]
    urls = " ".join(f"http://{server.endpoint.address}/{name}" for name in names)
    files = " ".join(names)
    return shell(f"curl -fsS {urls} | (cd {load.content} && cat {files} | cmp /dev/fd/3 -) 3<&0"), None


def wrk(load, server, random):
    path = "1000" if server.kind == "node" else random.choice(["index.html", "5k", "100k"])
    count = random.choice([1, 8, 24])
    return ["wrk", "-t1", f"-c{count}", "-d2s", "--timeout", "60s", f"http://{server.endpoint.address}/{path}"], None


def ab(load, server, random):
    """A connection for each request."""
    return ["ab", "-q", "-n", 400, "-c", 10, f"http://{server.endpoint.address}/index.html"], None


def node(load, server, random):
    return ["node", PROGRAMS / "http_client.js", server.port], None


def echo(load, server, random):
    kind = random.choice(["blocking", "timeout", "asyncio", "epoll", "poll", "select"])
    return [PYTHON, PROGRAMS / "echo_client.py", kind, server.port, random.choice([1, 2, 6])], None


def java(load, server, random):
    options = ["-XX:+UseSerialGC", "-Xmx96m", "-XX:TieredStopAtLevel=1"]
    return ["java", *options, "-cp", load.stage.folder / "java", "EchoClient", server.port, random.choice([1, 3])], None


def bench(options):
    def command(load, server, random):
        count, seconds = random.choice([1, 4, 8]), random.choice([1, 3])
        done = load.count_transactions(server) if "-S" not in options else None
        return [*server.client, "-n", *options, "-c", count, "-j", 1, "-T", seconds, "postgres"], done

    return command


def copy(load, server, random):
    """Rows from the server, or to it and back, whose bytes are known."""
    psql = f"{postgres_server.programs()}/psql -X -q -h 127.0.0.1 -p {server.port} -U me"
    if random.random() < 0.5:
        done = f"-c 'COPY (SELECT g, md5(g::text) FROM generate_series(1, {ROWS}) g) TO STDOUT'"
    else:
        done = (
            f"-c 'CREATE TEMP TABLE t (g int, m text)' -c \"\\copy t FROM '{load.rows}'\" "
            "-c 'COPY (SELECT g, m FROM t ORDER BY g) TO STDOUT'"
        )
    return [*postgres_server.as_other_user(), *shell(f"{psql} {done} postgres | cmp - {load.rows}")], None


CLIENTS = (
    Kind("keys", "redis", keys),
    Kind("redis-benchmark", "redis", benchmark),
    Kind("redis-benchmark, short", "redis", short_benchmark),
    Kind("files", "nginx", fetch),
    Kind("curl", "nginx", curl, strict=True),
    Kind("wrk", "nginx", wrk),
    Kind("ab", "nginx", ab, strict=True),
    Kind("files through nginx", "nginx", fetch_through, through=True),
    Kind("pgbench", "postgres", bench(["-M", "prepared"])),
    Kind("pgbench -S", "postgres", bench(["-S"])),
    Kind("pgbench -S -C", "postgres", bench(["-S", "-C"])),
    Kind("psql", "postgres", copy),
    Kind("http.client", "python", fetch_and_post),
    Kind("ab", "python", ab, strict=True),
    Kind("Node", "node", node),
    Kind("wrk", "node", wrk),
    Kind("echo", "java", echo),
    Kind("Java", "java", java),
)


def write_rows(folder):
    """The file that `copy` compares with."""
    rows = folder / "rows"
    rows.write_text("".join(f"{g}\t{hashlib.md5(str(g).encode()).hexdigest()}\n" for g in range(1, ROWS + 1)))
    rows.chmod(0o644)
    return rows


def is_loss(status, text):
    """Whether a client's failure says of its connection, and of no byte, that something was wrong."""
    if status == WRONG or any(at != "None" and at != got for got, at in DIFFERENCE.findall(text)):
        return False
    return bool(LOST.search(text)) or "EOF on" in text


def failed(kind, status, text):
    """Whether a client that ended says that something went wrong: some end with status 0 all the same."""
    return status != 0 or re.search(r"Socket errors|Non-2xx|Failed requests:\s+[1-9]|^Error", text, re.MULTILINE)


def judge(client, status, text):
    """Fails if a client ended otherwise than it may."""
    if client.killed or not failed(client.kind, status, text):
        return
    now = time.monotonic()
    excused = any(server.disturbed(client.began, now, client.strict) for server in client.servers)
    if excused and is_loss(status, text):
        return
    why = "and that is no lost connection" if excused else "while nothing disturbed its server"
    names = " and ".join(server.name for server in client.servers)
    raise Failure(
        f"{client.kind} of {names} ended with {status} after {now - client.began:.1f} s, {why}: {client.process.line}\n{text[-4000:]}"
    )
