"""The reasons for which a step may differ, as far as the program tells.

    again    the library reports edges once more after a connection moved to the SAN or returned
    merged   the library merged the edges of one step
    picked   the library reports another one of several registrations
    nested   the library says that a polled epoll set is readable
    short    a receive at a return gives only part of the bytes
    below    a receive at a return gives less than SO_RCVLOWAT
    divided  processes have shared an epoll set since a fork
    filled   a side sent as much as goes while nobody reads
    full     a side of a connection that returns sent as much as goes
    reset    an end closes with SO_LINGER 0
    ended    an end of the connection may be gone
    more     the library does not hold back what MSG_MORE or TCP_CORK would
    shut     an end shut both directions down before a return
    shutboth  an end shut both directions down
    urgent   an urgent byte came to an end that had shut both directions down
    timed    TCP_USER_TIMEOUT may have ended the connection
    exec     an image got connections whose peers may be gone
    killed   a process was killed before it followed its peer back to TCP
    taken    a process passed the connection, and a process took it
    room     a send of many bytes waited for room, which makes edges of EPOLLOUT
    acked    an end has shut its sending direction down, and the kernel makes one more edge
    stopped  the process of a blocked receive was stopped and went on
    shutkilled  a process that had shut both directions down was killed
    detached  `sanctl detach` was asked for a connection, and an end of it is gone or shut both directions down
    shut-in  an end shut the direction down in which it receives
    orphaned  a descriptor that a set has was closed after a fork, and the library reports less of it
    async    a process asked for SIGIO
    lowat    a receive sleeps below SO_RCVLOWAT
    closing  a descriptor was closed while another thread's call waited on it
    looking  a call looks now and then for what the kernel sleeps for, and says the same in the end
    threads  a process has several threads
    printed  a stream of libc sent to a connection that was reset, and so took the error off

Where TCP leaves open what happens, no answer counts (`is_open`)."""
import re

from past import ENDED_BY, Past, ended_at, slots_of

FOREVER = "blocked; "
ENDED = re.compile(r"^blocked; after \d+: ")
# The SAN may have no room for so many bytes while nobody reads, where TCP has room.
MUCH = 500_000


def reasons(program, mode, index, native, log):
    """Gives all reasons that may hold for a step that differs."""
    past, answers = Past(program, mode, index, native, log), (native[index], log[index])
    connections = past.asked_about(*answers)
    ended_by = [program.steps[int(found.group(1))] for found in map(ENDED_BY.search, answers) if found]
    returned = any(past.has_returned(one) for one in connections)
    shut_both = any(past.shut(one, both=True) for one in connections)
    told = {
        "again": all(may_tell_again(past, one) for one in connections)
        and (has_edges_more(past, *answers) or tells_in_two(past, answers, later_wait(program, index, log))),
        "merged": is_merged(past, connections, answers, log),
        "picked": past.here.get("max") and one_each(answers),
        "nested": is_nested(past, *answers),
        "short": returned and is_part(past.here, answers),
        "below": returned and past.any_with(connections, opt="rcvlowat"),
        "divided": past.is_divided(),
        "filled": past.has_filled(connections),
        "ended": any(past.has_ended(one) for one in connections),
        "reset": past.any_with(connections, on="1", seconds="0"),
        "full": returned and past.has_filled(connections),
        "more": is_more(past, connections, ended_by),
        "shut": returned and shut_both,
        "shutboth": shut_both,
        "urgent": past.any_with(connections, flags="oob") and shut_both,
        "timed": past.any_with(connections, opt="usertimeout", to="300"),
        "exec": past.has_image(),
        "killed": returned and past.has_killed(),
        "closing": bool(past.connections(closes_under_way(program, native)) & connections),
        "looking": answers[0].startswith(FOREVER) and answers[1] == answers[0].replace("blocked", "naps", 1),
        "taken": any(step.name == "take" for one in connections for step in past.touching(one)),
        "room": has_edges_more(past, *answers) and only_room(*answers) and any(past.sends_much(one) for one in connections),
        "acked": has_edges_more(past, *reversed(answers))
        and (shut_both or only_room(*reversed(answers)))
        and any(past.shut_sending(one) for one in connections),
        "stopped": bool(ENDED_BY.search(answers[0])) and ended_by[0].get("sig") == "CONT",
        "shutkilled": past.has_killed() and shut_both,
        "detached": any(past.was_detached(one) and (past.shut(one, both=True) or past.has_killed()) for one in connections),
        "shut-in": any(past.shut(one, both=False) for one in connections),
        "orphaned": tells_less(*answers) and all(past.is_closed_behind_fork(one) for one in connections),
        "printed": any(past.any_with([one], how=how) for one in connections for how in ("fdopen", "fdopen2")),
        "async": any(step.name == "flags" and step.get("how") == "async" for step in past.steps),
        "threads": any(step.name == "thread" for step in past.steps),
        "lowat": past.any_with(connections, opt="rcvlowat") and answers[1].startswith(FOREVER),
    }
    return {reason for reason, holds in told.items() if holds}


