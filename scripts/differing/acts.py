"""The acts of a program: each function here adds a few steps of one kind to the program. The common calls come more
often."""
from setup import both_ends, connect, thread_for
from world import End

SENDS = (("send", 6), ("write", 3), ("sendto", 1), ("writev", 2), ("pwritev2", 1), ("sendmsg", 2), ("sendmmsg", 2), ("syscall", 1), ("sendfile", 2), ("splice", 2))
RECEIVES = (("recv", 6), ("read", 3), ("recvfrom", 1), ("readv", 2), ("preadv2", 1), ("recvmsg", 2), ("recvmmsg", 2), ("syscall", 1), ("splice", 2))
SIZES = ((1, 4), (2, 1), (10, 3), (100, 4), (700, 3), (1472, 1), (1500, 2), (3000, 2), (8192, 2), (16000, 1))
PLAIN = ("write", "writev", "sendfile", "splice", "pwritev2")


def send(world, found=None, size=None, actor=None):
    found = found or world.any_end()
    if not found:
        return
    process, slot, end = found
    size = min(size or world.pick(*SIZES), end.connection.room(end.side))
    if size <= 0:
        return
    how = world.pick(*SENDS)
    flags = None if how in PLAIN else world.pick(("nosignal", 6), (None, 1), ("nosignal,dontwait", 2))
    pieces = world.pick(1, 2, 5, 9) if how in ("writev", "pwritev2", "sendmsg", "sendmmsg") else None
    if end.connection.small and how == "sendmmsg":
        how = "sendmsg"
    world.add(actor or world.actor_of(process), "send", s=slot, out=end.out, n=size, how=how, flags=flags, pieces=pieces)
    if not end.connection.ended[end.side]:
        end.connection.due[end.side] += size


def held_back(world):
    """Adds sends that MSG_MORE or TCP_CORK hold back. Their bytes are visible at once on the SAN (docs/limitations.md),
    so a further step lets them go before anybody looks. A peer that ended would answer at once, so this leaves such a
    connection out."""
    found = world.any_end()
    if not found or found[2].connection.room(found[2].side) < 20:
        return
    process, slot, end = found
    if end.connection.ended[1 - end.side]:
        return
    actor, corks = world.actor_of(process), world.chance(0.5)
    if corks:
        world.add(actor, "set", s=slot, opt="cork", to=1)
    world.add(actor, "send", s=slot, out=end.out, n=10, flags="nosignal" if corks else "nosignal,more")
    world.add(actor, "send", s=slot, out=end.out, n=10, flags="nosignal")
    if corks:
        world.add(actor, "set", s=slot, opt="cork", to=0)
    if not end.connection.ended[end.side]:
        end.connection.due[end.side] += 20


