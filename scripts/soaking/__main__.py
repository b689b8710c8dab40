"""Runs servers for long under the library while much happens to them. See scripts/soak."""

import argparse
import os
import pathlib
import random
import shutil
import sys
import traceback

sys.path.append(str(pathlib.Path(__file__).parent.parent / "servers"))

import graphs
import machine
from measures import TITLES, compare
from processes import Failure, Stage
from servers import KINDS, NEEDS
from soak import Soak


def say(text):
    print(text, file=sys.stderr, flush=True)


def options():
    parser = argparse.ArgumentParser(prog="scripts/soak")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--library", type=pathlib.Path)
    parser.add_argument("--upgrade", type=pathlib.Path)
    parser.add_argument("--keep", type=pathlib.Path)
    parser.add_argument("--only", action="append", choices=KINDS)
    parser.add_argument("--require", action="store_true")
    parser.add_argument("--native", action="store_true")
    parser.add_argument("--beside", type=pathlib.Path)
    chosen = parser.parse_args()
    if chosen.short:
        chosen.minutes, chosen.only = 2, chosen.only or ["redis", "nginx", "python"]
    if chosen.minutes < 1:
        parser.error("--minutes needs 1 or more: some of it is for the quiet times")
    if chosen.seed is None:
        chosen.seed = random.SystemRandom().randrange(1 << 30)
    for library in filter(None, (chosen.library, chosen.upgrade, chosen.beside)):
        if not library.is_file():
            parser.error(f"{library} is not there: name a library")
    return chosen


def had(wanted, require):
    """The kinds of servers that are installed."""
    found = []
    for kind in wanted:
        missing = sorted({package for need, package in NEEDS[kind].items() if not shutil.which(need)})
        if kind == "postgres" and os.environ.get("SOAK_USERS") == "one":
            missing.append("a second user: it does not run as root; start this as root")
        if not missing:
            found.append(kind)
        elif require:
            raise Failure(f"{kind} cannot be had, for want of {', '.join(missing)}: run scripts/install")
        else:
            say(f"left out: {kind}, for want of {', '.join(missing)}")
    if not found:
        raise Failure("no server is left: run scripts/install")
    return found


def placed(stage, chosen):
    """A library of the soak's own, which it may replace, and what comes in its place."""
    built = pathlib.Path(os.environ["SANSHIM_LIBRARY"])
    library = stage.folder / "lib" / "libsanshim.so"
    library.parent.mkdir()
    shutil.copy(chosen.library or built, library)
    builds = [chosen.library or built, *filter(None, [chosen.upgrade])]
    stage.environment |= {"SANSHIM_LIBRARY": str(library), "SANSHIM_LOG": "info", "SANSHIM_CONFIG": "/dev/null"}
    if chosen.beside:
        stage.environment["LD_PRELOAD"] = str(chosen.beside.resolve())
    return library, [build.resolve() for build in builds]


def shown(name, value):
    return f"{value / 1024:.1f} MiB" if name.endswith("kib") else f"{value:g}"


def report(soak, folder, title):
    """Writes the table and the graphs, prints what was before and after, and gives what is not back."""
    soak.measures.write(folder / "samples.csv")
    if soak.measures.samples:
        (folder / "soak.svg").write_text(graphs.svg(soak.measures.samples, soak.marks, title))
    (folder / "events.txt").write_text("".join(f"{at:8.1f} s  {what}\n" for at, what in soak.marks))
    start, end = soak.measures.medians("start"), soak.measures.medians("end")
    if not start or not end:
        return []
    wrong = []
    serving = {server.name: server.serving for server in soak.servers}
    for server, name, first, last, slack in compare(start, end, serving):
        word = "" if slack is None else "  NOT BACK"
        print(f"{server:16} {TITLES[name].split(',')[0]:26} {shown(name, first):>12} -> {shown(name, last):>12}{word}")
        if slack is not None:
            limit = f"5 % and {shown(name, slack)}"
            what = TITLES[name].split(",")[0]
            wrong.append(f"{server}: {what} was {shown(name, first)} at the start and is {shown(name, last)}: more than {limit} above it")
    return wrong


def summary(soak, folder):
    ended = ", ".join(f"{count} {kind}" for kind, count in sorted(soak.load.ended.items()))
    events = ", ".join(f"{count} {what}" for what, count in soak.events.counts.items())
    text = f"clients that ended: {ended}\nevents: {events}\nnative checks of all data: {soak.checks.done}\n"
    (folder / "summary.txt").write_text(text)
    print(text, end="")


def main():
    chosen = options()
    folder = chosen.keep or pathlib.Path(os.environ["SOAK_FOLDER"])
    if not chosen.keep:
        # What an earlier one left there.
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    transport = "tcp" if chosen.native else "san"
    kinds = had(chosen.only or list(KINDS), chosen.require)
    seconds = chosen.minutes * 60
    warm_up = max(seconds / 6, 25)
    replay = f"scripts/soak --minutes {chosen.minutes:g} --seed {chosen.seed}" + "".join(f" --only {kind}" for kind in chosen.only or [])
    say(f"seed {chosen.seed}; {', '.join(kinds)}; {machine.describe()}")
    with Stage(os.environ["SANCTL"], "sanshim-soak-") as stage:
        library, builds = placed(stage, chosen)
        soak = Soak(stage, transport, kinds, chosen.seed, library, builds, say)
        try:
            soak.run(warm_up, seconds - warm_up)
            failures = report(soak, folder, f"{replay}; {machine.describe()}") + soak.without_san()
        except Failure as failure:
            report(soak, folder, replay)
            failures = [f"after {soak.now:.0f} s: {failure}"]
        except Exception:
            report(soak, folder, replay)
            failures = [f"after {soak.now:.0f} s:\n{traceback.format_exc()}"]
        summary(soak, folder)
        if failures or chosen.keep:
            soak.keep(folder)
    if failures:
        raise Failure("\n".join([*failures, f"what was seen is in {folder}; replay it: {replay}"]))
    print(f"all as at the start; table and graphs are in {folder}")


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"scripts/soak: {failure}")
