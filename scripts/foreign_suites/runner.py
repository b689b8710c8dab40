"""Runs the units of a suite in every mode and says which tests differ."""
import concurrent.futures
import contextlib
import dataclasses
import os
import shutil
import subprocess
import sys

import known
import modes
import shim_log
from failure import Failure
from sandbox import Sandbox, stopped
from suite import DIED, HUNG, PASSED, SKIPPED

# A unit whose test hung or whose program died goes on without it, so often.
RESUMES = 8
# What differs is run so often again each way, in turn; a program whose tests cannot be chosen less often, whole. Under the shim
# without a log then: its file is a descriptor more, which tests can see. What is well without one is looked at with one again.
AGAIN, WHOLE_AGAIN, LOGGED_AGAIN = 5, 2, 2
# What differed, but not always, may have done so because the machine was busy. It is run natively on a busy one, at the end: so
# many times, so many of them side by side for each processor, each for so many seconds at the most; beside so many processes for
# each processor that do nothing but make others.
BUSY_RUNS, BUSY_RUNS_EACH, BUSY_LIMIT, BUSY_OTHERS_EACH = 192, 4, 120, 32
# What a run tells of a test that another one ran.
ABSENT = "absent"
# The one id of a program of which nothing is known but how it ended.
WHOLE = "(the whole)"


@dataclasses.dataclass
class Run:
    """What came of one unit in one mode, once."""

    outcomes: dict
    seconds: float
    known: int = 0
    on_san: int = 0
    # The tests that were chosen, where not all ran.
    chosen: list | None = None
    logged: bool = True


@dataclasses.dataclass
class Difference:
    """A test's outcomes natively, and in a mode with a log and without one; and natively on a busy machine."""

    unit: str
    test: str
    native: list
    mode: str
    logged: list
    plain: list
    busy: list = dataclasses.field(default_factory=list)

    @property
    def deviating(self):
        return [one for one in self.logged + self.plain if one not in self.native]

    @property
    def sometimes(self):
        """Under the shim it deviates, but not always; a busy machine explains nothing that always does."""
        return 0 < len(self.deviating) < len(self.logged + self.plain)

    @property
    def kind(self):
        if len(set(self.native)) > 1:
            return "varies natively"
        # That one hung says nothing there: its time is short.
        if self.sometimes and set(self.deviating) <= set(self.busy) - {ABSENT, HUNG}:
            return "varies natively on a busy machine"
        if not self.plain or set(self.plain) - set(self.native):
            return "differs"
        return "differs with a log" if len(self.deviating) > 1 else "differed once"


@dataclasses.dataclass
class Result:
    """A suite's: the runs by unit and mode, and what differed."""

    runs: dict = dataclasses.field(default_factory=dict)
    differences: list = dataclasses.field(default_factory=list)