def is_open(program, mode, index, native, log):
    """Tells whether TCP leaves open what the step answers. A receiver that shut down races with its sender. A thread
    that was woken races with what ends its connection in the same step. A thread may wait on a descriptor that another
    thread closes, or be woken by the step with which another thread ends the process."""
    past, answers = Past(program, mode, index, native, log), (native[index], log[index])
    connections = past.asked_about(*answers)
    receives = past.here.name in ("recv", "drain", "rstream", "ioctl", "aio")
    # Natively, the reader may have found nothing for a moment, and the sender then waits.
    ends_sending = past.here.name == "wstream" and "wrote" in answers[1] and ("wrote" in answers[0] or answers[0].endswith("never"))
    if (receives or ends_sending) and any(past.shut(one, both=False) for one in connections):
        return True
    if is_about_room(past, connections, answers, native[index + 1:index + 2]):
        return True
    is_early = set(answers) in ({"0", "EAGAIN"}, {"ECONNRESET", "EAGAIN"})
    if is_early and past.connections(closes_under_way(program, native[:index])) & connections:
        return True
    if is_gone_in_one(*answers) or is_of_several(program, *answers):
        return True
    if answers[1].endswith(" nval") and is_closed_by_another(program, index, native):
        return True
    if is_early and past.connections(streams_ended_in(program, index, native, log)) & connections:
        return True
    # A stream's sender begins a step before its reader. Another thread may hold the reader up.
    of_streams = [
        step.name in ("wstream", "rstream") and bool(past.connections((step.get("s"),)) & connections)
        for step in (program.steps[int(found.group(1))] for found in map(ENDED_BY.search, answers) if found)
    ]
    return len(of_streams) == 2 and all(of_streams) and past.here.name in ("exchange", "wstream", "rstream")


def is_gone_in_one(*answers):
    """Tells whether one step made the process go in one run, and ended its call in the other run."""
    ended = [re.fullmatch(r"blocked; after (\d+): (.*)", answer) for answer in answers]
    return all(ended) and ended[0].group(1) == ended[1].group(1) and "gone" in (ended[0].group(2), ended[1].group(2))


def is_of_several(program, *answers):
    """Tells whether the first of several messages of one call woke a receive. The receive has what was there when it
    ran."""
    ended = [re.fullmatch(r"blocked; after (\d+): \d+( .*)?", answer) for answer in answers]
    return all(ended) and ended[0].group(1) == ended[1].group(1) and program.steps[int(ended[0].group(1))].get("how") == "sendmmsg"


