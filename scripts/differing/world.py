"""Holds what the generator knows of the program that it makes: the processes, their actors, and what each slot
holds."""
import dataclasses

from memory import ACTORS, STREAMS
from steps import LETTERS, step

SLOTS = 40
# The unread bytes stay below what any buffer takes, except where a step means to fill the buffer.
MOST_DUE = 30000


@dataclasses.dataclass
class Connection:
    number: int
    family: int
    # The bytes of each side that its peer has not received yet, as far as the generator knows.
    due: list = dataclasses.field(default_factory=lambda: [0, 0])
    urgent: bool = False
    small: bool = False
    ended: list = dataclasses.field(default_factory=lambda: [False, False])
    # The side shut down the direction in which it receives.
    deaf: list = dataclasses.field(default_factory=lambda: [False, False])

    def room(self, side):
        return (500 if self.small else MOST_DUE) - self.due[side]


@dataclasses.dataclass
class End:
    """A connection's end, as a slot holds it."""

    connection: Connection
    side: int

    @property
    def out(self):
        return 2 * self.connection.number + self.side

    @property
    def into(self):
        return 2 * self.connection.number + 1 - self.side


@dataclasses.dataclass
class Set:
    """An epoll set, and the slots registered in it."""

    members: dict = dataclasses.field(default_factory=dict)


def may_block(step):
    if step.name == "recv" or step.name == "send" and step.get("n") == "200000":
        return "dontwait" not in step.get("flags", "")
    return step.get("ms") == "-1"


class Process:
    def __init__(self, actors, slots):
        self.actors, self.slots, self.alive = actors, slots, True

    def having(self, kind):
        return [slot for slot, what in self.slots.items() if isinstance(what, kind)]


class World:
    def __init__(self, random, ends):
        self.random, self.ends = random, ends
        self.processes = [Process([LETTERS[index]], {}) for index in range(ends)]
        self.steps, self.connections, self.ports, self.slot, self.actor = [], [], 0, 0, ends
        self.blocked = []

    def add(self, actor, name, at_once=False, **values):
        self.steps.append(step(actor, name, at_once, **values))
        if may_block(self.steps[-1]):
            self.blocked.append(actor)

    def free_some(self):
        """Interrupts most actors that may wait for good, so that their other steps come to pass."""
        for actor in self.blocked:
            if self.chance(0.85):
                self.add("*", "free", of=actor)
        self.blocked = []

    def new_slot(self):
        self.slot += 1
        return self.slot - 1

    def new_actor(self):
        self.actor += 1
        return LETTERS[self.actor - 1]

    def may_grow(self):
        return self.slot < SLOTS - 4 and self.actor < ACTORS

    def may_connect(self):
        return self.slot < SLOTS - 6 and len(self.connections) < STREAMS // 2

    def living(self):
        return [process for process in self.processes if process.alive]

    def chance(self, of):
        return self.random.random() < of

    def pick(self, *choices):
        """Picks one of the choices. Choices that are tuples are (choice, weight) pairs."""
        if isinstance(choices[0], tuple):
            return self.random.choices([one for one, _ in choices], [weight for _, weight in choices])[0]
        return self.random.choice(choices)

    def any_end(self, connection=None, side=None):
        """Gives (process, slot, end) of a connection that a process still has, or None."""
        found = [
            (process, slot, what)
            for process in self.living()
            for slot, what in process.slots.items()
            if isinstance(what, End) and connection in (None, what.connection) and side in (None, what.side)
        ]
        return self.random.choice(found) if found else None

    def actor_of(self, process, other_than=None):
        others = [actor for actor in process.actors if actor != other_than]
        return self.random.choice(others) if others else None
