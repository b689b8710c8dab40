"""The report as Markdown."""

import datetime
import os

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
PLACEMENTS = (("two-cores", "two cores"), ("one-core", "one core"))


def size_name(size):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def significant(value, unit=""):
    """Three significant digits, no exponent."""
    if value is None:
        return "–"
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:.{digits}f}{unit}"


def times(ratio):
    return "–" if ratio is None else f"{significant(ratio)}×"


def scaled(item, value):
    if value is None:
        return None
    per_unit = {"rate_per_s": 1e6, "gb_per_s": 1}
    return value / per_unit.get(item.figure, 1e3)


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + " ---: |" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def figure(item, subject):
    return significant(scaled(item, item.middle(subject)))


def floor_range(item):
    spread = item.spread("floor")
    if not spread:
        return "–"
    low, high = (significant(scaled(item, value)) for value in spread)
    return low if low == high else f"{low}–{high}"


def compared(item):
    return [figure(item, "floor"), floor_range(item), figure(item, "tcp"), figure(item, "san"),
            times(item.ratio("san", "floor")), str(len(item.ratios("san", "floor"))),
            times(item.ratio("tcp", "san"))]


def headings(ratio):
    """`ratio` names what the floor's ratio divides: times are the SAN's by the floor's, rates the other way round."""
    return ["floor", "floor, range", "TCP", "SAN", ratio, "of rounds", "SAN faster than TCP"]


def round_trips(items):
    tail = lambda item, subject: significant((item.middle(subject, "p99_ns") or 0) / 1e3)
    rows = [[size_name(item.size), item.wait, *compared(item), tail(item, "tcp"),
             tail(item, "san") if item.values("san") else "–"] for item in items]
    return table(["message", "wait", *headings("SAN ÷ floor"), "TCP p99", "SAN p99"], rows)


def one_way(items):
    return table(["message", *headings("floor ÷ SAN")], [[size_name(i.size), *compared(i)] for i in items])


def stream(items):
    rows = [[size_name(item.size), *compared(item), figure(item, "small-ring"),
             figure(item, "one-copy")] for item in items]
    return table(["write", *headings("better floor ÷ SAN"), "floor, 256 KiB ring", "one copy"], rows)


def setup(items):
    rows = []
    for item in items:
        rates = [f"{1e9 / item.middle(subject):.0f}" if item.values(subject) else "–"
                 for subject in ("floor", "tcp", "san", "san-server", "san-client")]
        mixed = [times(item.ratio(subject, "tcp")) for subject in
                 ("san", "san-server", "san-client")]
        rows.append([size_name(item.size), str(item.connections), *rates, *mixed])
    return table(["request", "at once", "floor", "no library", "library at both ends", "at the server",
                  "at the client", "both ÷ none (time)", "server ÷ none (time)",
                  "client ÷ none (time)"], rows)


def paced(items):
    def ratios(item, figure):
        return f"{times(item.times_tcp(figure))} ({times(item.tcp_again(figure))})"

    def of(item, figure, scale):
        return [significant(None if (value := item.middle(subject, figure)) is None else value / scale)
                for subject in ("tcp", "san")]

    def floors(item):
        return [significant((item.middle(name, "p50_ns") or 0) / 1e3) for name in ("futex", "event")]

    rows = [[str(item.connections), str(item.rate), *floors(item), *of(item, "p50_ns", 1e3), ratios(item, "p50_ns"),
             times(item.to_floor("p50_ns")),
             *of(item, "p99_ns", 1e3), ratios(item, "p99_ns"),
             *of(item, "server_cpu_ms", 1e3), *of(item, "client_cpu_ms", 1e3), ratios(item, "cpu_ms"),
             times(item.to_floor("cpu_ms"))]
            for item in items]
    again = "÷ none (none ÷ none)"
    return (
        "What the library changes where requests come at a pace. The connections move to the SAN as soon as they can. (By default each\n"
        "moves after 32 transfers, whatever the pauses between them.) Some 300 move in a second, so the rows over hundreds of connections\n"
        "show their moves. In brackets: how far two runs\n"
        "without the library, just before and after the one with it, differ, the larger in multiples of the smaller. The floors are two processes\n"
        "over bare memory, of which each sleeps until a futex wakes it, or an eventfd in an epoll set.\n\n") + table(
        ["connections", "requests a second", "p50, futex", "p50, eventfd", "p50, no library", "p50, library", again,
         "library ÷ better floor",
         "p99, no library", "p99, library", again, "server CPU s, no library", "library",
         "client CPU s, no library", "library", f"CPU of both {again}",
         "library ÷ better floor"], rows)


