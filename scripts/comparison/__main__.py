"""Runs real programs over TCP, the SAN, AF_UNIX and sockmap, in turn, and reports. See scripts/compare."""

import argparse
import contextlib
import os
import pathlib
import sys
import time

# The soak and the comparison share the modules that start servers. The project's own clients have their shared modules
# beside them.
HERE = pathlib.Path(__file__).parent
sys.path += [str(HERE.parent / "servers"), str(HERE / "programs")]

import busy
import files
import page
import table
from cases import AGAIN, TRANSPORTS
from catalogue import PROGRAMS
from processes import Again, Failure, Stage
from sockmap import Refused, Sockmap

ROUNDS, SECONDS = 3, 1
QUICK_SECONDS = 0.5
# So often a figure is measured of which a part was on TCP by chance.
ATTEMPTS = 5


def say(text):
    print(text, file=sys.stderr, flush=True)


def attempt(stage, row, transport, seconds):
    """Gives a figure. None: each time a part was on TCP by chance, or sockmap failed."""
    case = row.case
    for left in range(ATTEMPTS)[::-1]:
        try:
            return case.measure(stage, "tcp" if transport == AGAIN else transport, seconds)
        except Again as why:
            stage.end_all()
            row.repeated.append(why)
            if not left:
                say(f"no figure: {why}")
                return None
            seen = str(why).partition(" showed ")[2].splitlines()[0]
            say(f"measured once more: {case.program}, {case.label}: {seen}")
        except Failure as why:
            # The kernel's sockmap runs out of memory at times where both ends send.
            if transport != "sockmap":
                raise
            stage.end_all()
            say(f"no figure with sockmap: {str(why).splitlines()[0]}")
            return None


class Progress:
    """Says what was measured, and how much time is left, as the measurements so far suggest."""

    def __init__(self, total):
        self.start, self.done, self.total = time.monotonic(), 0, total

    def say(self, turn, row):
        self.done += 1
        each = (time.monotonic() - self.start) / self.done
        minutes, seconds = divmod(round(each * (self.total - self.done)), 60)
        figures = ", ".join(
            f"{label} {table.number(row.figures[name][-1] and row.figures[name][-1].rate)}"
            for name, label in TRANSPORTS.items()
            if name in row.figures
        )
        case = row.case
        say(
            f"[{self.done}/{self.total}, {minutes}:{seconds:02} left] round {turn + 1}, "
            f"{case.program}, {case.label}: {figures} {case.unit}"
        )


def measure(stage, cases, rounds, seconds):
    rows = []
    for case in cases:
        offered = {"tcp": True, "san": True, AGAIN: case.again, "unix": case.unix, "sockmap": stage.sockmap and case.sockmap}
        rows.append(table.Row(case, {transport: [] for transport, is_there in offered.items() if is_there}))
    progress = Progress(rounds * len(rows))
    for turn in range(rounds):
        for row in rows:
            # The first transport changes from turn to turn, so that a drift of the machine favours no transport.
            for transport in list(row.figures)[:: -1 if turn % 2 else 1]:
                row.figures[transport].append(attempt(stage, row, transport, seconds))
            progress.say(turn, row)
    return rows


def chosen(only):
    """Gives the cases of the programs that are there."""
    for name, program in PROGRAMS.items():
        if only and name not in only:
            continue
        if missing := program.missing():
            say(f"left out: {name}, for want of {', '.join(missing)}")
            continue
        yield from program.cases()


def sockmap():
    """Gives sockmap, or None, and what to tell the reader."""
    try:
        return Sockmap(), "eBPF sockmap hands over what is sent, by `scripts/comparison/sockmap.py`."
    except Refused as why:
        say(f"left out: sockmap; this machine refuses {why}")
        return None, f"There is no sockmap column: the machine refuses {why}."


def main():
    parser = argparse.ArgumentParser(prog="scripts/compare")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--only", action="append", choices=PROGRAMS)
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--html", type=pathlib.Path)
    options = parser.parse_args()
    if options.html and not options.html.absolute().parent.is_dir():
        parser.error(f"--html {options.html}: its folder is not there; make it first")
    rounds = options.rounds or (1 if options.quick else ROUNDS)
    cases = list(chosen(options.only))
    if not cases:
        raise Failure("nothing is left to measure")
    sanctl = os.environ["SANCTL"]
    root = pathlib.Path(os.environ["SANSHIM_ROOT"])

    with Stage(sanctl, "sanshim-compare-") as stage:
        stage.sockmap, note = sockmap()
        with busy.beside(stage, busy.COMPILE) if options.busy else contextlib.nullcontext():
            rows = measure(stage, cases, rounds, QUICK_SECONDS if options.quick else SECONDS)
    print(table.text(table.RATES, table.rates, rows))
    print()
    print(table.text(table.COSTS, table.costs, rows))
    if again := table.judged_again(rows):
        print()
        print(table.text(table.LOSSES, table.losses, again))
    if lacking := [f"{row.case.program}, {row.case.label}" for row in rows if row.rate("san") is None]:
        raise Failure(f"the SAN was not used, for want of processor time: {'; '.join(lacking)}")
    report = files.Report(rows, rounds, sanctl, note)
    if options.output:
        files.write(options.output, report)
    elif not (options.quick or options.only or options.busy):
        files.write(root / "docs" / "figures", report)
        files.update_readme(root / "README.md", report)
    if options.html:
        files.replace(options.html, page.html(report))


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"scripts/compare: {failure}")
    except KeyboardInterrupt:
        sys.exit(130)
