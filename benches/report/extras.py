"""What is measured once and not timed: system calls per message, and idle connections."""

import os
import tempfile

# Set-up cancels out between the two. Over TCP so does the rest, and a figure is exact to 1/20000 of a call; on the SAN
# the warm-up does not quite, which looks for its messages all the time: the run is long enough for that not to count.
FEW = 1000
MANY = {"tcp": 21000, "san": 401000}
ALL = "raw_syscalls:sys_enter"
NAMED = ("sendto", "recvfrom", "epoll_pwait", "epoll_wait", "ppoll", "sched_yield", "rt_sigprocmask", "madvise")


def subjects(runner):
    """(name, how to run it)"""
    san = {"shimmed": "both", "on_san": True}
    return [("tcp", {})] + ([("san", san)] if runner.library else [])


def count_calls(runner, arguments, how):
    """System calls of all processes of a run, all and those in NAMED, or None. Counted by the kernel: under
    strace each takes so long that neither end finds the other busy."""
    events = {f"syscalls:sys_enter_{name}": name for name in NAMED} | {ALL: "all"}
    with tempfile.TemporaryDirectory(prefix="sanbench-") as folder:
        counts = os.path.join(folder, "calls")
        prefix = ("perf", "stat", "-x", ";", "-o", counts, "-e", ",".join(events))
        if runner.run(arguments, prefix=prefix, **how) is None:
            return None
        calls = {}
        with open(counts) as file:
            for line in file:
                fields = line.split(";")
                if len(fields) > 2 and fields[0].isdigit() and fields[2] in events:
                    calls[events[fields[2]]] = int(fields[0])
        return calls or None


def system_calls(runner, quick):
    """System calls per exchange while both ends are busy, for each case and subject."""
    rows = []
    scale = 4 if quick else 1
    few = FEW // scale
    for case, wait in (("round-trip", "blocking"), ("round-trip", "epoll"),
                       ("one-way", "blocking"), ("one-way", "epoll")):
        row = {"case": case, "size": 64, "wait": wait}
        for name, how in subjects(runner):
            many = MANY[name] // scale
            warm_up = ("--warm-up", 1) if name == "tcp" else ()
            arguments = lambda count: ("socket", case, "--size", 64, "--wait", wait, "--count", count, *warm_up)
            before = count_calls(runner, arguments(few), how)
            after = count_calls(runner, arguments(many), how)
            if before is None or after is None:
                # Not without the right to count (perf_event_paranoid).
                continue
            # one-way sends in batches of 256: the numbers really sent are multiples of it.
            sent = [-(-n // 256) * 256 if case == "one-way" else n for n in (few, many)]
            more = {call: after.get(call, 0) - before.get(call, 0) for call in after}
            exchanges = sent[1] - sent[0]
            row[name] = max(0, more.pop("all")) / exchanges
            most = sorted(more.items(), key=lambda entry: -entry[1])[:3]
            row[f"{name}_most"] = {call: n / exchanges for call, n in most if n > 0}
        rows.append(row)
    return rows


def idle(runner, quick):
    """CPU time, wake-ups and memory of an idle epoll server with few and many connections."""
    rows = []
    used_much = {"shimmed": "both", "on_san": True, "may_return": True}
    for connections in (1, 1000):
        # One exchange leaves a connection on TCP, many in a row bring it to the SAN, from where it goes back meanwhile.
        runs = [("TCP", 1, {})]
        if runner.library:
            runs += [("library, used once", 1, {"shimmed": "both"}),
                     ("SAN, used much", 200, used_much)]
        for name, used, how in runs:
            arguments = ("socket", "idle", "--connections", connections, "--warm-up", used, "--placement", "free")
            line = runner.run(arguments, seconds=1 if quick else 2, **how)
            if line:
                rows.append(line | {"subject": name})
    return rows
