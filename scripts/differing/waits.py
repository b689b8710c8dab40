"""Acts of waiting: poll, select and epoll, with another actor that wakes the waiting one, and calls that a later step
ends."""
from acts import close, drain, receive, send
from setup import both_ends, connect, thread_for, warm_up
from world import End, Set

EVENTS = (("in", 4), ("out", 2), ("in+out", 3), ("in+rdhup", 2), ("rdhup", 1), ("pri", 1), ("in+out+pri+rdhup", 2))


def poll(world):
    if not (found := world.any_end()):
        return
    process, slot, end = found
    slots = [slot, *(other for other in process.slots if other != slot and world.chance(0.4))][:6]
    on = ",".join(f"{one}:{world.pick(*EVENTS)}" for one in slots)
    how = world.pick(("poll", 4), ("ppoll", 2), ("select", 3), ("pselect", 2), ("syscall", 1))
    ms = world.pick((0, 5), (25, 1), (-1, 1.5))
    actor = world.actor_of(process)
    world.add(actor, "poll", on=on, how=how, ms=ms)
    if ms < 0:
        wake(world, end, actor)


def wake(world, end, actor):
    """Adds what may end a wait on a connection: an act of its peer, a signal, or a close by another thread."""
    peer = world.any_end(end.connection, 1 - end.side)
    what = world.pick(("send", 6), ("signal", 1.5), ("close", 1), ("shutdown", 1), ("own close", 1))
    own = next((process for process in world.living() if actor in process.actors), None)
    if what == "own close":
        # Another thread closes the descriptor that this one waits on.
        slot = own and next((slot for slot, held in own.slots.items() if held is end), None)
        if slot is not None and (other := thread_for(world, own, actor)):
            world.add(other, "close", s=slot)
            del own.slots[slot]
            if peer:
                send(world, peer, 10)
    elif what == "signal":
        world.add("*", "signal", of=actor, sig=world.pick("USR1", "USR2"))
    elif peer and what == "close":
        close(world, peer)
    elif peer and what == "shutdown":
        world.add(world.actor_of(peer[0]), "shutdown", s=peer[1], how="wr", **{"in": peer[2].into})
        peer[2].connection.ended[peer[2].side] = True
    elif peer and peer[2].connection.room(peer[2].side) > 0:
        send(world, peer)


def blocked(world):
    """Adds a receive that has nothing yet, or not all that it waits for."""
    if not (found := world.any_end()):
        return
    process, slot, end = found
    due = end.connection.due[1 - end.side]
    actor = world.actor_of(process)
    if world.chance(0.5):
        world.add(actor, "drain", s=slot, **{"in": end.into})
        due = end.connection.due[1 - end.side] = 0
    flags, size = world.pick((None, 2), ("waitall", 2), ("peek", 1), ("peek,waitall", 1)), due + world.pick(1, 20, 300, 2000)
    how = world.pick(("recv", 3), ("recvmsg", 1), ("recvmmsg", 1)) if flags else world.pick("read", "readv", "recvfrom", "splice", "recv")
    world.add(actor, "recv", s=slot, **{"in": end.into}, n=size, how=how, flags=flags)
    end.connection.due[1 - end.side] = 0
    for _ in range(world.pick(1, 2)):
        wake(world, end, actor)


def epoll(world):
    """Makes a set, or changes one that is there, waits on it, duplicates it or closes it."""
    having = [process for process in world.living() if process.having(End)]
    if not having:
        return
    process = world.random.choice(having)
    actor, sets = world.actor_of(process), process.having(Set)
    if not sets or world.chance(0.15):
        if not world.may_grow():
            return
        slot = world.new_slot()
        world.add(actor, "epoll_create", e=slot, old=1 if world.chance(0.2) else None, cloexec=0 if world.chance(0.3) else None)
        process.slots[slot] = Set()
        for _ in range(world.pick(1, 2)):
            register(world, process, actor, slot)
        if process.slots[slot].members:
            for _ in range(world.pick(1, 2, 4)):
                wait(world, process, actor, slot)
                if world.chance(0.5):
                    world.pick(send, receive)(world)
        return
    slot = world.random.choice(sets)
    what = world.pick(("wait", 8), ("register", 3), ("modify", 2), ("delete", 1), ("nest", 0.7), ("dup", 0.5), ("close", 0.3))
    members = process.slots[slot].members
    if what == "register" or not members:
        register(world, process, actor, slot)
    elif what == "wait":
        wait(world, process, actor, slot)
    elif what == "modify":
        world.add(actor, "epoll_ctl", e=slot, op="mod", s=world.random.choice(list(members)), events=events(world))
    elif what == "delete":
        world.add(actor, "epoll_ctl", e=slot, op="del", s=members.popitem()[0])
    elif what == "close":
        world.add(actor, "close", s=slot)
        del process.slots[slot]
    elif what == "dup" and world.may_grow():
        to = world.new_slot()
        world.add(actor, "dup", s=slot, to=to)
        process.slots[to] = process.slots[slot]
    elif what == "nest" and len(sets) > 1:
        other = world.random.choice([one for one in sets if one != slot])
        world.add(actor, "epoll_ctl", e=slot, op="add", s=other, events=world.pick("in", "in+et"))


