"""Says whether a program does something else under the library than natively.

Bytes that are lost, repeated or wrong need no comparison: the actors know each byte. A stream that always comes whole
natively, and once did not under the library, counts at once too. Any other difference counts if it stays when the
program is run again, slowly, and if nothing varies natively."""
import dataclasses
import re

from coordinator import Run
from modes import NATIVE
from past import ENDED_BY, ended_at
from reasons import is_open, reasons

INTEGRITY = re.compile(r"WRONG [a-z ]+|MISSING")
AGAIN = 2


@dataclasses.dataclass(frozen=True)
class Difference:
    """The first step whose answer differs. `bytes` says what is wrong with the bytes, or is empty. `ended_by` is the
    step that ended a blocked step under the library. `reasons` are earlier acts of the program that may explain the
    difference (see reasons.py)."""

    mode: str
    index: int
    step: object
    native: str
    library: str
    bytes: str = ""
    ended_by: str = ""
    reasons: frozenset = frozenset()

    def signature(self):
        """Gives a value that is the same for differences of one kind, as far as can be told. The call through which a
        difference shows does not matter."""
        if self.bytes:
            return (self.bytes, self.step.name)
        if re.sub(r" errno-changed-to-\d+", "", self.library) == self.native:
            return ("errno changed", self.step.name)
        kind = [part for part in self.step.get("flags", "").split(",") if part in ("oob", "peek", "trunc")]
        kind += [self.step.get(key, "") for key in ("op", "opt")]
        if self.step.name in ("bad", "ioctl", "flags", "shutdown"):
            kind.append(self.step.get("how", ""))
        return (self.step.name, " ".join(kind).strip(), coarse(self.native), coarse(self.library))


def coarse(answer):
    """Gives an answer without its numbers."""
    answer = re.sub(r"after \d+", "after", answer)
    return re.sub(r"\b[1-9]\d*\b|#[0-9a-f]+", "N", answer)


def integrity(log):
    """Gives (index, what) of the first step whose bytes are wrong, or None."""
    for index, answer in enumerate(log):
        if match := INTEGRITY.search(answer):
            return index, match.group().strip()
    return None


def first_difference(native, log):
    """Gives the index of the step that differed first. A step that blocked counts at its end, in the run where it ended
    first."""
    differ = [index for index, (one, other) in enumerate(zip(native, log)) if one != other]
    return min(differ, key=lambda index: min(ended_at(index, native[index]), ended_at(index, log[index])), default=None)


def lost(native, library):
    """Tells whether a stream came whole natively, and did not under the library."""
    whole, part = re.search(r"^0 read (\d+|all)", native), re.search(r"read (?:(\d+)|part)", library)
    if not whole or not part:
        return False
    return whole.group(1) == "all" or int(part.group(1) or 0) < int(whole.group(1))


def difference(program, mode, native, log):
    """Gives what differs between two runs, or None."""
    if found := integrity(log):
        index, what = found
        return Difference(mode, index, program.steps[index], native[index], log[index], what)
    index = first_difference(native, log)
    if index is None:
        return None
    if is_open(program, mode, index, native, log):
        return None
    what = "stream cut" if lost(native[index], log[index]) else ""
    after = ENDED_BY.search(log[index])
    ended_by = program.steps[int(after.group(1))].line() if after else ""
    why = frozenset(reasons(program, mode, index, native, log))
    return Difference(mode, index, program.steps[index], native[index], log[index], what, ended_by, why)


class Comparer:
    def __init__(self, tested):
        self.tested = tested
        self.steady = (None, False)

    def run(self, program, mode, slowly=False):
        return Run(program, mode, self.tested, slowly).go()

    def natively(self, program):
        """Gives the native answers. None: bytes are wrong natively too, so the program asks for what cannot be."""
        log = self.run(program, NATIVE)
        return None if integrity(log) else log

    def is_steady(self, program, native):
        """Tells whether all native answers stay the same in more runs, slow ones too."""
        if self.steady[0] is not program:
            logs = (self.run(program, NATIVE, slowly) for slowly in (False, True, True))
            self.steady = program, all(log == native for log in logs)
        return self.steady[1]

    def confirmed(self, program, found, native):
        """Gives the difference if it counts, or None."""
        if integrity([found.library]):
            return found
        if not self.is_steady(program, native):
            return None
        for _ in range(0 if found.bytes else AGAIN):
            found = difference(program, found.mode, native, self.run(program, found.mode, slowly=True))
            if not found:
                return None
        return found

    def look(self, program, mode):
        """Gives the confirmed difference that a program shows in a mode. None: no difference counts."""
        native = self.natively(program)
        if native is None:
            return None
        found = difference(program, mode, native, self.run(program, mode))
        return found and self.confirmed(program, found, native)
