"""One of the processes that run programs: it takes seeds, and gives what differs."""
import time
import traceback

import known
from compare import Comparer, difference
from coordinator import Tested, become_reaper
from generator import generate
from shrink import Shrinker


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
    """The difference in each mode in which there is one. One of a kind that was confirmed before is not confirmed again."""
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
    """Differences of one kind are shown once; where bytes are wrong, once in each mode."""
    return str((found.signature(), found.mode if found.bytes else ""))


def work(jobs, answers, actor, library, sanctl, folder, chosen, shrinks, until, seen):
    become_reaper()
    comparer = Comparer(Tested(actor, library, sanctl, folder))
    while (seed := jobs.get()) is not None:
        if until and time.time() > until:
            break
        try:
            program = generate(seed)
            for found in look_at(comparer, program, chosen, seen, until):
                name, shorter, is_new = known.name_of(found), program, kind(found) not in seen
                seen[kind(found)] = 1
                if shrinks and not name and is_new:
                    shorter, found = shrunk(comparer, program, found)
                    name = known.name_of(found)
                answers.put(Found(seed, shorter, found, name))
            answers.put(seed)
        except Exception:
            answers.put((seed, traceback.format_exc()))
    answers.put(None)


def shrunk(comparer, program, found):
    """The shorter program, and how it differs; the program itself where that is not sure to differ."""
    shorter = Shrinker(comparer, found).go(program)
    again = [comparer.look(shorter, found.mode) for _ in range(3 if found.bytes else 1)]
    again = [one for one in again if one]
    return (shorter, again[0]) if again else (program, found)
