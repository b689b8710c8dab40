"""Tests that are programs, each known by its exit status."""
import re

from suite import FAILED, PASSED, SKIPPED, Unit

STATUS = re.compile(r"^== ended with (\d+)$", re.MULTILINE)


def unit(name, command, setup=":", skips=77, **rest):
    """`setup` is what the shell does before; `skips` the status by which a test says that it cannot be run."""
    script = f'{setup}\n"$@"\nset -- $?\necho\necho "== ended with $1"'

    def parse(text):
        ended = STATUS.findall(text)
        if not ended:
            return {name: None}
        return {name: {0: PASSED, skips: SKIPPED}.get(int(ended[-1]), FAILED)}

    return Unit(name=name, command=lambda *_: ["sh", "-c", script, "sh", *command], parse=parse, **rest)
