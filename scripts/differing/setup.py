"""How a program's connections begin, and how they come to the SAN."""
from world import Connection, End


def connect(world, listening=None, connecting=None):
    listening = listening or world.pick(*world.living())
    connecting = connecting or world.pick(*world.living())
    pick, family = world.pick, world.pick((4, 3), (6, 1))
    connection = Connection(len(world.connections), family)
    world.connections.append(connection)
    listener, client, server, port = world.new_slot(), world.new_slot(), world.new_slot(), world.ports
    world.ports += 1
    a, b = world.actor_of(listening), world.actor_of(connecting)
    flags = pick((None, 6), ("cloexec", 2), ("nonblock", 1), ("cloexec,nonblock", 1))
    how = pick((None, 2), ("accept4", 1))
    accepted = pick((None, 4), ("cloexec", 2), ("nonblock", 1)) if how else None
    small = 4096 if world.chance(0.06) else None
    connection.small = bool(small)
    world.add(a, "listen", s=listener, port=port, family=family if family == 6 else None)
    if world.chance(0.05):
        inherited = pick("oobinline", "keepalive", "nodelay", "rcvlowat")
        world.add(a, "set", s=listener, opt=inherited, to=1)
    world.add(b, "connect", s=client, port=port, family=family if family == 6 else None, flags=flags, sndbuf=small)
    world.add(a, "accept", l=listener, s=server, how=how, flags=accepted)
    if world.chance(0.7):
        world.add(a, "close", s=listener)
    connecting.slots[client] = End(connection, 0)
    listening.slots[server] = End(connection, 1)
    return connection


def thread_for(world, process, other_than):
    """Gives another actor of the process, if need be a new one."""
    other = world.actor_of(process, other_than)
    if other is None and world.may_grow():
        other = world.new_actor()
        world.add(process.actors[0], "thread", new=ord(other) - ord("A"))
        process.actors.append(other)
    return other


def both_ends(world, connection):
    """Gives two actors that can use the two ends at once: ((actor, slot, end), (actor, slot, end)), or None."""
    one, other = world.any_end(connection, 0), world.any_end(connection, 1)
    if not one or not other:
        return None
    actor = world.actor_of(one[0])
    second = world.actor_of(other[0]) if other[0] is not one[0] else thread_for(world, one[0], actor)
    return second and ((actor, one[1], one[2]), (second, other[1], other[2]))


def warm_up(world, connection):
    pair = both_ends(world, connection)
    if not pair or any(connection.due) or any(connection.ended) or connection.urgent:
        return
    if any(connection.deaf):
        # A receiver that shut down does not wait: TCP leaves open whether an exchange's bytes are there in time.
        return
    if world.chance(0.5):
        pair = pair[::-1]
    (a, s, one), (b, t, other) = pair
    times, size = world.pick((6, 3), (12, 2), (60, 4), (200, 1)), world.pick((1, 4), (100, 2), (1500, 1), (9000, 0 if connection.small else 1))
    wait = [world.pick(("poll", 2), ("select", 1), ("epoll", 1)) for _ in range(2)]
    world.add(a, "exchange", at_once=True, s=s, out=one.out, **{"in": one.into}, times=times, n=size, first=1, wait=wait[0])
    world.add(b, "exchange", s=t, out=other.out, **{"in": other.into}, times=times, n=size, wait=wait[1])
