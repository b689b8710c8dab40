"""Runs the measurements of sanbench side by side and reports medians and ratios.

Called by scripts/bench, which builds what is needed and explains the options.
"""

import argparse
import json
import os
import sys

import carriers
import extras
import items
import tables
from runner import Runner, machine


# What is measured beside the items.
OTHERS = {"carriers": carriers.carriers, "syscalls": extras.system_calls, "idle": extras.idle}


def arguments():
    parser = argparse.ArgumentParser(prog="scripts/bench")
    parser.add_argument("--sanbench", required=True)
    parser.add_argument("--library", required=True)
    parser.add_argument("--docs", required=True)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--no-san", action="store_true")
    parser.add_argument("--no-docs", action="store_true")
    parser.add_argument("--json")
    chosen = parser.parse_args()
    if chosen.rounds is not None and not 1 <= chosen.rounds <= 1000:
        parser.error("--rounds must be 1 to 1000")
    parts = [*dict.fromkeys(item.case for item in items.matrix(chosen.quick)), *OTHERS]
    unknown = [name for name in chosen.only if not any(name in part for part in parts)]
    if unknown:
        parser.error(f"--only {unknown[0]}: there is no such part, but {', '.join(parts)}")
    if chosen.json and not os.path.isdir(os.path.dirname(chosen.json) or "."):
        parser.error(f"--json {chosen.json}: its folder is not there; make it first")
    if not chosen.no_san and not os.path.isfile(chosen.library):
        parser.error(f"{chosen.library} is not a file: build it, or use --no-san")
    return chosen


def progress(text):
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def main():
    chosen = arguments()
    rounds = chosen.rounds or (2 if chosen.quick else 5)
    seconds = 0.1 if chosen.quick else 0.3
    wanted = lambda name: not chosen.only or any(part in name for part in chosen.only)
    about = machine()
    runner = Runner(chosen.sanbench, None if chosen.no_san else chosen.library, seconds)

    matrix = [item for item in items.matrix(chosen.quick) if wanted(item.case)]
    for number in range(rounds):
        for done, item in enumerate(matrix):
            progress(f"round {number + 1} of {rounds}, {done + 1} of {len(matrix)}: {item.name}")
            item.run_round(runner)
    found = {}
    for name, measure in OTHERS.items():
        if wanted(name):
            progress(name)
            found[name] = measure(runner, chosen.quick)
    progress("")

    text = tables.render(about, rounds, seconds, matrix, found)
    print(text)
    if chosen.json:
        with open(chosen.json, "w") as file:
            summary = [item.summary() for item in matrix]
            samples = [line for item in matrix for line in item.samples()]
            report = {"machine": about, "rounds": rounds, "seconds": seconds}
            json.dump(report | {"summary": summary, "samples": samples} | found, file, indent=1)
            file.write("\n")
    partial = chosen.quick or chosen.only or chosen.no_san or runner.failures
    if not chosen.no_docs and not partial:
        tables.write_between_markers(chosen.docs, text)
    for failure in runner.failures:
        print(f"scripts/bench: {failure}", file=sys.stderr)
    return 1 if runner.failures else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
