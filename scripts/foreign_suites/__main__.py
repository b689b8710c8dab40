"""Runs other projects' test suites natively and under the shim, and says what differs. See scripts/foreign."""
import argparse
import importlib
import itertools
import os
import pathlib
import shutil
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

HERE = pathlib.Path(__file__).parent
sys.path.append(str(HERE.parent / "servers"))

import modes
import report
import results
from failure import Failure
from runner import Runner
from sandbox import spaces, stopped

# Seconds after which what there is by then is kept.
KEEP = 60


def suites():
    names = sorted(path.stem for path in (HERE / "suites").glob("*.py") if path.stem != "__init__")
    found = [importlib.import_module(f"suites.{name}").SUITE for name in names]
    # CPython first: it tests the most.
    return {suite.name: suite for suite in sorted(found, key=lambda suite: (suite.name != "cpython", suite.name))}


def options(every):
    parser = argparse.ArgumentParser(prog="scripts/foreign")
    parser.add_argument("suites", nargs="*", metavar="SUITE")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--figures", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    chosen = parser.parse_args()
    for name in chosen.suites:
        if name.partition(":")[0] not in every:
            parser.error(f"there is no suite '{name}', but {', '.join(every)}")
    if chosen.jobs < 1:
        parser.error(f"--jobs {chosen.jobs}: it takes one at least")
    return chosen


def chosen_units(suite, place, chosen):
    """With --only those units alone that had such a test when last seen, or are named so; all where none was seen yet."""
    units = suite.units(place, chosen.short)
    if not chosen.only:
        return units
    earlier = results.load(place)
    having = [
        unit
        for unit in units
        if any(one in unit.name or any(one in test for test in results.tests(earlier, unit.name)) for one in chosen.only)
    ]
    return having if earlier else having or units


def copied(sanctl, target):
    """The library and sanctl as they are now: a later build must not change what a run tests."""
    folder = target / "tested"
    folder.mkdir(parents=True, exist_ok=True)
    library = pathlib.Path(os.environ.get("SANSHIM_LIBRARY") or pathlib.Path(sanctl).parent / "libsanshim.so")
    for file in (pathlib.Path(sanctl), library):
        beside = folder / f"{file.name}.new"
        shutil.copy2(file, beside)
        os.replace(beside, folder / file.name)
    return str(folder / "sanctl")


def tell_tests(name, units, place):
    earlier = results.load(place)
    for unit in units:
        print(f"{name}: {unit.name}")
        for test in results.tests(earlier, unit.name):
            print(f"  {test}")


def prepared(every, chosen, target):
    """The suites that were asked for, each with its folder, the units to run and the names of all, and the names of suites that
    cannot be had."""
    asked = {}
    for each in chosen.suites or (["cpython", "libevent"] if chosen.short else list(every)):
        name, _, program = each.partition(":")
        asked.setdefault(name, set()).add(program)
    found, absent = [], []
    for name, programs in asked.items():
        if stopped.is_set():
            raise Failure("ended by a signal")
        suite, place = every[name], target / name
        place.mkdir(parents=True, exist_ok=True)
        try:
            suite.prepare(place)
        except Failure as failure:
            print(f"{suite.title}: cannot be had here: {failure}", flush=True)
            absent.append(name)
            continue
        units = chosen_units(suite, place, chosen)
        names = {unit.name for unit in units}
        if missing := programs - {"", *names}:
            raise Failure(f"{suite.title} has no program '{missing.pop()}'; see --list")
        if "" not in programs:
            units = [unit for unit in units if unit.name in programs]
        if units:
            found.append((suite, place, units, names))
    if not found and not absent:
        raise Failure(f"no program or test is called like {' or '.join(chosen.only)}; see --list")
    return found, absent


def run(runners, jobs, keep, settle):
    """All units of all suites, in one pool, so that none waits for a suite's last. `keep` is called now and then, and at the
    end."""
    pool = ThreadPoolExecutor(jobs)
    try:
        kept = time.monotonic()
        # In turn: some suites compute, others sleep.
        turns = itertools.zip_longest(*(runner.begin(pool) for runner in runners))
        for future in as_completed([one for turn in turns for one in turn if one]):
            future.result()
            if time.monotonic() > kept + KEEP:
                keep()
                kept = time.monotonic()
        for runner in runners if settle else ():
            runner.run_on_a_busy_machine()
    finally:
        # Nothing is left to be done but after an error, or a signal.
        pool.shutdown(cancel_futures=True)
        keep()


def main():
    every = suites()
    chosen = options(every)
    root, target = pathlib.Path(os.environ["SANSHIM_ROOT"]), pathlib.Path(os.environ["FOREIGN_TARGET"])
    sanctl = os.environ["SANCTL"]
    if chosen.figures:
        report.write(root / "docs" / "figures" / "foreign.md", target, every, sanctl)
        return 0
    unshare = spaces()
    if unshare is None:
        raise Failure("namespaces cannot be made here (unshare): run this as root, or allow users their own")

    sanctl = copied(sanctl, target)
    # All is built before the first test: tests measure time.
    found, absent = prepared(every, chosen, target)
    if chosen.list:
        for suite, place, units, _ in found:
            tell_tests(suite.name, units, place)
        return 1 if absent else 0
    how = sanctl, unshare, chosen.only, chosen.keep, chosen.once, chosen.short
    runners = [Runner(suite, units, place, *how) for suite, place, units, _ in found]
    kept = {}

    def keep():
        # What some tests or CI's programs alone found is not kept.
        for runner, (suite, place, _, names) in zip(runners, found) if not chosen.only and not chosen.short else ():
            if kept.get(runner) != runner.progress():
                kept[runner] = runner.progress()
                results.save(place, suite.version(place), runner.result(), names)

    run(runners, chosen.jobs, keep, settle=not chosen.short)
    unexpected = 0
    for runner in runners:
        suite, result = runner.suite, runner.result()
        for line in report.lines(suite, suite.version(runner.place), result):
            print(line, flush=True)
        if not report.totals(result, modes.NATIVE)[0]:
            print("  nothing of it passes natively: it cannot be run here", flush=True)
            absent.append(suite.name)
        verdicts = [report.verdict(suite, one) for one in result.differences]
        # CI's machine is busy with other tests, and suites measure time.
        unexpected += verdicts.count("differs") + (0 if chosen.short else verdicts.count("differed once"))
    if not chosen.suites and not chosen.only and not chosen.short:
        report.write(root / "docs" / "figures" / "foreign.md", target, every, sanctl)
    return 1 if unexpected or absent else 0


if __name__ == "__main__":
    # What runs is ended by the threads that started it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: stopped.set())
    try:
        sys.exit(main())
    except Failure as failure:
        sys.exit(f"scripts/foreign: {failure}")