def receive(world, found=None):
    found = found or world.any_end()
    if not found:
        return
    process, slot, end = found
    due = end.connection.due[1 - end.side]
    size = world.pick((due or 1, 3), (max(1, due // 2), 2), (due + 50, 2), (1, 2), (10, 1))
    how = world.pick(*RECEIVES)
    flags = world.pick(("dontwait", 4), (None, 3), ("peek,dontwait", 2), ("waitall", 1), ("peek", 1), ("peek,waitall,dontwait", 1), ("trunc,dontwait", 1))
    if due == 0 and world.chance(0.7):
        flags = "dontwait"
    if how in ("read", "readv"):
        flags = None
    elif how in ("preadv2", "splice") and flags:
        flags = "dontwait" if "dontwait" in flags else None
    pieces = world.pick(1, 2, 5) if how in ("readv", "preadv2", "recvmsg", "recvmmsg") else None
    world.add(world.actor_of(process), "recv", s=slot, **{"in": end.into}, n=size, how=how, flags=flags, pieces=pieces)
    if not flags or "peek" not in flags:
        end.connection.due[1 - end.side] = max(0, due - size)


def printed(world):
    """Adds writes to a socket by libc's own streams, and by dprintf."""
    found = world.any_end()
    if not found or found[2].connection.room(found[2].side) < 100:
        return
    process, slot, end = found
    how = world.pick(("dprintf", 3), ("fdopen", 1), ("fdopen2", 1))
    world.add(world.actor_of(process), "print", s=slot, out=end.out, n=world.pick(1, 50, 100), how=how)
    if not end.connection.ended[end.side]:
        end.connection.due[end.side] += 100


def asynchronous(world):
    """Adds POSIX asynchronous I/O. The actor waits for its end."""
    found = world.any_end()
    if not found or found[2].connection.room(found[2].side) < 100:
        return
    process, slot, end = found
    if world.chance(0.6):
        world.add(world.actor_of(process), "aio", s=slot, out=end.out, n=world.pick(1, 100), how="write")
        if not end.connection.ended[end.side]:
            end.connection.due[end.side] += 100
    elif end.connection.due[1 - end.side]:
        world.add(world.actor_of(process), "aio", s=slot, **{"in": end.into}, n=world.pick(1, 50), how="read")


def drain(world):
    if found := world.any_end():
        process, slot, end = found
        world.add(world.actor_of(process), "drain", s=slot, **{"in": end.into})
        end.connection.due[1 - end.side] = 0


def gives_up(world):
    """Has TCP_USER_TIMEOUT end a connection whose peer does not read."""
    if not (found := world.any_end()):
        return
    process, slot, end = found
    actor = world.actor_of(process)
    world.add(actor, "set", s=slot, opt="usertimeout", to=300)
    world.add(actor, "fill", s=slot, out=end.out)
    world.add(actor, "timeout", s=slot, send=1, out=end.out, n=200000, ms=2500)
    world.add(actor, "poll", on=f"{slot}:in+out", ms=0)
    end.connection.ended = [True, True]


def fill(world):
    """Has one side send as much as goes, and perhaps wait for room. Then the other side takes the bytes, or another act
    ends the wait."""
    if not (found := world.any_end()):
        return
    process, slot, end = found
    peer = world.any_end(end.connection, 1 - end.side)
    # When a receiver that shut down makes room, TCP's sender learns of it by a timer.
    if not peer or end.connection.urgent or end.connection.deaf[peer[2].side]:
        return
    actor = world.actor_of(process)
    world.add(actor, "fill", s=slot, out=end.out)
    world.add(actor, "poll", on=f"{slot}:out+in", ms=0)
    kind = world.pick(("poll", 2), ("send", 2), ("nothing", 1), ("timeout", 1))
    if kind == "poll":
        world.add(actor, "poll", on=f"{slot}:out", ms=-1, how=world.pick("poll", "ppoll", "select", "pselect"))
    elif kind == "send":
        world.add(actor, "send", s=slot, out=end.out, n=200000, flags="nosignal")
    elif kind == "timeout":
        world.add(actor, "timeout", s=slot, send=1, out=end.out, n=200000, ms=30)
    act = world.pick(("drain", 5), ("close", 1), ("signal", 1), ("kill", 0.5), ("own close", 1))
    if act == "own close" and (other := thread_for(world, process, actor)):
        world.add(other, "close", s=slot)
        del process.slots[slot]
    elif act == "signal":
        world.add("*", "signal", of=actor, sig=world.pick("USR1", "USR2"))
    elif act == "close":
        close(world, peer)
        return
    elif act == "kill":
        world.add("*", "kill", of=peer[0].actors[0], sig="KILL")
        peer[0].alive = False
        return
    # There are two drains: the rest of a blocked send comes during the first.
    for _ in range(2):
        world.add(world.actor_of(peer[0]), "drain", s=peer[1], **{"in": peer[2].into})
    world.add(actor, "poll", on=f"{slot}:out", ms=0)
    end.connection.due[end.side] = 0


ENDINGS = (("close", 6), ("shut", 2), ("shutclose", 1), ("lingerclose", 1), ("dup2", 1), ("exit", 2), ("_exit", 1), ("kill", 2), ("exec", 1), (None, 3))
LAST = ("exit", "_exit", "kill", "exec")


def stream(world):
    """Megabytes one way, quickly, then slowly or with a pause; then the sender ends in the same breath. Often that is all that
    happens on the connection: it comes to the SAN amid the stream."""
    if world.may_connect() and len(world.living()) > 1 and world.chance(0.5):
        fresh = [connect(world, *world.random.sample(world.living(), 2))]
    else:
        fresh = []
    open_ones = fresh or [one for one in world.connections if not any(one.ended) and not one.urgent]
    if not open_ones:
        return
    pair = both_ends(world, world.random.choice(open_ones))
    if not pair:
        return
    if world.chance(0.5):
        pair = pair[::-1]
    (a, s, one), (b, t, other) = pair
    for actor, slot, end in pair:
        # TCP leaves open how much goes while nobody reads.
        world.add("*", "free", of=actor)
        if one.connection.due[1 - end.side]:
            world.add(actor, "drain", s=slot, **{"in": end.into})
            one.connection.due[1 - end.side] = 0
    size = world.pick((8192, 5), (1000, 1), (65536, 2), (200000, 1))
    total = world.pick((5000000, 5), (1000000, 2), (200000, 1), (12345, 1)) if size > 1000 else 300000
    slow = {}
    if world.chance(0.6):
        slow = dict(slow=world.pick(30, 60, 100, 130, 200), slow_times=world.pick(20, 50, 100, 200), slow_us=world.pick((60, 3), (200, 1)))
    elif world.chance(0.3):
        slow = dict(pause_at=world.pick(10, 100), pause_ms=world.pick((5, 3), (30, 2), (1300, 0.3)))
    ending = world.pick(*ENDINGS)
    process = next(process for process in world.processes if a in process.actors)
    if ending in LAST and b in process.actors:
        # Nobody can tell what a thread received if the thread ends with its process.
        ending = "close"
    if ending == "exec" and a != process.actors[0]:
        # A thread is gone when its process becomes another program, which may run on for a while.
        ending = "exit"
    wait = [world.pick((None, 3), ("poll", 1), ("select", 1), ("epoll", 1)) for _ in range(2)]
    reading = dict(total=total) if ending is None else {}
    world.add(a, "wstream", at_once=True, s=s, out=one.out, total=total, n=size, wait=wait[0], end=ending, **slow)
    pause = dict(pause_at=world.pick(0, 50), pause_ms=world.pick(5, 40)) if world.chance(0.2) else {}
    world.add(b, "rstream", s=t, **{"in": other.into}, n=world.pick((8192, 3), (65536, 2), (1000, 1), (1000000, 1)), wait=wait[1], **reading, **pause)
    if ending:
        one.connection.ended[one.side] = True
    if ending in LAST:
        process.alive = False
    elif ending and ending != "shut":
        process.slots.pop(s, None)


def close(world, found=None):
    if found := found or world.any_end():
        process, slot, end = found
        world.add(world.actor_of(process), "close", s=slot, how=world.pick((None, 4), ("range", 1), ("syscall", 1)))
        del process.slots[slot]
        if not world.any_end(end.connection, end.side):
            end.connection.ended[end.side] = True


def shutdown(world):
    if found := world.any_end():
        process, slot, end = found
        how = world.pick(("wr", 5), ("rd", 2), ("rdwr", 2), ("wrong", 0.3))
        world.add(world.actor_of(process), "shutdown", s=slot, how=how, **{"in": end.into})
        if "wr" in how:
            end.connection.ended[end.side] = True
        if "rd" in how:
            end.connection.deaf[end.side] = True


def reset(world):
    if found := world.any_end():
        process, slot, _ = found
        world.add(world.actor_of(process), "linger", s=slot, on=1, seconds=world.pick((0, 3), (5, 1)))
        if world.chance(0.6):
            close(world, found)


def duplicate(world):
    if (found := world.any_end()) and world.may_grow():
        process, slot, end = found
        how, to = world.pick(("dup", 3), ("fcntl", 2), ("cloexec", 1), ("dup2", 2), ("dup3", 1)), world.new_slot()
        if how in ("dup2", "dup3"):
            others = [other for other, what in process.slots.items() if other != slot and isinstance(what, End)]
            if not others:
                return
            to = world.random.choice(others)
        world.add(world.actor_of(process), "dup", s=slot, to=to, how=how)
        process.slots[to] = end


def flags(world):
    if found := world.any_end():
        process, slot, _ = found
        how = world.pick(("nonblock", 3), ("fionbio", 2), ("getfl", 2), ("getfd", 1), ("cloexec", 1), ("fioclex", 1), ("async", 1.5))
        world.add(world.actor_of(process), "flags", s=slot, how=how, on=world.pick(0, 1))


def options(world):
    if not (found := world.any_end()):
        return
    process, slot, end = found
    actor = world.actor_of(process)
    name = world.pick(
        ("keepalive", 1), ("oobinline", 1), ("error", 3), ("type", 1), ("domain", 1), ("protocol", 1), ("acceptconn", 1), ("reuseaddr", 1),
        ("nodelay", 1), ("keepidle", 1), ("priority", 1), ("broadcast", 1), ("nonesuch", 1), ("rcvlowat", 3), ("usertimeout", 1))
    if name not in ("error", "type", "domain", "protocol", "acceptconn") and world.chance(0.7):
        length = world.pick((None, 9), (1, 1), (0, 0.5))
        to = world.pick((1, 3), (0, 2), (100, 1), (3000, 1)) if name == "rcvlowat" else world.pick((1, 3), (0, 1), (30, 1))
        world.add(actor, "set", s=slot, opt=name, to=to if name != "usertimeout" else 5000, len=length)
    world.add(actor, "get", s=slot, opt=name, **{"in": end.into})


def asks(world):
    if found := world.any_end():
        process, slot, _ = found
        actor, what = world.actor_of(process), world.pick(("ioctl", 4), ("name", 1), ("state", 1.5))
        if what == "ioctl":
            world.add(actor, "ioctl", s=slot, how=world.pick(("fionread", 5), ("atmark", 1), ("siocatmark", 1), ("outq", 1), ("bad", 1), ("tty", 1)))
        elif what == "name":
            world.add(actor, "name", s=slot, peer=world.pick(0, 1), len=world.pick((None, 3), (4, 1), (0, 1)))
        else:
            world.add(actor, "state", s=slot)


BAD = ("send", "recv", "writev", "readv", "sendmsg", "recvmsg", "syscall", "zero", "zeroread", "lseek", "pread", "fsync", "ftruncate", "listen", "accept")


def bad(world):
    if found := world.any_end():
        process, slot, _ = found
        how = world.pick(*BAD)
        world.add(world.actor_of(process), "bad", s=slot, how=how)


def timeout(world):
    if found := world.any_end():
        process, slot, end = found
        world.add(world.actor_of(process), "timeout", s=slot, **{"in": end.into}, n=world.pick(1, 100), ms=30, flags=world.pick((None, 2), ("waitall", 1)))


def urgent(world):
    if not (found := world.any_end()) or found[2].connection.due[found[2].side] > 5000:
        return
    process, slot, end = found
    peer = world.any_end(end.connection, 1 - end.side)
    end.connection.urgent = True
    if peer and world.chance(0.3):
        world.add(world.actor_of(peer[0]), "set", s=peer[1], opt="oobinline", to=1)
    if peer and world.chance(0.5):
        world.add(world.actor_of(peer[0]), "own", s=peer[1])
    world.add(world.actor_of(process), "send", s=slot, out=end.out, n=world.pick(1, 1, 5, 100), flags="oob,nosignal")
    if not peer:
        return
    actor = world.actor_of(peer[0])
    for _ in range(world.pick(1, 2, 4)):
        what = world.pick("poll", "oob", "oobpeek", "atmark", "recv", "signals")
        if what == "poll":
            world.add(actor, "poll", on=f"{peer[1]}:in+pri+rdhup", ms=0, how=world.pick("poll", "select"))
        elif what.startswith("oob"):
            world.add(actor, "recv", s=peer[1], **{"in": end.out}, n=1, flags="oob,dontwait" + (",peek" if "peek" in what else ""))
        elif what == "atmark":
            world.add(actor, "ioctl", s=peer[1], how="atmark")
        elif what == "recv":
            world.add(actor, "recv", s=peer[1], **{"in": end.out}, n=world.pick(1, 50, 2000), flags="dontwait")
        else:
            world.add(actor, "signals")
