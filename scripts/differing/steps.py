"""A program has steps, one a line: `ACTOR NAME KEY=VALUE...`. Actors are letters. The coordinator starts the first
`ends` of them as processes. `A& ..` begins a step and goes on with the next at once. `*` is the coordinator itself."""
import dataclasses
import re

LETTERS = "ABCDEFGHIJKL"


@dataclasses.dataclass(frozen=True)
class Step:
    actor: str
    name: str
    values: tuple = ()
    at_once: bool = False

    def get(self, key, otherwise=None):
        return dict(self.values).get(key, otherwise)

    def having(self, **changed):
        values = {**dict(self.values), **changed}
        return dataclasses.replace(self, values=tuple((key, value) for key, value in values.items() if value is not None))

    def line(self):
        return " ".join([self.name, *(f"{key}={value}" for key, value in self.values)])

    def __str__(self):
        return f"{self.actor}{'&' if self.at_once else ''} {self.line()}"


def step(actor, name, at_once=False, **values):
    return Step(actor, name, tuple((key, str(value)) for key, value in values.items() if value is not None), at_once)


@dataclasses.dataclass(frozen=True)
class Program:
    ends: int
    steps: tuple

    def __str__(self):
        return "\n".join([f"ends {self.ends}", *map(str, self.steps)]) + "\n"

    def having(self, steps):
        return dataclasses.replace(self, steps=tuple(steps))


def parse(text):
    ends, steps = 2, []
    for line in text.splitlines():
        line = line.partition("#")[0].strip()
        if match := re.fullmatch(r"ends (\d)", line):
            ends = int(match.group(1))
        elif line:
            actor, name, *values = line.split()
            pairs = tuple(tuple(value.split("=", 1)) for value in values)
            steps.append(Step(actor.rstrip("&"), name, pairs, actor.endswith("&")))
    return Program(ends, tuple(steps))
