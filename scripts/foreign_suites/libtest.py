"""Rust's test programs: crates' tests, built by cargo."""
import json
import pathlib
import re

import sources
from suite import FAILED, PASSED, SKIPPED, Unit

BEGINS = re.compile(r"^test ([\w:]+)(?: - should panic)? \.\.\. ", re.MULTILINE)
ENDS = re.compile(r"(?:^|\.\.\. )(ok|FAILED|ignored.*)$", re.MULTILINE)


def parse(text):
    """`test NAME ... ok`, one at a time, with what the test prints in between."""
    found = {}
    begun = list(BEGINS.finditer(text))
    for each, following in zip(begun, [*begun[1:], None]):
        ends = ENDS.search(text, each.end() - 4, following.start() if following else len(text))
        found[each[1]] = ends and {"ok": PASSED, "FAILED": FAILED}.get(ends[1], SKIPPED)
    return found


def build(place, source, names, *features):
    """Builds the named test programs of a crate."""
    sources.build(
        place,
        source,
        ["cargo", "test", "--no-run", "--tests" if not names else "-q", *features]
        + [part for name in names for part in ("--test", name)],
        env={"CARGO_TARGET_DIR": str(place / "target")},
    )


def programs(place, source, names, *features):
    """The built programs by name, as cargo tells them."""
    import os
    import subprocess

    answer = subprocess.run(
        ["cargo", "test", "--no-run", "--message-format", "json", *features]
        + [part for name in names for part in ("--test", name)],
        cwd=source,
        env=os.environ | {"CARGO_TARGET_DIR": str(place / "target")},
        capture_output=True,
        text=True,
        check=True,
    )
    found = {}
    for line in answer.stdout.splitlines():
        message = json.loads(line)
        if message.get("executable") and message["profile"]["test"]:
            found[message["target"]["name"]] = pathlib.Path(message["executable"])
    return found


def unit(name, program, source, left_out=(), **limits):
    def command(_, done, only):
        skipped = [part for test in sorted({*done, *left_out}) for part in ("--skip", test)]
        # One at a time: its name is there before it hangs.
        return [program, "--test-threads=1", "--exact", *skipped, *sorted(only)]

    return Unit(name=name, command=command, parse=parse, cwd=source, selects=True, stall=120, **limits)
