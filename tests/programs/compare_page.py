#!/usr/bin/env python3
"""Writes what scripts/compare writes, with invented figures of every case, and a README.md: compare_page.py FOLDER"""

import pathlib
import sys

sys.dont_write_bytecode = True
for folder in ("servers", "comparison", "comparison/programs"):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts" / folder))

import catalogue
import files
import table
from cases import AGAIN, Figure


ROUNDS = 3


def figure(case, transport, place, turn):
    # The rounds on the SAN differ from those on TCP, and from each other.
    rate = (place + 1) * 12345.6 * (10 + turn if transport == "san" else 1) * (1 + turn / 10)
    if case.pace:
        rate = case.pace[1] * (1 - turn / 10)
    if case.bulk:
        return Figure(rate, cpu=4e6 / rate)
    took = {50.0: 1e6 / rate, 90.0: 3e6 / rate, 99.0: 1e7 / rate, 99.9: 2e8 / rate}
    return Figure(rate, took[50], took[99], 4e6 / rate, took)


def row(case, place):
    transports = ["tcp", "san", "sockmap", *[AGAIN] * case.again, *["unix"] * case.unix]
    return table.Row(case, {one: [figure(case, one, place, turn) for turn in range(ROUNDS)] for one in transports})


cases = [case for program in catalogue.PROGRAMS.values() for case in program.cases()]
rows = [row(case, place) for place, case in enumerate(cases)]
folder = pathlib.Path(sys.argv[1])
report = files.Report(rows, ROUNDS, "/bin/true", "A <note> & more.")
files.write(folder, report)
readme = folder / "README.md"
readme.write_text("<!-- figures:begin -->\n<!-- figures:end -->\n")
files.update_readme(readme, report)
