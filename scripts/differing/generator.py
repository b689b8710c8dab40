"""Makes the program of a seed. First connections come to the SAN, then there are acts of all kinds, then the ends
receive what is left."""
import random

import acts
import family
import waits
from setup import connect, warm_up
from steps import Program
from world import World

ACTS = [
    (acts.send, 14), (acts.receive, 14), (acts.drain, 5), (acts.fill, 1.5), (acts.stream, 7), (acts.close, 3), (acts.shutdown, 3), (acts.reset, 1),
    (acts.duplicate, 2), (acts.flags, 2), (acts.options, 3), (acts.asks, 4), (acts.bad, 2), (acts.timeout, 1), (acts.urgent, 2),
    (acts.held_back, 0.7), (acts.printed, 0.7), (acts.asynchronous, 0.5),
    (waits.poll, 7), (waits.blocked, 5), (waits.epoll, 12), (waits.registered_before, 2), (waits.much_at_once, 1.5), (acts.gives_up, 0.1),
    (family.thread, 1.5), (family.cancel, 3), (family.listening, 1), (family.fork, 2), (family.execute, 0.7), (family.spawn, 0.7), (family.system, 0.3), (family.passing, 1.5), (family.kill, 0.7),
    (family.stop, 0.5), (family.signal, 1), (family.detach, 4), (family.pause, 1), (family.another, 1.5), (family.more_exchanges, 2),
]


def finish(world):
    """Has the ends receive what is left, one end close, and the other see that."""
    for connection in world.connections:
        for side in world.random.sample([0, 1], 2):
            if found := world.any_end(connection, side):
                world.add(world.actor_of(found[0]), "drain", s=found[1], **{"in": found[2].into})
        side = world.random.choice([0, 1])
        for process in world.living():
            for slot in [slot for slot, what in process.slots.items() if getattr(what, "connection", None) is connection and what.side == side]:
                world.add(world.actor_of(process), "close", s=slot)
                del process.slots[slot]
        if found := world.any_end(connection, 1 - side):
            actor = world.actor_of(found[0])
            world.add(actor, "poll", on=f"{found[1]}:in+out+rdhup", ms=0)
            world.add(actor, "drain", s=found[1], **{"in": found[2].into})


def generate(seed):
    chosen = random.Random(seed)
    world = World(chosen, chosen.choices([2, 3, 4], [6, 2, 1])[0])
    for _ in range(chosen.choices([1, 2, 3], [6, 2, 1])[0]):
        # Most connections have their ends in two processes.
        two = chosen.sample(world.processes, 2) if chosen.random() < 0.85 else [chosen.choice(world.processes)] * 2
        connection = connect(world, *two)
        if chosen.random() < 0.85:
            warm_up(world, connection)
    # Some programs have few kinds of acts, so that each kind meets itself.
    kinds = ACTS if chosen.random() < 0.6 else chosen.sample(ACTS, 8) + [(acts.send, 10), (acts.receive, 10), (acts.stream, 7)]
    parts = chosen.choices([act for act, _ in kinds], [weight for _, weight in kinds], k=chosen.randint(3, 22))
    # Other programs have streams alone: a stream comes to the SAN in another way as soon as anything was sent before.
    if chosen.random() < 0.15:
        parts = [acts.stream] * chosen.randint(2, 4)
    for act in parts:
        if not world.living():
            break
        act(world)
        world.free_some()
    finish(world)
    return Program(world.ends, tuple(world.steps))