def is_about_room(past, connections, answers, next_answer):
    """Tells whether the step's end depends on how much goes while nobody reads."""
    step = past.here
    # A close that lingers waits until the receiver's kernel has all. That kernel's buffer has another size than the
    # SAN's.
    if step.get("end") == "lingerclose" and answers[0].startswith(FOREVER) and ENDED.sub("", answers[0]) == answers[1]:
        return True
    if step.name == "wstream":
        # No actor reads, and the reader goes before there is room for all.
        is_unread = next_answer and re.match(r"busy|no actor|EBADF", next_answer[0])
        if is_unread and re.fullmatch(r"blocked; after \d+: (ECONNRESET|EPIPE) wrote part.*", answers[1]):
            return True
        # A signal ends a send with EINTR if none of its bytes went, and otherwise with the number of bytes that went.
        interrupted = answers[0].startswith(FOREVER) and "EINTR wrote" in answers[1]
        return answers[1].startswith(FOREVER) and (interrupted or answers[1].endswith((ENDED.sub("", answers[0]), "never")))
    if step.name == "ioctl" and step.get("how") in ("fionread", "outq"):
        return past.has_filled(connections)
    if step.name in ("send", "aio", "print") and answers[0].startswith(FOREVER) and past.has_filled(connections):
        return re.search(r"(^| )\d+$|EINTR$", answers[1]) is not None
    if step.name != "exchange" or not any(answer.startswith(FOREVER) for answer in answers):
        return False
    amount = int(step.get("times")) * int(step.get("n"))
    return past.has_filled(connections) or step.at_once and amount > MUCH and next_answer == ["busy"]


def is_closed_by_another(program, waiting, native):
    """Tells whether another actor closes a descriptor of a step that waits. POSIX leaves open what the wait says."""
    step, until = program.steps[waiting], ENDED_BY.search(native[waiting])
    later = program.steps[waiting + 1:int(until.group(1)) + 1 if until else None]
    closed = {closed_by(other) for other in later if other.actor != step.actor}
    return native[waiting].startswith("blocked") and bool(closed & set(slots_of(step)))


def closed_by(step):
    """Gives the slot whose descriptor the step closes."""
    if step.name == "dup" and step.get("how") in ("dup2", "dup3"):
        return step.get("to")
    return step.get("s") if step.name == "close" or step.get("end", "shut") != "shut" else None


def closes_under_way(program, native):
    """Gives the slots that an actor closed while another actor's step waited on them."""
    waiting = [index for index, answer in enumerate(native) if answer.startswith("blocked")]
    return {slot for index in waiting if is_closed_by_another(program, index, native) for slot in slots_of(program.steps[index])}


def streams_ended_in(program, index, *logs):
    """Gives the slots of streams that ended amid a step. An actor that looks then may see the end or not."""
    steps = zip(program.steps, *logs)
    return {step.get("s") for step, *answers in steps if step.get("end") and any(f"after {index}:" in answer for answer in answers)}


def may_tell_again(past, connection):
    return past.has_returned(connection) or past.has_ended(connection) or past.may_be_moving(connection)


def is_merged(past, connections, answers, log):
    """Tells whether the set reported the same before, and no step but waits touched its connections since then."""
    this = past.here.get("e")
    told = [number for number, step in enumerate(past.before) if step.name == "epoll_wait" and step.get("e") == this and log[number] != "busy"]
    if not told:
        return False
    since = past.before[ended_at(told[-1], log[told[-1]]) + 1:]
    touched = [step for connection in connections for step in past.touching(connection, since)]
    only_waited = all(step.name == "epoll_wait" for step in touched)
    return only_waited and has_edges_more(past, *reversed(answers)) and same_events(answers[0], log[told[-1]])


def is_part(step, answers):
    counts = [int(found.group()) for found in (re.match(r"\d+", answer) for answer in answers) if found]
    return step.name == "recv" and len(counts) == 2 and 0 < counts[1] < counts[0]


def is_more(past, connections, ended_by):
    if len(ended_by) == 2 and ended_by[0] is not ended_by[1] and "more" in ended_by[1].get("flags", "").split(","):
        return True
    return past.any_with(connections, opt="cork") or past.any_with(connections, flags="more")


def one_each(answers):
    """Tells whether both answers of epoll_wait report one event."""
    return all(re.fullmatch(r"(blocked; after \d+: )?1 \d+:[a-z+-]+", answer) for answer in answers)


