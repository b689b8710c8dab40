"""Says whether a program does something else under the library than natively.

Bytes that are lost, repeated or wrong, and a connection that ends early, need no comparison: the actors know each byte. Any other
difference counts if it stays when both are run again, slowly too, and if nothing varies natively."""
import dataclasses
import re

from coordinator import Run
from modes import NATIVE

INTEGRITY = re.compile(r"WRONG [a-z ]+|MISSING")
AGAIN = 3


@dataclasses.dataclass(frozen=True)
class Difference:
    """The first step whose answer differs; `bytes`: what is wrong with the bytes, or empty."""

    mode: str
    index: int
    step: object
    native: str
    library: str
    bytes: str = ""
    always: bool = True

    def signature(self):
        """The same for differences that are of one kind, as far as can be told."""
        values = {key: value for key, value in self.step.values if key in ("how", "flags", "end", "op", "opt", "wait")}
        if self.bytes:
            return (self.bytes, self.step.name)
        return (self.step.name, values.get("how", ""), values.get("flags", "").replace("nosignal", ""), coarse(self.native), coarse(self.library))


def coarse(answer):
    """An answer without its numbers, but for small ones."""
    answer = re.sub(r"after \d+", "after", answer)
    return re.sub(r"\d{2,}|#[0-9a-f]+", "N", answer)


def integrity(log):
    """(index, what) of the first step whose bytes are wrong."""
    for index, answer in enumerate(log):
        if match := INTEGRITY.search(answer):
            return index, match.group().strip()
    return None


def first_difference(native, log):
    return next((index for index, (one, other) in enumerate(zip(native, log)) if one != other), None)


def lost(native, library):
    """Whether a stream that natively came whole did not under the library."""
    whole, part = re.search(r"^0 read (\d+)", native), re.search(r"read (\d+)", library)
    return bool(whole and part and int(part.group(1)) < int(whole.group(1)))


def difference(program, mode, native, log):
    """What differs between one run and another, or None."""
    if found := integrity(log):
        index, what = found
        return Difference(mode, index, program.steps[index], native[index], log[index], what)
    index = first_difference(native, log)
    if index is None:
        return None
    what = "stream cut" if lost(native[index], log[index]) else ""
    return Difference(mode, index, program.steps[index], native[index], log[index], what)


class Comparer:
    def __init__(self, tested):
        self.tested = tested

    def run(self, program, mode, slowly=False):
        return Run(program, mode, self.tested, slowly).go()

    def natively(self, program):
        """The answers natively, or None where the bytes are wrong already: then the program asks for what cannot be."""
        log = self.run(program, NATIVE)
        return None if integrity(log) else log

    def confirmed(self, program, found, native):
        """The difference if it counts, or None."""
        natives = [native, *(self.run(program, NATIVE, slowly) for slowly in (False, True))]
        if any(integrity(log) for log in natives):
            return None
        if found.bytes and integrity([found.library]):
            return found
        if any(first_difference(native, log) is not None for log in natives):
            return None
        runs = [self.run(program, found.mode, slowly=True) for _ in range(AGAIN)]
        others = [difference(program, found.mode, native, log) for log in runs]
        differing = [one for one in others if one]
        if found.bytes and differing:
            return found
        if len(differing) < AGAIN:
            return None
        return differing[0]

    def look(self, program, mode, native=None):
        """The difference that a program shows in a mode, confirmed; None if there is none that counts."""
        native = native or self.natively(program)
        if native is None:
            return None
        found = difference(program, mode, native, self.run(program, mode))
        return found and self.confirmed(program, found, native)
