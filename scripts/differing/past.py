"""Knows what a program did before a step, and did to the connections that the step asks about."""
import re
import sys

ENDED_BY = re.compile(r"after (\d+):")
# Steps that bring connections back to TCP in every mode. The first bring back their own connection. The others bring
# back all connections of a process.
RETURNS, RETURN_ALL = ("pass", "aio", "print"), ("exec", "spawn")
KILLS = ("kill", "exit", "_exit", "abort", "exec")
# Steps that move bytes over a connection, and streams that move many.
TRANSFERS, STREAMS = ("send", "recv", "print", "aio"), ("exchange", "wstream", "rstream")
# A connection with no more transfers than these may be on its way to the SAN.
FEW_TRANSFERS = 12
# So many bytes of one call may have to wait for room on the SAN.
MUCH_AT_ONCE = 8192


def slots_of(step):
    """Gives the slots that a step names, except those of sets and listeners."""
    asked = [one.partition(":")[0] for one in step.get("on", "").split(",") if one]
    return asked + [slot for slot in (step.get("s"),) if slot is not None]


def ended_at(index, answer):
    """Gives the step during which the actor gave the answer."""
    if answer.endswith("never"):
        return sys.maxsize
    after = ENDED_BY.search(answer)
    return int(after.group(1)) if after else index