class Runner:
    """Of one suite, or of some of its units; `place` is its folder."""

    def __init__(self, suite, units, place, sanctl, unshare, only, keep, once, short):
        self.suite, self.units, self.place = suite, {unit.name: unit for unit in units}, place
        self.sanctl, self.unshare = sanctl, unshare
        self.only, self.keep, self.natively_once = only, keep, once or short
        self.modes = modes.of(suite, short)
        self.pending, self.busy = {}, {}

    def once(self, unit, mode, number, chosen=(), logged=True):
        if stopped.is_set():
            raise Failure("ended by a signal")
        name = f"{unit.name}.{mode}.{number}".replace("/", "_").replace(", ", "-").replace(" ", "-")
        box = Sandbox(self.place / "runs" / name, self.unshare)
        outcomes, seconds, done = {}, 0.0, set()
        for attempt in range(RESUMES):
            command, extra = modes.wrap(mode, unit.command(box.folder, done, chosen), self.sanctl, box.folder, logged)
            output = box.folder / f"output.{attempt}"
            ended = box.run(command, output, unit.cwd, unit.env | extra, unit.stall, unit.limit - seconds)
            seconds += ended.seconds
            found = unit.parse(output.read_text(errors="replace"))
            unfinished = [test for test, outcome in found.items() if outcome is None]
            how = HUNG if ended.status is None else DIED
            found |= dict.fromkeys(unfinished, how)
            if not found or ended.status != 0 and set(found.values()) <= {PASSED, SKIPPED}:
                # All that was reported is well, and yet the program says it is not.
                found[WHOLE] = PASSED if ended.status == 0 else how
            outcomes |= found
            done |= set(found)
            if not (unit.selects and unfinished) or seconds > unit.limit:
                break
        known, on_san = shim_log.moved(box.folder / "log", "connector")
        if not self.keep and set(outcomes.values()) <= {PASSED, SKIPPED}:
            shutil.rmtree(box.folder, ignore_errors=True)
        if self.only:
            outcomes = {test: outcome for test, outcome in outcomes.items() if any(one in test for one in self.only)}
        carried = f"; {on_san} of {known} connections on the SAN" if mode not in modes.UNSHIMMED and logged else ""
        self.tell(unit, mode, outcomes, seconds, carried)
        return Run(outcomes, seconds, known, on_san, sorted(chosen) or None, logged)

    def tell(self, unit, mode, outcomes, seconds, carried):
        counts = ", ".join(f"{n} {kind}" for kind, n in tally(outcomes).items() if n)
        print(f"{unit.name}, {mode}: {counts}, {seconds:.0f} s{carried}", file=sys.stderr, flush=True)

    def unit(self, unit):
        """All runs of a unit: natively, in each mode, and again where something differs."""
        runs = {modes.NATIVE: [self.once(unit, modes.NATIVE, 1)]}
        if not self.natively_once:
            runs[modes.NATIVE].append(self.once(unit, modes.NATIVE, 2))
        for mode in self.modes:
            runs[mode] = [self.once(unit, mode, 1)]
        for mode in self.modes:
            self.again(unit, mode, runs)
        return runs

    def again(self, unit, mode, runs):
        differing = different(runs, mode)
        if not differing:
            return
        selects = unit.selects and WHOLE not in differing
        chosen = differing if selects else ()

        def run(each, logged):
            runs[each].append(self.once(unit, each, len(runs[each]) + 1, chosen, logged))

        for _ in range(AGAIN if selects else WHOLE_AGAIN):
            run(modes.NATIVE, logged=True)
            run(mode, logged=False)
        if not different({modes.NATIVE: runs[modes.NATIVE], mode: [one for one in runs[mode] if not one.logged]}, mode):
            for _ in range(LOGGED_AGAIN):
                run(mode, logged=True)

    def begin(self, pool):
        """Gives the pool one unit after the other; their futures."""
        for name, unit in self.units.items():
            future = pool.submit(self.unit, unit)
            self.pending[future] = name
            yield future

    def finished(self):
        """The runs of the units that are done, by unit and mode."""
        done = [one for one in self.pending if one.done() and not one.cancelled() and not one.exception()]
        return {self.pending[one]: one.result() for one in done}

    def progress(self):
        """Another one each time when there is more to tell."""
        return len(self.finished()), sum(map(len, self.busy.values()))

    def result(self):
        runs = self.finished()
        return Result(runs, [one for name in runs for one in self.differences(name, runs[name])])

    def differences(self, name, runs):
        return [
            Difference(
                name,
                test,
                outcomes_of(runs[modes.NATIVE], test),
                mode,
                outcomes_of([run for run in runs[mode] if run.logged], test),
                outcomes_of([run for run in runs[mode] if not run.logged], test),
                outcomes_of(self.busy.get(name, []), test),
            )
            for mode in self.modes
            for test in sorted({*different(runs, mode), *varying(runs)})
        ]

    def may_be_the_machine(self, one):
        """True if nothing explains it yet, and a busy machine may."""
        kinds = "differed once", "differs"
        return one.kind in kinds and one.sometimes and not known.expected(self.suite.name, one)

    def run_on_a_busy_machine(self):
        """Natively, what differs sometimes, until it did so there too, or often enough. Nothing else runs meanwhile."""
        processors = len(os.sched_getaffinity(0))
        side_by_side = BUSY_RUNS_EACH * processors
        for name, runs in self.finished().items():
            unit = dataclasses.replace(self.units[name], limit=min(self.units[name].limit, BUSY_LIMIT))
            for first in range(1, BUSY_RUNS + 1, side_by_side):
                tests = sorted({one.test for one in self.differences(name, runs) if self.may_be_the_machine(one)})
                if not tests:
                    break
                chosen = tests if unit.selects and WHOLE not in tests else ()
                with others(BUSY_OTHERS_EACH * processors), concurrent.futures.ThreadPoolExecutor(side_by_side) as pool:
                    numbers = range(first, min(first + side_by_side, BUSY_RUNS + 1))
                    done = pool.map(lambda number: self.once(unit, modes.BUSY, number, chosen), numbers)
                    self.busy.setdefault(name, []).extend(done)


@contextlib.contextmanager
def others(count):
    """So many processes that keep the machine busy."""
    processes = [subprocess.Popen(["sh", "-c", "while :; do sh -c :; done"]) for _ in range(count)]
    try:
        yield
    finally:
        for one in processes:
            one.kill()
            one.wait()


def outcomes_of(runs, test):
    return [run.outcomes.get(test, ABSENT) for run in runs if run.chosen is None or test in run.chosen]


def different(runs, mode):
    """The tests with an outcome in this mode that none of the native runs had."""
    tests = {test for each in (modes.NATIVE, mode) for run in runs[each] for test in run.outcomes}
    return sorted(
        test for test in tests if not set(outcomes_of(runs[mode], test)) <= set(outcomes_of(runs[modes.NATIVE], test))
    )


def varying(runs):
    """The tests that are not natively always the same."""
    natively = runs[modes.NATIVE]
    return {test for run in natively for test in run.outcomes if len(set(outcomes_of(natively, test))) > 1}


def tally(outcomes):
    counts = dict.fromkeys(("passed", "failed", "skipped", "hung", "died"), 0)
    for outcome in outcomes.values():
        counts[outcome] = counts.get(outcome, 0) + 1
    return counts
