"""Runs other projects' test suites natively and under the shim, and says what differs. See scripts/foreign."""
import argparse
import importlib
import os
import pathlib
import shutil
import signal
import sys
from concurrent.futures import ThreadPoolExecutor

import modes
import report
import results
from failure import Failure
from runner import Runner
from sandbox import spaces, stopped

HERE = pathlib.Path(__file__).parent


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
    return chosen


def chosen_units(suite, place, chosen):
    """With --only those units alone that had such a test when last seen, or are named so; if there are none, all."""
    units = suite.units(place, chosen.short)
    if not chosen.only:
        return units
    earlier = results.load(place)
    having = [
        unit
        for unit in units
        if any(one in unit.name or any(one in test for test in results.tests(earlier, unit.name)) for one in chosen.only)
    ]
    return having or units


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


def main():
    every = suites()
    chosen = options(every)
    root, target = pathlib.Path(os.environ["SANSHIM_ROOT"]), pathlib.Path(os.environ["FOREIGN_TARGET"])
    sanctl = os.environ["SANCTL"]
    names = chosen.suites or (["cpython", "libevent"] if chosen.short else list(every))
    if chosen.figures:
        report.write(root / "docs" / "figures" / "foreign.md", target, every, sanctl)
        return 0
    unshare = spaces()
    if unshare is None:
        raise Failure("namespaces cannot be made here (unshare): run this as root, or allow users their own")

    sanctl = copied(sanctl, target)

    def begin(suite, place, units, pool):
        runner = Runner(place, sanctl, unshare, chosen.only, chosen.keep, chosen.once, chosen.short)
        return runner.begin(suite, units, pool)

    absent, found = [], []
    for name in names:
        name, _, program = name.partition(":")
        suite, place = every[name], target / name
        place.mkdir(parents=True, exist_ok=True)
        try:
            suite.prepare(place)
        except Failure as failure:
            print(f"{suite.title}: cannot be had here: {failure}", flush=True)
            absent.append(name)
            continue
        units = [unit for unit in chosen_units(suite, place, chosen) if program in ("", unit.name)]
        if not units:
            raise Failure(f"{suite.title} has no program '{program}'; see --list")
        if chosen.list:
            tell_tests(name, units, place)
        else:
            found.append((suite, place, units, program == ""))

    # What some tests or CI's programs alone found is not kept.
    unexpected, kept = 0, not chosen.only and not chosen.short
    # All is built before the first test: tests measure time. All suites' programs are one pool's: none waits for a suite's last.
    with ThreadPoolExecutor(chosen.jobs) as pool:
        begun = [begin(suite, place, units, pool) for suite, place, units, _ in found]
        for (suite, place, units, whole), running in zip(found, begun):
            version = suite.version(place)
            result = running.finish(
                lambda so_far: kept and results.save(place, version, so_far, whole and len(so_far.runs) == len(units))
            )
            for line in report.lines(suite, version, result):
                print(line, flush=True)
            if not report.totals(result, modes.NATIVE)[0]:
                print("  nothing of it passes natively: it cannot be run here", flush=True)
                absent.append(suite.name)
            verdicts = [report.verdict(suite, one) for one in result.differences]
            # CI's machine is busy with other tests, and suites measure time.
            unexpected += verdicts.count("differs") + (0 if chosen.short else verdicts.count("differed once"))
    if not chosen.list and not chosen.suites and not chosen.only and not chosen.short:
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
