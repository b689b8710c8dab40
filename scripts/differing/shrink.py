"""Makes a program that differs as short as it goes, so long as it differs in the same way."""
import time

from compare import difference, integrity

SECONDS = 60
# How often a shorter program may be run until it differs.
TRIES = 3


class Shrinker:
    def __init__(self, comparer, found, until=None):
        self.comparer, self.found = comparer, found
        self.wanted = found.signature()
        self.until = until or time.monotonic() + SECONDS

    def still(self, program):
        if time.monotonic() > self.until:
            return False
        native = self.comparer.natively(program)
        if native is None:
            return False
        for _ in range(TRIES if self.found.bytes else 1):
            other = difference(program, self.found.mode, native, self.comparer.run(program, self.found.mode))
            if other and other.signature() == self.wanted:
                return True
        return False

    def without_parts(self, program):
        """Steps are left out, first many at once."""
        size = max(1, len(program.steps) // 2)
        while size:
            at = 0
            while at < len(program.steps):
                fewer = program.having(program.steps[:at] + program.steps[at + size :])
                if fewer.steps and self.still(fewer):
                    program = fewer
                else:
                    at += size
            size //= 2
        return program

    def simpler(self, program):
        """Settings that the difference does not need are left out, and numbers become small."""
        for index, step in enumerate(program.steps):
            for key, value in step.values:
                for changed in simpler_values(key, value):
                    steps = list(program.steps)
                    steps[index] = steps[index].having(**{key: changed})
                    if self.still(program.having(steps)):
                        program = program.having(steps)
                        break
        return program

    def go(self, program):
        """The last steps after the difference first: they are the most."""
        cut = program.having(program.steps[: self.found.index + 1])
        program = cut if self.still(cut) else program
        before = None
        while before != program and time.monotonic() < self.until:
            before = program
            program = self.without_parts(program)
            program = self.simpler(program)
        return program


def simpler_values(key, value):
    if key in ("flags", "wait", "pieces", "slow", "slow_times", "slow_us", "pause_at", "pause_ms", "family", "sndbuf", "bare", "cloexec", "old", "max"):
        return [None]
    if key == "how":
        return [None]
    if key in ("n", "total", "times") and int(value) > 1:
        return [one for one in ("1", "10", "100", "1000", str(int(value) // 2)) if int(one) < int(value)]
    return []
