"""Runs programs in one of several processes: it takes seeds, and gives the differences."""
import time
import traceback

import known
from compare import Comparer, difference
from coordinator import Tested, become_reaper
from generator import generate
from shrink import Shrinker


# So many seconds after the given time is over, a worker begins to shrink no more programs.
SHRINKING = 120


class Found:
    """A difference of a seed, and the program that shows it, shrunk if it is the first of its kind."""

    def __init__(self, seed, program, difference, name):
        self.seed, self.program, self.difference, self.name = seed, program, difference, name

    def text(self):
        d = self.difference
        kind = f"BYTES: {d.bytes}" if d.bytes else f"known: {self.name}" if self.name else "differs"
        return (
            f"seed {self.seed}, mode {d.mode}: {kind}\n"
            f"  step {d.index}: {d.step}\n  natively:          {d.native}\n  under the library: {d.library}\n"
        )


def look_at(comparer, program, chosen, seen, until):
    """Gives the difference in each mode that has one. A difference of a kind that was confirmed before is not confirmed
    again."""
    native = comparer.natively(program)
    if native is None:
        return
    for mode in chosen:
        if until and time.time() > until:
            return
        found = difference(program, mode, native, comparer.run(program, mode))
        if found and kind(found) not in seen:
            found = comparer.confirmed(program, found, native)
        if found:
            yield found


def kind(found):
    """Gives the kind of a difference. The script shows differences of one kind once, and wrong bytes once in each
    mode."""
    return str((found.signature(), known.name_of(found), found.mode if found.bytes else ""))


def work(jobs, answers, actor, library, sanctl, folder, chosen, shrinks, until, seen):
    become_reaper()
    comparer = Comparer(Tested(actor, library, sanctl, folder))
    # In a given time the worker runs as many programs as possible. It shrinks those that differ afterwards.
    later = []
    while (seed := jobs.get()) is not None:
        if until and time.time() > until:
            break
        try:
            program = generate(seed)
            for found in look_at(comparer, program, chosen, seen, until):
                name, is_new = known.name_of(found), kind(found) not in seen
                seen[kind(found)] = 1
                if shrinks and not name and is_new:
                    later.append((seed, program, found))
                else:
                    answers.put(Found(seed, program, found, name))
            if not until:
                shrink_all(comparer, later, answers)
            answers.put(seed)
        except Exception:
            answers.put((seed, traceback.format_exc()))
    shrink_all(comparer, later, answers, until)
    answers.put(None)


def shrink_all(comparer, later, answers, until=None):
    while later:
        seed, program, found = later.pop(0)
        if not until or time.time() < until + SHRINKING:
            program, found = shrunk(comparer, program, found)
        answers.put(Found(seed, program, found, known.name_of(found)))


def shrunk(comparer, program, found):
    """Gives the shorter program, and how it differs. Gives the program itself if the shorter one does not differ
    again."""
    shorter = Shrinker(comparer, found).go(program)
    again = [comparer.look(shorter, found.mode) for _ in range(3 if found.bytes else 1)]
    again = [one for one in again if one]
    return (shorter, again[0]) if again else (program, found)
