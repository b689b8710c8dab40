"""The output of tests that speak TAP, Perl's among them: `ok 3 - description`. The number is the id: descriptions may hold
addresses, times and what came in a hash's order."""
import re

from suite import FAILED, PASSED, SKIPPED, Unit

LINE = re.compile(r"^(not )?ok\b *(\d+)?[^#\n]*(?:# *(skip|todo)?.*)?", re.IGNORECASE | re.MULTILINE)
PLAN = re.compile(r"^1\.\.(\d+)(?: *# *skip)?", re.IGNORECASE | re.MULTILINE)


def parse(name, text):
    found, number = {}, 0
    for bad, given, directive in LINE.findall(text):
        number = int(given) if given else number + 1
        test = f"{name} {number}"
        if directive.lower() == "skip":
            found[test] = SKIPPED
        else:
            found[test] = FAILED if bad and directive.lower() != "todo" else PASSED
    plan = PLAN.search(text)
    if plan and not found and int(plan[1]) == 0:
        found[name] = SKIPPED
    elif plan and number < int(plan[1]):
        # The one that came next hung, or the program died in it.
        found[f"{name} ends early"] = None
    return found


def unit(name, command, **rest):
    return Unit(name=name, command=lambda *_: command, parse=lambda text: parse(name, text), **rest)
