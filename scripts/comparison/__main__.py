"""Runs real programs over TCP and over the SAN, in turn, and reports. See scripts/compare."""
import argparse
import os
import pathlib
import sys

import files
import iperf
import postgres
import redis
import table
import web
from cases import TRANSPORTS
from processes import Again, Failure, Stage

PROGRAMS = {"redis": redis, "iperf3": iperf, "nginx": web, "postgres": postgres}
ROUNDS, SECONDS = 3, 1.5
QUICK_SECONDS = 0.5
# How often a figure is measured of which a part was on TCP by chance.
ATTEMPTS = 5


def attempt(stage, case, transport, seconds):
    for left in range(ATTEMPTS)[::-1]:
        try:
            return case.measure(stage, transport, seconds)
        except Again as why:
            if not left:
                raise
            stage.end_all()
            print(f"measured once more: {str(why).splitlines()[0]}", file=sys.stderr, flush=True)


def measure(stage, cases, rounds, seconds):
    rows = [table.Row(case, {transport: [] for transport in TRANSPORTS}) for case in cases]
    for turn in range(rounds):
        for row in rows:
            # Who goes first changes, so that a drift of the machine favours neither.
            for transport in TRANSPORTS[:: -1 if turn % 2 else 1]:
                row.figures[transport].append(attempt(stage, row.case, transport, seconds))
            rates = {name: table.number(row.figures[name][-1].rate) for name in TRANSPORTS}
            print(
                f"round {turn + 1} of {rounds}: {row.case.program}, {row.case.label}: "
                f"TCP {rates['tcp']}, SAN {rates['san']} {row.case.unit}",
                file=sys.stderr,
                flush=True,
            )
    return rows


def main():
    parser = argparse.ArgumentParser(prog="scripts/compare")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", action="append", choices=PROGRAMS)
    parser.add_argument("--output", type=pathlib.Path)
    options = parser.parse_args()
    rounds = options.rounds or (1 if options.quick else ROUNDS)
    chosen = [name for name in PROGRAMS if not options.only or name in options.only]
    cases = [case for name in chosen for case in PROGRAMS[name].cases()]
    sanctl = os.environ["SANCTL"]
    root = pathlib.Path(os.environ["SANSHIM_ROOT"])

    with Stage(sanctl) as stage:
        rows = measure(stage, cases, rounds, QUICK_SECONDS if options.quick else SECONDS)
    print(table.text(rows))
    if options.output:
        files.write(options.output, rows, rounds, sanctl)
    elif not options.quick and not options.only:
        where = files.write(root / "docs" / "figures", rows, rounds, sanctl)
        files.update_readme(root / "README.md", rows, where)


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"scripts/compare: {failure}")
    except KeyboardInterrupt:
        sys.exit(130)