def is_nested(past, native, library):
    """Tells whether two answers of poll differ only for epoll sets, and the library says that these are readable."""
    asked = [one.partition(":")[0] for one in past.here.get("on", "").split(",")]
    sets = {one.get("e") for one in past.steps if one.name == "epoll_create"}
    waited, ended = (re.sub(r"blocked; after \d+: ", "", answer) for answer in (native, library))
    parts = [waited.split()[1:] or ["-"] * len(asked), ended.split()[1:]]
    if native.startswith(FOREVER) and not library.startswith(FOREVER):
        parts[0] = ["-"] * len(asked)
    if past.here.name != "poll" or any(len(part) != len(asked) for part in parts):
        return False
    differ = [at for at in range(len(asked)) if parts[0][at] != parts[1][at]]
    return bool(differ) and all(asked[at] in sets and parts[0][at] == "-" for at in differ)


def same_events(later, earlier):
    """Tells whether the earlier answer of epoll_wait has all that the later one reports."""
    events = [set(re.findall(r"\d+:[a-z+-]+", answer)) for answer in (later, earlier)]
    return events[0] <= events[1]


def has_edges_more(past, native, library):
    """Tells whether the library's answer of epoll_wait differs only by more events of edge-triggered registrations,
    each once."""
    # A native wait that ends later than the library's has reported nothing yet.
    if ended_at(-1, native) > ended_at(-1, library):
        native = "0"
    answers = [re.fullmatch(r"(?:blocked; after \d+: )?(\d+)?(?:EINTR)?((?: \d+:[a-z+-]+)*)", answer) for answer in (native, library)]
    if not all(answers):
        return False
    events, more = (answer.group(2).split() for answer in answers)
    numbers = [event.partition(":")[0] for event in more]
    extra = {event.partition(":")[0] for event in set(more) - set(events)}
    return set(events) < set(more) and len(numbers) == len(set(numbers)) and not extra & of_level(past)


def tells_less(native, library):
    """Tells whether the library's answer of epoll_wait or poll has fewer events than the native one, and no other
    event."""
    return bits_of(library) < bits_of(native) or polled_bits(library) < polled_bits(native)


def only_room(native, library):
    """Tells whether EPOLLOUT is all that the library reports in addition."""
    return {bit for _, bit in bits_of(library) - bits_of(native)} == {"out"}


def of_level(past):
    """Gives the data of registrations in the step's set that are not edge-triggered."""
    of_set = [step for step in past.done if step.name == "epoll_ctl" and step.get("e") == past.here.get("e")]
    changes = [step for step in of_set if step.get("op") in ("add", "mod")]
    return {step.get("data", step.get("s")) for step in changes if "et" not in step.get("events").split("+")}


def bits_of(answer):
    """Gives what an answer of epoll_wait reports: (data, event) pairs."""
    return {(data, bit) for data, bits in re.findall(r"(\d+):([a-z+]+)", answer) for bit in bits.split("+")}


def polled_bits(answer):
    """Gives what an answer of poll reports: (place, event) pairs."""
    places = enumerate(re.sub(r"blocked; after \d+: ", "", answer).split()[1:])
    return {(place, bit) for place, bits in places if re.fullmatch(r"[a-z+]+", bits) for bit in bits.split("+")}


def later_wait(program, index, log):
    """Gives the library's answer to the next wait on the set. None: there is no next wait."""
    later = range(index + 1, len(log))
    waits = [log[one] for one in later if program.steps[one].name == "epoll_wait" and program.steps[one].get("e") == program.steps[index].get("e")]
    return next((answer for answer in waits if answer not in ("busy", "no actor")), None)


def tells_in_two(past, answers, later):
    """Tells whether the library reports a part of what the kernel reports, and the rest at the next wait. That happens
    where it reports a registration again."""
    if past.here.name != "epoll_wait":
        return False
    native, library = map(bits_of, answers)
    of_edges = not {data for data, _ in native | library} & of_level(past)
    return of_edges and bool(library) and library < native and (later is None or native - library <= bits_of(later))
