"""Says whether a program does something else under the library than natively.

Bytes that are lost, repeated or wrong need no comparison: the actors know each byte. A stream that natively always comes whole, and once did
not, counts at once too. Any other difference counts if it stays when the program is run again, slowly, and if nothing varies natively."""
import dataclasses
import re

from coordinator import Run
from modes import NATIVE

INTEGRITY = re.compile(r"WRONG [a-z ]+|MISSING")
AGAIN = 2


@dataclasses.dataclass(frozen=True)
class Difference:
    """The first step whose answer differs; `bytes`: what is wrong with the bytes, or empty; `ended_by`: the step that ended it under the
    library, if it was blocked; `reason`: what the program did before that explains it (see `reason_of`), or empty."""

    mode: str
    index: int
    step: object
    native: str
    library: str
    bytes: str = ""
    ended_by: str = ""
    reason: str = ""

    def signature(self):
        """The same for differences that are of one kind, as far as can be told: the door through which it shows does not matter."""
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
    """An answer without its numbers."""
    answer = re.sub(r"after \d+", "after", answer)
    return re.sub(r"\b[1-9]\d*\b|#[0-9a-f]+", "N", answer)


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
    whole, part = re.search(r"^0 read (\d+)", native), re.search(r"read (?:(\d+)|part)", library)
    return bool(whole and part and int(part.group(1) or 0) < int(whole.group(1)))


def difference(program, mode, native, log):
    """What differs between one run and another, or None."""
    if found := integrity(log):
        index, what = found
        return Difference(mode, index, program.steps[index], native[index], log[index], what)
    index = first_difference(native, log)
    if index is None:
        return None
    what = "stream cut" if lost(native[index], log[index]) else ""
    after = re.search(r"after (\d+):", log[index])
    ended_by = program.steps[int(after.group(1))].line() if after else ""
    reason = reason_of(program, mode, index, native, log)
    return Difference(mode, index, program.steps[index], native[index], log[index], what, ended_by, reason)


# Steps that bring a connection back to TCP, in every mode.
RETURNS = ("pass", "aio", "print", "exec")


def returned(steps, mode):
    """Whether a connection may have gone back to TCP in these steps."""
    by_request = mode == "detach" and any(step.name == "detach" for step in steps)
    return by_request or any(step.name in RETURNS or "oob" in step.get("flags", "") for step in steps)


def reason_of(program, mode, index, native, log):
    """Why a step may differ, as far as the program tells; empty: nothing explains it.

    again    the library reports edges once more after a return to TCP
    merged   it merged the edges of one step
    picked   it reports another of several registrations
    nested   it says so of a set that is polled
    short    a receive at a return gives part
    more     it does not hold back what MSG_MORE and TCP_CORK would
    shut     both directions were shut before a return
    timed    TCP_USER_TIMEOUT may have ended a connection
    exec     an image got connections whose peers may be gone"""
    steps, answers = program.steps[:index], (native[index], log[index])
    done = [step for step, answer in zip(steps, native) if answer == "0"]
    if returned(steps, mode) and has_edges_more(done, *answers):
        return "again"
    # The set told of it before, and since only this set was asked.
    this = program.steps[index].get("e")
    waits = [number for number, step in enumerate(steps) if step.name == "epoll_wait" and step.get("e") == this]
    asked_alone = waits and all(step.name == "epoll_wait" for step in steps[waits[-1]:])
    if program.steps[index].get("max") and one_each(answers):
        return "picked"
    if is_nested(program.steps[index], steps, *answers):
        return "nested"
    if asked_alone and has_edges_more(done, log[index], native[index]) and same_events(native[index], log[waits[-1]]):
        return "merged"
    counts = [int(match.group()) for match in (re.match(r"\d+", answer) for answer in answers) if match]
    if returned(steps, mode) and program.steps[index].name == "recv" and len(counts) == 2 and 0 < counts[1] < counts[0]:
        return "short"
    ends = [int(match.group(1)) for match in (re.search(r"after (\d+):", answer) for answer in answers) if match]
    if ends and "more" in program.steps[ends[-1]].get("flags", "").split(",") and ends[-1] != ends[0]:
        return "more"
    if returned(steps, mode) and any(step.name == "shutdown" and step.get("how", "rdwr") == "rdwr" for step in done):
        return "shut"
    if any(step.get("opt") == "usertimeout" for step in done):
        return "timed"
    if any(step.name in ("exec", "spawn") for step in steps):
        return "exec"
    if any(step.get("opt") == "cork" or "more" in step.get("flags", "").split(",") for step in steps):
        return "more"
    return ""


def one_each(answers):
    """Whether both answers of epoll_wait report one event."""
    return all(re.fullmatch(r"1 \d+:[a-z+-]+", answer) for answer in answers)


def is_nested(step, before, native, library):
    """Whether two answers of poll differ only where sets of epoll are asked about, which the library says to be readable."""
    asked = [one.partition(":")[0] for one in step.get("on", "").split(",")]
    sets = {one.get("e") for one in before if one.name == "epoll_create"}
    parts = [answer.split()[1:] for answer in (native, library)]
    if step.name != "poll" or any(len(part) != len(asked) for part in parts):
        return False
    differ = [at for at in range(len(asked)) if parts[0][at] != parts[1][at]]
    return bool(differ) and all(asked[at] in sets and parts[0][at] == "-" for at in differ)


def same_events(later, earlier):
    """Whether all that the later answer of epoll_wait reports is in the earlier one."""
    events = [set(re.findall(r"\d+:[a-z+-]+", answer)) for answer in (later, earlier)]
    return events[0] <= events[1]


def has_edges_more(done, native, library):
    """Whether two answers of epoll_wait differ only in that the library's has events of edge-triggered registrations more, each once."""
    answers = [re.fullmatch(r"(\d+)((?: \d+:[a-z+-]+)*)", answer) for answer in (native, library)]
    if not all(answers):
        return False
    events, more = (answer.group(2).split() for answer in answers)
    numbers = [event.partition(":")[0] for event in more]
    changes = [step for step in done if step.name == "epoll_ctl" and step.get("op") in ("add", "mod")]
    level = {step.get("data", step.get("s")) for step in changes if "et" not in step.get("events").split("+")}
    extra = {event.partition(":")[0] for event in set(more) - set(events)}
    return set(events) < set(more) and len(numbers) == len(set(numbers)) and not extra & level


class Comparer:
    def __init__(self, tested):
        self.tested = tested
        self.steady = (None, False)

    def run(self, program, mode, slowly=False):
        return Run(program, mode, self.tested, slowly).go()

    def natively(self, program):
        """The answers natively, or None where the bytes are wrong already: then the program asks for what cannot be."""
        log = self.run(program, NATIVE)
        return None if integrity(log) else log

    def is_steady(self, program, native):
        """Whether all answers are the same natively in more runs, slow ones too."""
        if self.steady[0] is not program:
            logs = (self.run(program, NATIVE, slowly) for slowly in (False, True, True))
            self.steady = program, all(log == native for log in logs)
        return self.steady[1]

    def confirmed(self, program, found, native):
        """The difference if it counts, or None."""
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
        """The difference that a program shows in a mode, confirmed; None if there is none that counts."""
        native = self.natively(program)
        if native is None:
            return None
        found = difference(program, mode, native, self.run(program, mode))
        return found and self.confirmed(program, found, native)
