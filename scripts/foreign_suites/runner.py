"""Runs the units of a suite in every mode and says which tests differ."""
import concurrent.futures
import dataclasses
import shutil
import sys
import time

import modes
from sandbox import Sandbox
from suite import DIED, HUNG, PASSED, SKIPPED

# A unit whose test hung or whose program died goes on without it, so often.
RESUMES = 8
# What differs is run so often again each way, in turn; a program whose tests cannot be chosen less often, whole. Under the shim
# without a log then: its file is a descriptor more, which tests can see. What is well without one is looked at with one again.
AGAIN, WHOLE_AGAIN, LOGGED_AGAIN = 5, 2, 2
# What differed once did so on a busy machine. It is run natively on one, in rounds of so many at a time, to see whether it
# fails there as well.
ROUNDS, AT_ONCE, SECONDS = 6, 8, 120
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
    """A test's outcomes natively, and in a mode with a log and without one."""

    unit: str
    test: str
    native: list
    mode: str
    logged: list
    plain: list

    @property
    def kind(self):
        if len(set(self.native)) > 1:
            return "varies natively"
        if not self.plain or set(self.plain) - set(self.native):
            return "differs"
        return "differs with a log" if sum(one not in self.native for one in self.logged) > 1 else "differed once"


@dataclasses.dataclass
class Result:
    """A suite's: the runs by unit and mode, and what differed."""

    runs: dict = dataclasses.field(default_factory=dict)
    differences: list = dataclasses.field(default_factory=list)


class Runner:
    def __init__(self, place, sanctl, unshare, only, keep, once, short):
        self.place, self.sanctl, self.unshare = place, sanctl, unshare
        self.only, self.keep, self.natively_once = only, keep, once or short
        self.short = short

    def once(self, unit, mode, number, chosen=(), logged=True):
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
        known, on_san = modes.connections(box.folder)
        if not self.keep and set(outcomes.values()) <= {PASSED, SKIPPED}:
            shutil.rmtree(box.folder, ignore_errors=True)
        if self.only:
            outcomes = {test: outcome for test, outcome in outcomes.items() if any(one in test for one in self.only)}
        carried = f"; {on_san} of {known} connections on the SAN" if mode != modes.NATIVE and logged else ""
        self.tell(unit, mode, outcomes, seconds, carried)
        return Run(outcomes, seconds, known, on_san, sorted(chosen) or None, logged)

    def tell(self, unit, mode, outcomes, seconds, carried):
        counts = ", ".join(f"{n} {kind}" for kind, n in tally(outcomes).items() if n)
        print(f"{unit.name}, {mode}: {counts}, {seconds:.0f} s{carried}", file=sys.stderr, flush=True)

    def unit(self, unit, suite):
        """All runs of a unit: natively, in each mode, and again where something differs."""
        chosen = modes.of(suite, self.short)
        runs = {modes.NATIVE: [self.once(unit, modes.NATIVE, 1)]}
        if not self.natively_once:
            runs[modes.NATIVE].append(self.once(unit, modes.NATIVE, 2))
        for mode in chosen:
            runs[mode] = [self.once(unit, mode, 1)]
        for mode in chosen:
            self.again(unit, mode, runs)
        return runs, [
            difference(unit, mode, runs, test)
            for mode in chosen
            for test in sorted({*different(runs, mode), *varying(runs)})
        ]

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
        if all(difference(unit, mode, runs, test).kind == "differed once" for test in differing):
            self.natively_on_a_busy_machine(unit, mode, runs, chosen)

    def natively_on_a_busy_machine(self, unit, mode, runs, chosen):
        """Until all that differed did so natively too, or often enough."""
        natively, until = runs[modes.NATIVE], time.monotonic() + SECONDS
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            for _ in range(ROUNDS):
                if not different(runs, mode) or time.monotonic() > until:
                    return
                numbers = range(len(natively) + 1, len(natively) + 1 + AT_ONCE)
                natively += pool.map(lambda number: self.once(unit, modes.NATIVE, number, chosen), numbers)

    def begin(self, suite, units, pool):
        """All units, each in a thread of the pool."""
        return Running({pool.submit(self.unit, unit, suite): unit.name for unit in units})


@dataclasses.dataclass
class Running:
    """A suite's units by their futures."""

    pending: dict

    def finish(self, done):
        """Waits for all; `done` is called with what there is, also where they are ended."""
        result = Result()
        try:
            for future in concurrent.futures.as_completed(self.pending):
                result.runs[self.pending[future]], found = future.result()
                result.differences += found
        finally:
            done(result)
        return result


def difference(unit, mode, runs, test):
    return Difference(
        unit.name,
        test,
        outcomes_of(runs[modes.NATIVE], test),
        mode,
        outcomes_of([run for run in runs[mode] if run.logged], test),
        outcomes_of([run for run in runs[mode] if not run.logged], test),
    )


def outcomes_of(runs, test):
    return [run.outcomes.get(test, "absent") for run in runs if run.chosen is None or test in run.chosen]


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
