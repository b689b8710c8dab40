"""What is measured, and how one round of it goes.

The SAN run lies between two floor runs. A virtual machine's cores may move to other cores of its
host at any time, which changes every figure several times over, so a ratio counts only if the
two floors around it agree.
"""

from statistics import median

# Floors further apart than this: the machine changed in between.
AGREE = 1.5


class Item:
    """One line of a table: one case, size, way of waiting and placement."""

    # How often it runs in a round.
    PASSES = 1

    def __init__(self, case, size, placement, wait="blocking", figure="typical_ns"):
        self.case, self.size, self.placement, self.wait = case, size, placement, wait
        self.figure = figure
        self.name = f"{case} {size} B, {wait}, {placement}"
        # Per round: subject -> JSON line of the run, or None.
        self.rounds = []

    def arguments(self, command, *more):
        return (command, self.case, "--size", self.size, "--wait", self.wait,
                "--placement", self.placement, *more)

    def subjects(self, runner):
        """The runs of a round, in order: (subject, function)."""
        floor = lambda *more: runner.run(self.arguments("floor", *more))
        socket = lambda **how: runner.run(self.arguments("socket"), **how)
        runs = []
        if self.case == "stream":
            copy = ("floor", "one-copy", "--size", self.size, "--placement", self.placement)
            runs += [("one-copy", lambda: runner.run(copy)),
                     ("small-ring", lambda: floor("--ring", 256 << 10))]
        runs.append(("tcp", socket))
        runs.append(("floor", floor))
        if runner.library:
            runs.append(("san", lambda: socket(shimmed="both", on_san=True)))
        runs.append(("floor-after", floor))
        return runs

    def run_round(self, runner):
        for _ in range(self.PASSES):
            self.rounds.append({subject: run() for subject, run in self.subjects(runner)})

    def values(self, subject, figure=None):
        lines = [done.get(subject) for done in self.rounds]
        return [line[figure or self.figure] for line in lines if line]

    def middle(self, subject, figure=None):
        values = self.values(subject, figure)
        return median(values) if values else None

    def better_is_more(self):
        return not self.figure.endswith("_ns")

    def ratio(self, subject, other):
        """How many times slower `subject` was than `other`: the median over the rounds that count."""
        chosen = self.ratios(subject, other)
        return median(chosen) if chosen else None

    def ratios(self, subject, other):
        """The same of each round that counts, or of all where none does. The floor of a stream is the better one."""
        steady, every = [], []
        for done in self.rounds:
            if not done.get(subject) or not done.get(other):
                continue
            value, base = done[subject][self.figure], done[other][self.figure]
            agree = True
            after = done.get("floor-after") if other == "floor" else None
            if after:
                pair = sorted((base, after[self.figure]))
                agree = pair[1] <= AGREE * pair[0]
                base = sum(pair) / 2
                if done.get("one-copy"):
                    base = max(base, done["one-copy"][self.figure])
            ratio = base / value if self.better_is_more() else value / base
            every.append(ratio)
            if agree:
                steady.append(ratio)
        return steady or every

    def spread(self, subject):
        values = self.values(subject)
        return (min(values), max(values)) if values else None

    def summary(self):
        subjects = sorted({subject for done in self.rounds for subject in done})
        return {
            "case": self.case, "size": self.size, "wait": self.wait,
            "placement": self.placement, "figure": self.figure,
            "median": {subject: self.middle(subject) for subject in subjects},
            "san_to_floor": self.ratio("san", "floor"),
            "tcp_to_san": self.ratio("tcp", "san"),
        }

    def samples(self):
        for number, done in enumerate(self.rounds):
            for subject, line in done.items():
                if line:
                    yield line | {"round": number + 1, "subject": subject}


class SharingItem(Item):
    """A connection that two processes share. There is no floor; beside it a round trip of one process."""

    def subjects(self, runner):
        alone = lambda **how: runner.run(("socket", "round-trip", *self.arguments("socket")[2:]), **how)
        run = lambda **how: runner.run(self.arguments("socket"), **how)
        runs = [("tcp-alone", alone), ("tcp", run)]
        if runner.library:
            on_san = {"shimmed": "both", "on_san": True}
            runs += [("san-alone", lambda: alone(**on_san)), ("san", lambda: run(**on_san))]
        return runs

    def summary(self):
        return super().summary() | {"san_to_tcp_round_trip": self.ratio("san", "tcp-alone"),
                                    "san_to_san_round_trip": self.ratio("san", "san-alone")}


