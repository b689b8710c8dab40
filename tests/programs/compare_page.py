#!/usr/bin/env python3
"""Writes the page of scripts/compare with invented figures of every case: compare_page.py FILE"""

import pathlib
import sys

sys.dont_write_bytecode = True
for folder in ("servers", "comparison"):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts" / folder))

import catalogue
import files
import page
import table
from cases import AGAIN, Figure


def figure(case, transport, place):
    rate = (place + 1) * 12345.6 * (10 if transport == "san" else 1)
    latencies = (None, None) if case.bulk else (1e6 / rate, 1e7 / rate)
    return Figure(rate, *latencies, cpu=4e6 / rate)


def row(case, place):
    transports = ["tcp", "san", "sockmap", *[AGAIN] * case.again, *["unix"] * case.unix]
    return table.Row(case, {transport: [figure(case, transport, place)] for transport in transports})


cases = [case for program in catalogue.PROGRAMS.values() for case in program.cases()]
rows = [row(case, place) for place, case in enumerate(cases)]
pathlib.Path(sys.argv[1]).write_text(page.html(files.Report(rows, 3, "/bin/true", "A <note> & more.")))
