"""Makes a program that differs as short as it goes, so long as it differs in the same way."""
import time

from compare import difference

SECONDS = 60
# So often a shorter program may run until it differs.
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
        for _ in range(TRIES if self.found.bytes else 2):
            other = difference(program, self.found.mode, native, self.comparer.run(program, self.found.mode))
            if other and other.signature() == self.wanted:
                return True
        return False

    def without_connections(self, program):
        """Leaves out all steps that use one connection, then all steps of one actor."""
        for stream in sorted({step.get("out") or step.get("in") for step in program.steps} - {None}):
            pair = {stream, str(int(stream) ^ 1)}
            slots = {step.get("s") for step in program.steps if {step.get("out"), step.get("in")} & pair}
            fewer = program.having(step for step in program.steps if step.get("s") not in slots)
            if len(fewer.steps) < len(program.steps) and self.still(fewer):
                program = fewer
        for actor in sorted({step.actor for step in program.steps}):
            fewer = program.having(step for step in program.steps if step.actor != actor)
            if self.still(fewer):
                program = fewer
        return program

    def without_parts(self, program):
        """Leaves steps out, first many at once."""
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
        """Leaves out settings that the difference does not need, and makes numbers small."""
        for index, step in enumerate(program.steps):
            for key, value in step.values:
                for changed in simpler_values(step, key, value):
                    fewer = self.changed(program, index, key, changed)
                    if self.still(fewer):
                        program = fewer
                        break
        return program

    def changed(self, program, index, key, value):
        """Gives the program with another value, at both ends where the ends must have the same."""
        steps = list(program.steps)
        together = [index, index + 1] if is_first_of_two(program, index) and key in ("n", "times", "total") else [index]
        for one in together:
            if steps[one].get(key) is not None:
                steps[one] = steps[one].having(**{key: value})
        return program.having(steps)

    def go(self, program):
        """Makes the program short. It first cuts the steps after the difference: they are the most."""
        cut = program.having(program.steps[: self.found.index + 1])
        program = cut if self.still(cut) else program
        program = self.without_connections(program)
        before = None
        while before != program and time.monotonic() < self.until:
            before = program
            program = self.without_parts(program)
            program = self.simpler(program)
        return program


def is_first_of_two(program, index):
    return program.steps[index].at_once and index + 1 < len(program.steps)


def simpler_values(step, key, value):
    if key in ("flags", "wait", "pieces", "slow", "slow_times", "slow_us", "pause_at", "pause_ms", "family", "sndbuf", "bare", "cloexec", "old", "max", "how"):
        return [None]
    if step.name == "exchange":
        # The other half must change with this one. Otherwise that half waits for bytes that do not come.
        return {"times": ["6", "60"], "n": ["1"]}.get(key, []) if step.at_once else []
    if key in ("n", "total") and int(value) > 1:
        return [one for one in ("1", "100", str(int(value) // 2)) if int(one) < int(value)]
    return []
