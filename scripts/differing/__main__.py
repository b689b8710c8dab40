"""Compares random programs of socket calls natively and under the library. See scripts/differ."""
import argparse
import collections
import multiprocessing
import os
import pathlib
import random
import re
import shutil
import signal
import sys
import tempfile
import time

import known
import steps
from coordinator import Run, Tested, become_reaper
from generator import generate
from modes import BY_NAME, MODES, NATIVE
from worker import kind, work

# The exit status of a run: a program differs, or bytes are lost, repeated or wrong.
DIFFERS, BYTES = 1, 3
# After so many seconds the run says how far it is.
SAY_AFTER = 30
# `--short` runs programs that have shown nothing new, in the modes that users have.
SHORT_SEEDS, SHORT_MODES = "1-100", ["default", "early", "detach"]


def say(text):
    print(text, file=sys.stderr, flush=True)


def seeds(chosen):
    """Gives the seeds to try, in order: those asked for, and with `--minutes` random ones without an end."""
    if chosen.seed is not None:
        yield from chosen.seed
    if chosen.seeds:
        first, _, last = chosen.seeds.partition("-")
        yield from range(int(first), int(last) + 1)
    if chosen.minutes and not chosen.seed:
        start = random.SystemRandom().randrange(1 << 40)
        say(f"random seeds from {start} on")
        while True:
            yield start
            start += 1


def options():
    parser = argparse.ArgumentParser(prog="scripts/differ")
    parser.add_argument("--seed", type=int, action="append", help="this seed (may be repeated)")
    parser.add_argument("--seeds", metavar="A-B", help="these seeds")
    parser.add_argument("--short", action="store_true", help="some seeds in three modes, for a minute, as CI has it")
    parser.add_argument("--minutes", type=float, help="so long: after the seeds named, random ones")
    parser.add_argument("--mode", action="append", choices=[*MODES, *BY_NAME], help="only this mode (may be repeated)")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2), help="programs side by side")
    parser.add_argument("--library", help="libsanshim.so, with sanctl beside it")
    parser.add_argument("--keep", type=pathlib.Path, help="a folder for the programs that differ")
    parser.add_argument("--replay", type=pathlib.Path, help="a program from such a folder: says what each of its steps did")
    parser.add_argument("--show", action="store_true", help="only print the programs of the seeds")
    parser.add_argument("--whole", action="store_true", help="do not shrink what differs")
    chosen = parser.parse_args()
    if chosen.seeds and not re.fullmatch(r"\d+-\d+", chosen.seeds):
        parser.error(f"--seeds {chosen.seeds}: it takes two numbers, as in 1-100")
    if chosen.jobs < 1:
        parser.error(f"--jobs {chosen.jobs}: it takes one at least")
    if chosen.short:
        chosen.seeds, chosen.mode = chosen.seeds or SHORT_SEEDS, chosen.mode or SHORT_MODES
    if chosen.show and not (chosen.seed or chosen.seeds):
        parser.error("--show takes --seed or --seeds")
    if not (chosen.seed or chosen.seeds or chosen.minutes or chosen.replay):
        chosen.minutes = 1
    return chosen


def replay(program, tested, chosen):
    """Says what each step did natively and in each mode, and marks where they differ."""
    become_reaper()
    native = Run(program, NATIVE, tested).go()
    for mode in chosen:
        log = Run(program, mode, tested).go()
        print(f"mode {mode}:")
        for index, (one, answer, other) in enumerate(zip(program.steps, native, log)):
            print(f"{'  ' if answer == other else '! '}{index:3} {one!s:70} | {answer}{'' if answer == other else f' | {other}'}")
    return 0


def write(folder, number, found):
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(f"# {line}\n" for line in found.text().splitlines())
    (folder / f"{number:03}-{found.seed}-{found.difference.mode}.steps").write_text(text + str(found.program))