def events(world):
    mode = world.pick(("", 4), ("+et", 3), ("+once", 2), ("+et+once", 1), ("+exclusive", 0.5))
    return world.pick(*EVENTS) + mode


def register(world, process, actor, slot):
    ends = process.having(End)
    if ends:
        member = world.random.choice(ends)
        world.add(actor, "epoll_ctl", e=slot, op="add", s=member, events=events(world))
        process.slots[slot].members[member] = process.slots[member]


def wait(world, process, actor, slot):
    ms = world.pick((0, 6), (25, 1), (-1, 2))
    how, most = world.pick(("wait", 4), ("pwait", 1), ("pwait2", 1)), world.pick((None, 6), (1, 1), (0, 0.2))
    world.add(actor, "epoll_wait", e=slot, ms=ms, how=how, max=most)
    if ms < 0:
        wake(world, world.random.choice(list(process.slots[slot].members.values())), actor)
        return
    if world.chance(0.5):
        # Edges show in the answer of the second of two waits.
        if world.chance(0.5):
            world.pick(send, receive)(world)
        world.add(actor, "epoll_wait", e=slot, ms=0)


def registered_before(world):
    """Puts a connection into a set before it comes to the SAN, perhaps by a duplicate that is closed afterwards."""
    if not world.may_connect() or not world.may_grow():
        return
    connection = connect(world, *world.random.choices(world.living(), k=2))
    process, slot, end = world.any_end(connection)
    actor, set_slot, member = world.actor_of(process), world.new_slot(), slot
    world.add(actor, "epoll_create", e=set_slot)
    process.slots[set_slot] = Set({slot: end})
    if world.chance(0.5):
        member = world.new_slot()
        world.add(actor, "dup", s=slot, to=member, how=world.pick("dup", "fcntl"))
    world.add(actor, "epoll_ctl", e=set_slot, op="add", s=member, data=slot, events=events(world))
    if member != slot:
        world.add(actor, "close", s=member)
    if world.chance(0.3):
        world.add(actor, "epoll_wait", e=set_slot, ms=0)
    warm_up(world, connection)
    if peer := world.any_end(connection, 1 - end.side):
        send(world, peer, 10)
    for _ in range(world.pick(1, 2)):
        world.add(actor, "epoll_wait", e=set_slot, ms=0)
    if world.chance(0.5):
        world.add("*", "detach", of=actor)
        drain(world)
        world.add(actor, "epoll_wait", e=set_slot, ms=0)


def much_at_once(world):
    """Has a receiver wait until there is much: by SO_RCVLOWAT, MSG_PEEK with MSG_WAITALL, or FIONREAD."""
    open_ones = [one for one in world.connections if not any(one.ended) and not any(one.due) and not one.urgent and not one.small]
    pair = open_ones and both_ends(world, world.random.choice(open_ones))
    if not pair:
        return
    (a, s, one), (b, t, other) = pair
    low, how = world.pick(3000, 15000), world.pick("lowat", "peek", "available", "blocked")
    if how in ("lowat", "blocked"):
        world.add(b, "set", s=t, opt="rcvlowat", to=low)
    if how == "blocked":
        world.add(b, "poll", on=f"{t}:in", ms=-1, how=world.pick("poll", "select"))
        world.add(a, "send", s=s, out=one.out, n=low - 100, flags="nosignal")
    world.add(a, "send", s=s, out=one.out, n=20000, flags="nosignal")
    if how in ("lowat", "blocked"):
        world.add(b, "poll", on=f"{t}:in", ms=0)
        world.add(b, "set", s=t, opt="rcvlowat", to=1)
    elif how == "peek":
        world.add(b, "recv", s=t, **{"in": other.into}, n=low, flags="peek,waitall")
    world.add(b, "ioctl", s=t, how="fionread")
    world.add(b, "drain", s=t, **{"in": other.into})