class Past:
    """All other steps until the step `index` ended on either side. The native answers say what the steps came to.
    `before`: the steps until the step `index` began."""

    def __init__(self, program, mode, index, native, library):
        self.mode, self.here, self.before = mode, program.steps[index], program.steps[:index]
        until = min(ended_at(index, native[index]), ended_at(index, library[index]))
        these = [number for number in range(min(until + 1, len(program.steps))) if number != index]
        self.steps = [program.steps[number] for number in these]
        self.done = [program.steps[number] for number in these if native[number] == "0"]
        # The step behind a stream is the stream's reader.
        streams = [number for number in these if program.steps[number].name == "wstream"]
        self.unread = [program.steps[number] for number in streams if native[number + 1:number + 2] in (["busy"], ["no actor"], ["in use"])]
        self.connections_of = self.followed()

    def followed(self):
        """Gives the connections that each slot had. A connection's name is the port that it was made with."""
        ports, had, passed = {}, {}, {}
        for step in (*self.steps, self.here):
            slot = step.get("s")
            if step.name == "listen":
                ports[slot] = step.get("port")
            elif step.name in ("connect", "accept"):
                had.setdefault(slot, set()).add(step.get("port") or ports.get(step.get("l")))
            elif step.name == "dup" and slot in had:
                had.setdefault(step.get("to"), set()).update(had[slot])
            elif step.name == "pass":
                passed[step.get("way")] = had.get(slot, set())
            elif step.name == "take":
                had.setdefault(slot, set()).update(passed.get(step.get("way"), set()))
        return had

    def connections(self, slots):
        return set().union(*(self.connections_of.get(slot, set()) for slot in slots))

    def asked_about(self, native, library):
        """Gives the connections of which two answers to the step differ. Gives all connections if the answers do not
        tell."""
        slots = slots_of(self.here)
        if self.here.name == "epoll_wait":
            slots = self.slots_reported(set(re.findall(r"\d+:[a-z+-]+", native)) ^ set(re.findall(r"\d+:[a-z+-]+", library)))
        elif self.here.name == "poll":
            parts = [answer.split()[1:] for answer in (native, library)]
            if all(len(part) == len(slots) for part in parts):
                slots = [slot for slot, one, other in zip(slots, *parts) if one != other]
            slots = set(slots).union(*(self.slots_in(slot) for slot in slots))
        return self.connections(slots) or set().union(*self.connections_of.values())

    def slots_in(self, slot):
        """Gives the slots that were put into the set in this slot, if there is a set."""
        return {step.get("s") for step in self.steps if step.name == "epoll_ctl" and step.get("e") == slot}

    def slots_reported(self, events):
        """Gives the slots of events as epoll_wait says them: `DATA:EVENTS`."""
        changes = [step for step in self.steps if step.name == "epoll_ctl" and step.get("s") is not None]
        data = {event.partition(":")[0] for event in events}
        return {step.get("s") for step in changes if step.get("data", step.get("s")) in data}

    def touching(self, connection, steps=None):
        """Gives the steps that name a slot which had the connection."""
        return [step for step in (self.steps if steps is None else steps) if connection in self.connections(slots_of(step))]

    def has_returned(self, connection):
        """Tells whether the connection may have gone back to TCP."""
        if self.was_detached(connection):
            return True
        mine = self.touching(connection)
        by_itself = any(step.name in RETURNS or step.get("how") == "async" or "oob" in step.get("flags", "") for step in mine)
        return by_itself or any(step.name in RETURN_ALL or step.get("end") == "exec" for step in self.steps)

    def was_detached(self, connection):
        """Tells whether `sanctl detach` may have asked for the connection."""
        return self.mode == "detach" and bool(self.touching(connection)) and any(step.name == "detach" for step in self.steps)

    def has_image(self):
        """Tells whether a process became another program, or started one."""
        return any(step.name in RETURN_ALL for step in self.steps)

    def is_divided(self):
        """Tells whether an epoll set that the step is about was there before a fork, or the start of another program. A
        stream that waits by epoll has a set of its own."""
        divides = ("fork", "spawn")
        if self.here.get("wait") == "epoll" and any(step.name in divides for step in self.steps):
            return True
        about = {self.here.get("e"), *slots_of(self.here)}
        made = [number for number, step in enumerate(self.steps) if step.name == "epoll_create" and step.get("e") in about]
        return bool(made) and any(step.name in divides for step in self.steps[made[0]:])

    def has_killed(self):
        """Tells whether a process may have been killed, have exited, or have become another program."""
        ends = ("kill", "exit", "exec")
        goes_on = ("STOP", "CONT")
        return any(step.name in ends and step.get("sig") not in goes_on or step.get("end") in KILLS for step in self.steps)

    def has_filled(self, connections):
        """Tells whether a side of one of the connections sent as much as goes, or a stream that nobody read."""
        return any(step.name == "fill" or step in self.unread for connection in connections for step in self.touching(connection))

    def is_closed_behind_fork(self, connection):
        """Tells whether a descriptor of the connection was closed after a fork. Another process may still have the
        descriptor open."""
        forks = [number for number, step in enumerate(self.steps) if step.name == "fork"]
        return bool(forks) and any(step.name == "close" for step in self.touching(connection, self.steps[forks[0]:]))

    def sends_much(self, connection):
        """Tells whether a call sent more at once over the connection than the first buffers hold."""
        return any(int(step.get("n", 0)) >= MUCH_AT_ONCE for step in self.touching(connection) if step.name in ("send", *STREAMS))

    def has_ended(self, connection):
        """Tells whether an end of the connection may be gone."""
        mine = self.touching(connection)
        return self.has_killed() or any(step.name == "close" or step.get("end") for step in mine)

    def may_be_moving(self, connection):
        """Tells whether the connection may have come to the SAN since an actor last waited on the step's set."""
        this = self.here.get("e")
        waits = [number for number, step in enumerate(self.steps) if step.name == "epoll_wait" and step.get("e") == this]
        since = self.touching(connection, self.steps[waits[-1]:] if waits else self.steps)
        transfers = sum(step.name in TRANSFERS for step in self.touching(connection))
        return any(step.name in STREAMS for step in since) or transfers <= FEW_TRANSFERS

    def shut(self, connection, both):
        """Tells whether an end of the connection shut both directions down, or without `both` the one in which it
        receives."""
        wanted = ("rd", "rdwr")
        for slot in {step.get("s") for step in self.touching(connection, self.done) if step.name == "shutdown"}:
            hows = {step.get("how", "rdwr") for step in self.done if step.name == "shutdown" and step.get("s") == slot}
            if "rdwr" in hows or ({"rd", "wr"} <= hows if both else hows & set(wanted)):
                return True
        return False

    def shut_sending(self, connection):
        """Tells whether an end of the connection shut down the direction in which it sends."""
        return any(step.name == "shutdown" and step.get("how") != "rd" for step in self.touching(connection, self.done))

    def any_with(self, connections, **values):
        """Tells whether a step on one of the connections has these values. A flag may be one of several."""
        has = lambda step, key, value: value in step.get(key, "").split(",")
        steps = [step for connection in connections for step in self.touching(connection)]
        return any(all(has(step, key, value) for key, value in values.items()) for step in steps)