class Collected:
    def __init__(self, keep):
        self.keep, self.kinds, self.number, self.done, self.status = keep, collections.Counter(), 0, 0, 0
        self.known, self.broken = collections.Counter(), []

    def take(self, answer):
        if isinstance(answer, int):
            self.done += 1
        elif isinstance(answer, tuple):
            self.broken.append(answer)
            say(f"seed {answer[0]}: the script fails\n{answer[1]}")
        elif answer.name:
            self.known[answer.name] += 1
        else:
            self.new(answer)

    def new(self, found):
        this = kind(found.difference)
        self.status = max(self.status, BYTES if found.difference.bytes else DIFFERS)
        self.kinds[this] += 1
        if self.kinds[this] > 1:
            return
        print(found.text() + "".join(f"    {line}\n" for line in str(found.program).splitlines()), flush=True)
        if self.keep:
            write(self.keep, self.number, found)
        self.number += 1


def compare_all(chosen, actor, library, folder):
    manager = multiprocessing.get_context("fork")
    jobs, answers = manager.Queue(chosen.jobs * 2), manager.Queue()
    modes, until = chosen.mode or list(MODES), time.time() + chosen.minutes * 60 if chosen.minutes else None
    with manager.Manager() as shared:
        seen = shared.dict()
        parts = (actor, str(library), library.with_name("sanctl"))
        workers = [
            manager.Process(target=work, args=(jobs, answers, *parts, folder / str(index), modes, not chosen.whole, until, seen), daemon=True)
            for index in range(chosen.jobs)
        ]
        for worker in workers:
            worker.start()
        collected = gather(seeds(chosen), jobs, answers, workers, until, Collected(chosen.keep))
        for worker in workers:
            worker.join()
    return collected


def gather(all_seeds, jobs, answers, workers, until, collected):
    """Gives the workers seeds, and takes what they found, until both end."""
    left, waiting, said = len(workers), 0, time.monotonic()
    ended = False
    while left:
        if not ended and waiting < 2 * len(workers):
            seed = next(all_seeds, None) if not until or time.time() < until else None
            ended = seed is None
            for one in [None] * len(workers) if ended else [seed]:
                jobs.put(one)
            waiting += not ended
            continue
        answer = answers.get()
        if answer is None:
            left -= 1
            continue
        waiting -= isinstance(answer, (int, tuple))
        collected.take(answer)
        if time.monotonic() - said > SAY_AFTER:
            said = time.monotonic()
            say(f"{collected.done} programs, {sum(collected.kinds.values())} differ in {len(collected.kinds)} ways")
    return collected


def main():
    chosen = options()
    # At SIGTERM all that this process started ends with it, and its folder goes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    root = pathlib.Path(os.environ["SANSHIM_ROOT"])
    if wrong := known.mistakes((root / "docs" / "limitations.md").read_text()):
        say(f"scripts/differing/known.py and docs/limitations.md must both have: {', '.join(wrong)}")
        return 2
    if chosen.show:
        for seed in seeds(chosen):
            print(generate(seed), end="")
        return 0
    library = pathlib.Path(chosen.library or os.environ["SANSHIM_LIBRARY"]).resolve()
    with tempfile.TemporaryDirectory(prefix="differ-") as folder:
        folder = pathlib.Path(folder)
        # A later build must not change what this run tests.
        for file in (library, library.with_name("sanctl"), pathlib.Path(os.environ["DIFFER_ACTOR"])):
            if file.exists() or file.name != "sanctl":
                shutil.copy2(file, folder / file.name)
        actor, library = folder / "actor", folder / library.name
        if chosen.replay:
            tested = Tested(actor, str(library), library.with_name("sanctl"), folder / "0")
            return replay(steps.parse(chosen.replay.read_text()), tested, chosen.mode or list(MODES))
        collected = compare_all(chosen, actor, library, folder)
    for name, times in collected.known.most_common():
        say(f"known: {name}, {times} times")
    say(f"{collected.done} programs; {sum(collected.kinds.values())} differ in {len(collected.kinds)} ways that are not known")
    return 2 if collected.broken else collected.status


if __name__ == "__main__":
    sys.exit(main())