class SetupItem(Item):
    """Connections, all on TCP: they are too short to move. The floor, of connections in sequence, is a mapping for each;
    the mixed runs have the library on one end only."""

    # Short runs in close succession: the differences sought are a few per cent.
    PASSES = 3

    def __init__(self, size, placement, count, connections=1):
        # Many at once end in bursts, so that their mean tells more than the typical block.
        super().__init__("setup", size, placement, figure="mean_ns" if connections > 1 else "typical_ns")
        self.count, self.connections = count, connections
        self.name += f", {connections} at once"

    def subjects(self, runner):
        floor = self.arguments("floor", "--count", self.count)
        socket = self.arguments("socket", "--count", self.count, "--connections", self.connections)
        runs = [("floor", lambda: runner.run(floor))] if self.connections == 1 else []
        runs.append(("tcp", lambda: runner.run(socket)))
        if runner.library:
            for subject, ends in (("san-server", "server"), ("san-client", "client"), ("san", "both")):
                runs.append((subject, lambda ends=ends: runner.run(socket, shimmed=ends)))
        return runs

    def summary(self):
        mixed = {f"{subject}_to_tcp": self.ratio(subject, "tcp")
                 for subject in ("san", "san-server", "san-client")}
        return super().summary() | mixed | {"connections": self.connections}


class PacedItem(Item):
    """Requests at a rate, going round connections that are idle meanwhile. The floors are a process that a futex wakes and
    one that an eventfd in an epoll set does. The library's run lies between two without it, which also tell how far such
    runs differ by themselves."""

    # The differences sought are a few per cent here, too.
    PASSES = 2

    def __init__(self, rate, connections, seconds):
        super().__init__("paced", 64, "two-cores", figure="p50_ns")
        self.rate, self.connections, self.seconds = rate, connections, seconds
        self.name = f"paced, {rate} a second over {connections}"

    def subjects(self, runner):
        arguments = self.arguments("socket", "--rate", self.rate, "--connections", self.connections)
        run = lambda **how: runner.run(arguments, seconds=self.seconds, **how)
        floor = self.arguments("floor", "--rate", self.rate)
        runs = [("futex", lambda: runner.run(floor, seconds=self.seconds)),
                ("event", lambda: runner.run((*floor, "--wait", "epoll"), seconds=self.seconds)), ("tcp", run)]
        if runner.library:
            san = lambda: run(shimmed="both", on_san=True, may_return=True, at_once=True)
            runs += [("san", san), ("tcp-after", run)]
        return runs

    def to_floor(self, figure):
        """The library's figure in multiples of the better floor's."""
        floors = [value for name in ("futex", "event") if (value := self.middle(name, figure))]
        san = self.middle("san", figure)
        return san / min(floors) if floors and san else None

    def whole_passes(self, figure):
        """(without the library, with it, without it) of each pass that has all three."""
        for done in self.rounds:
            lines = [done.get(subject) for subject in ("tcp", "san", "tcp-after")]
            if all(lines) and lines[0][figure] and lines[2][figure]:
                yield [line[figure] for line in lines]

    def times_tcp(self, figure):
        """The library's figure in multiples of TCP's: the median over the passes, or None."""
        ratios = [2 * san / (before + after) for before, san, after in self.whole_passes(figure)]
        return median(ratios) if ratios else None

    def tcp_again(self, figure):
        """How far TCP's two figures differ, the larger in multiples of the smaller: the median over the passes, or None."""
        ratios = [max(before, after) / min(before, after) for before, _, after in self.whole_passes(figure)]
        return median(ratios) if ratios else None

    def summary(self):
        figures = ("p50_ns", "p99_ns", "server_cpu_ms", "client_cpu_ms", "cpu_ms")
        ratios = {f"{figure}_to_tcp": self.times_tcp(figure) for figure in figures}
        again = {f"{figure}_tcp_again": self.tcp_again(figure) for figure in figures}
        floors = {f"{figure}_to_floor": self.to_floor(figure) for figure in ("p50_ns", "cpu_ms")}
        return super().summary() | ratios | again | floors | {"rate": self.rate, "connections": self.connections}


# Connections and the rates that make sense of them: each connection is to be used at all.
PACED = {1: (100, 1000, 2000, 10000), 20: (100, 1000, 2000, 10000), 500: (1000, 2000, 10000), 5000: (10000,)}
PACED_QUICK = {1: (1000,), 20: (2000,), 500: (2000,)}


def matrix(quick):
    """All items, in the order of the tables."""
    found = []
    for placement in ("two-cores", "one-core"):
        for wait in ("blocking", "epoll"):
            for size in (8, 64, 4096, 65536):
                found.append(Item("round-trip", size, placement, wait))
        for size in (8, 64):
            found.append(Item("one-way", size, placement, figure="rate_per_s"))
        for size in (4096, 65536, 1 << 20):
            found.append(Item("stream", size, placement, figure="gb_per_s"))
        for case in ("shared", "turns"):
            found.append(SharingItem(case, 64, placement))
        for size in (1, 64):
            found.append(SetupItem(size, placement, 300 if quick else 1000))
        found.append(SetupItem(64, placement, 1000 if quick else 3000, connections=50))
    for connections, rates in (PACED_QUICK if quick else PACED).items():
        for rate in rates:
            # So many requests at least that the slowest hundredth is some.
            found.append(PacedItem(rate, connections, 0.3 if quick else max(1, 300 / rate)))
    return found