def sharing(items):
    names = {"shared": "round trip, the child leaves it alone", "turns": "a send of each in turn"}
    rows = [[names[item.case], figure(item, "tcp-alone"), figure(item, "tcp"),
             figure(item, "san-alone"), figure(item, "san"),
             times(item.ratio("san", "san-alone")), times(item.ratio("san", "tcp-alone"))]
            for item in items]
    return table(["", "TCP round trip, not shared", "TCP", "SAN round trip, not shared", "SAN",
                  "SAN ÷ SAN round trip", "SAN ÷ TCP round trip"], rows)


SECTIONS = (
    ("round-trip", "Round trip, µs", round_trips),
    ("one-way", "One way, million messages a second", one_way),
    ("stream", "Streaming, GB/s", stream),
    (("shared", "turns"), "Two processes on one connection, 64 B, µs", sharing),
    ("setup", "Connect, request and reply, close: connections a second", setup),
    ("paced", "Paced requests of 64 B, µs", paced),
)


def carriers(rows):
    cells = lambda row: [significant(row.get(name)) for name in ("messages", "rdma", "measured")]
    won = lambda row: ", ".join(f"{way} {count}" for way, count in
                                sorted(row.get("decided", {}).items(), key=lambda way: -way[1])) or "–"
    return table(["program", "messages alone", "RDMA wherever it can", "what measurement prefers",
                  "what it was, in rounds"],
                 [[row["program"], *cells(row), won(row)] for row in rows])


def system_calls(rows):
    def most(row, subject):
        calls = row.get(f"{subject}_most", {})
        return ", ".join(f"{call} {count:.3f}" for call, count in calls.items()) or "–"
    count = lambda row, subject: f"{row[subject]:.3f}" if subject in row else "–"
    return table(
        ["case", "wait", "TCP", "SAN", "most frequent on the SAN"],
        [[row["case"], row["wait"], count(row, "tcp"), count(row, "san"), most(row, "san")]
         for row in rows])


def idle(rows):
    return table(
        ["connections", "", "server CPU, ms", "server wake-ups", "client CPU, ms",
         "segment, KiB each", "server's own, KiB each", "client's own, KiB each"],
        [[str(row["connections"]), row["subject"], f"{row['server_cpu_ms']:.2f}",
          str(row["server_wakeups"]), f"{row['client_cpu_ms']:.2f}",
          *(f"{row[name]:.1f}" for name in
            ("segment_kib_each", "server_own_kib_each", "client_own_kib_each"))]
         for row in rows])


def render(about, rounds, seconds, items, found):
    """The whole report."""
    day = datetime.date.today().isoformat()
    parts = [
        f"{about['cpu']}, {about['cpus']} CPUs, Linux {about['kernel']}, {about['libc']}; {day}; "
        f"{rounds} rounds, {seconds} s each; load average at the start {about['load']}.\n"
    ]
    for case, title, render_section in SECTIONS:
        for placement, name in PLACEMENTS:
            cases = case if isinstance(case, tuple) else (case,)
            chosen = [i for i in items if i.case in cases and i.placement == placement]
            if chosen:
                parts += [f"### {title} ({name})\n", render_section(chosen)]
    if found.get("carriers"):
        parts += ["### What carries a stream, GB/s (two cores)\n", carriers(found["carriers"])]
    if found.get("syscalls"):
        parts += ["### System calls per exchange, both ends busy\n",
                  system_calls(found["syscalls"])]
    if found.get("idle"):
        seconds = found["idle"][0]["seconds"]
        parts += [f"### Idle for {seconds:g} s\n", idle(found["idle"])]
    return "\n".join(parts)


def write_between_markers(path, text):
    """Replaces what is between the markers; the file is never left half-written."""
    with open(path) as file:
        old = file.read()
    head, begin, rest = old.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"scripts/bench: {path} lacks {BEGIN} or {END}: put them back")
    with open(path + ".new", "w") as file:
        file.write(f"{head}{BEGIN}\n\n{text}\n{END}{tail}")
    os.replace(path + ".new", path)
