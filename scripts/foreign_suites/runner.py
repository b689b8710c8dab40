"""Runs the units of a suite in every mode and says which tests differ."""
import concurrent.futures
import dataclasses
import shutil
import sys

import modes
from sandbox import Sandbox
from suite import DIED, HUNG, PASSED

# A unit whose test hung or whose program died goes on without it, so often.
RESUMES = 8
# A test's outcome is believed natively after so many runs, and what differs is run so often under the shim.
NATIVE_RUNS, SHIM_RUNS = 3, 3


@dataclasses.dataclass
class Run:
    """What came of one unit in one mode, once."""

    outcomes: dict
    seconds: float
    known: int = 0
    on_san: int = 0


@dataclasses.dataclass
class Difference:
    unit: str
    test: str
    native: list
    mode: str
    shim: list

    @property
    def varies(self):
        """Natively it is not always the same either."""
        return len(set(self.native)) > 1


@dataclasses.dataclass
class Result:
    """A suite's: the runs by unit and mode, and what differed."""

    runs: dict = dataclasses.field(default_factory=dict)
    differences: list = dataclasses.field(default_factory=list)


class Runner:
    def __init__(self, place, sanctl, unshare, only, keep, short):
        self.place, self.sanctl, self.unshare = place, sanctl, unshare
        self.only, self.keep, self.short = only, keep, short

    def once(self, unit, mode, number):
        name = f"{unit.name}.{mode}.{number}".replace("/", "_").replace(", ", "-").replace(" ", "-")
        box = Sandbox(self.place / "runs" / name, self.unshare)
        outcomes, seconds, done = {}, 0.0, set()
        for attempt in range(RESUMES):
            command, extra = modes.wrap(mode, unit.command(box.folder, done), self.sanctl, box.folder)
            output = box.folder / f"output.{attempt}"
            ended = box.run(command, output, unit.cwd, unit.env | extra, unit.stall, unit.limit - seconds)
            seconds += ended.seconds
            found = unit.parse(output.read_text(errors="replace"))
            open_ones = [test for test, outcome in found.items() if outcome is None]
            for test in open_ones:
                found[test] = HUNG if ended.status is None else DIED
            if not open_ones and ended.status != 0 and PASSED in found.values() and set(found.values()) <= {PASSED, "skipped"}:
                # All that was reported is well, and yet the program says it is not.
                found["(the whole)"] = HUNG if ended.status is None else DIED
            elif not found:
                found["(the whole)"] = HUNG if ended.status is None else (DIED if ended.status else "passed")
            outcomes |= found
            done |= set(found)
            if not (unit.resumes and open_ones) or seconds > unit.limit:
                break
        known, on_san = modes.connections(box.folder)
        wrong = any(outcome in (HUNG, DIED, "failed") for outcome in outcomes.values())
        if not self.keep and not wrong:
            shutil.rmtree(box.folder, ignore_errors=True)
        if self.only:
            outcomes = {test: outcome for test, outcome in outcomes.items() if self.wanted(test)}
        self.tell(unit, mode, outcomes, seconds, known, on_san)
        return Run(outcomes, seconds, known, on_san)

    def tell(self, unit, mode, outcomes, seconds, known, on_san):
        counts = ", ".join(f"{n} {kind}" for kind, n in tally(outcomes).items() if n)
        carried = "" if mode == modes.NATIVE else f"; {on_san} of {known} connections on the SAN"
        print(f"{unit.name}, {mode}: {counts}, {seconds:.0f} s{carried}", file=sys.stderr, flush=True)

    def wanted(self, test):
        return any(one in test for one in self.only)

    def unit(self, unit, suite):
        """All runs of a unit: natively, in each mode, and again where something differs."""
        chosen = modes.of(suite)
        runs = {modes.NATIVE: [self.once(unit, modes.NATIVE, 1)]}
        if not self.short:
            runs[modes.NATIVE].append(self.once(unit, modes.NATIVE, 2))
        for mode in chosen:
            runs[mode] = [self.once(unit, mode, 1)]
        differing = [mode for mode in chosen if different(runs, mode)]
        if differing:
            while len(runs[modes.NATIVE]) < NATIVE_RUNS:
                runs[modes.NATIVE].append(self.once(unit, modes.NATIVE, len(runs[modes.NATIVE]) + 1))
        found = []
        for mode in differing:
            if not different(runs, mode):
                continue
            while len(runs[mode]) < SHIM_RUNS:
                runs[mode].append(self.once(unit, mode, len(runs[mode]) + 1))
        for mode in chosen:
            found += [
                Difference(unit.name, test, outcomes_of(runs[modes.NATIVE], test), mode, outcomes_of(runs[mode], test))
                for test in different(runs, mode)
            ]
        return runs, found

    def suite(self, suite, units, parallel):
        result = Result()
        with concurrent.futures.ThreadPoolExecutor(parallel) as pool:
            pending = {unit.name: pool.submit(self.unit, unit, suite) for unit in units}
            for name, future in pending.items():
                result.runs[name], found = future.result()
                result.differences += found
        return result


def outcomes_of(runs, test):
    return [run.outcomes.get(test, "absent") for run in runs]


def different(runs, mode):
    """The tests with an outcome in this mode that none of the native runs had, and those that vary natively and were seen to."""
    tests = {test for each in (modes.NATIVE, mode) for run in runs[each] for test in run.outcomes}
    return sorted(
        test for test in tests if not set(outcomes_of(runs[mode], test)) <= set(outcomes_of(runs[modes.NATIVE], test))
    )


def tally(outcomes):
    counts = dict.fromkeys(("passed", "failed", "skipped", "hung", "died"), 0)
    for outcome in outcomes.values():
        counts[outcome] = counts.get(outcome, 0) + 1
    return counts
