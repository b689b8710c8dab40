"""Acts on processes: threads, forks, new programs, descriptors passed on, ends, signals and pauses."""
import copy

from acts import drain, send
from setup import connect, thread_for, warm_up
from world import Connection, End, Process


def thread(world):
    if world.may_grow():
        thread_for(world, world.pick(*world.living()), None if world.chance(0.3) else "-")


def cancel(world):
    """Cancels a thread amid a call that waits, or anywhere."""
    threads = [(process, actor) for process in world.living() for actor in process.actors[1:]]
    if not threads:
        thread(world)
        return
    process, actor = world.random.choice(threads)
    if ends := process.having(End):
        slot = world.random.choice(ends)
        into = process.slots[slot].into
        call = world.pick("recv", "poll", "nothing")
        if call == "recv":
            world.add(actor, "recv", s=slot, **{"in": into}, n=60000, flags="waitall")
        elif call == "poll":
            world.add(actor, "poll", on=f"{slot}:pri", ms=-1)
    world.add(process.actors[0], *world.pick((("cancel",), 3), (("nap",), 1)), new=ord(actor) - ord("A"))
    process.actors.remove(actor)


def fork(world):
    if not world.may_grow() or len(world.living()) > 5:
        return
    process = world.pick(*world.living())
    new = world.new_actor()
    world.add(world.actor_of(process), "fork", new=ord(new) - ord("A"))
    child = Process([new], dict(process.slots))
    world.processes.append(child)
    if world.chance(0.4):
        # As with servers, one of the two processes has the connection from then on.
        for slot in child.having(End):
            leaver = world.pick(process, child)
            world.add(world.actor_of(leaver), "close", s=slot)
            leaver.slots.pop(slot, None)


def execute(world):
    process = world.pick(*world.living())
    actor = process.actors[0]
    how = world.pick(("execv", 4), ("execvp", 1), ("fexecve", 1), ("fail", 1))
    world.add(actor, "exec", how=how, bare=1 if world.chance(0.2) else None)
    if how != "fail":
        process.actors = [actor]


def spawn(world):
    if not world.may_grow() or len(world.living()) > 5:
        return
    process, new = world.pick(*world.living()), world.new_actor()
    world.add(world.actor_of(process), "spawn", new=ord(new) - ord("A"), bare=1 if world.chance(0.2) else None)
    world.processes.append(Process([new], dict(process.slots)))


def system(world):
    world.add(world.actor_of(world.pick(*world.living())), "system", how=world.pick((None, 2), ("popen", 1), ("vfork", 1)))


def passing(world):
    found = world.any_end()
    if not found or not world.may_grow():
        return
    process, slot, end = found
    to, way, new = world.pick(*world.living()), world.pick(0, 1, 2, 3), world.new_slot()
    world.add(world.actor_of(process), "pass", s=slot, way=way)
    if world.chance(0.5):
        world.add(world.actor_of(process), "close", s=slot)
        del process.slots[slot]
    world.add(world.actor_of(to), "take", s=new, way=way)
    to.slots[new] = end


def kill(world, process=None):
    process = process or world.pick(*world.living())
    if len(world.living()) < 2:
        return
    how = world.pick(("kill", 2), ("exit", 2), ("_exit", 1), ("abort", 0.3), ("killed", 2))
    if how == "killed":
        world.add("*", "kill", of=process.actors[0], sig="KILL")
    else:
        world.add(world.actor_of(process), "exit", how=how)
    process.alive = False


def stop(world):
    """Stops a process while the others go on."""
    if len(world.living()) < 2:
        return
    process = world.pick(*world.living())
    world.add("*", "kill", of=process.actors[0], sig="STOP")
    others = [one for one in world.living() if one is not process]
    for _ in range(2):
        other = world.random.choice(others)
        if ends := other.having(End):
            slot = world.random.choice(ends)
            send(world, (other, slot, other.slots[slot]))
    world.add("*", "kill", of=process.actors[0], sig="CONT")


def signal(world):
    process = world.pick(*world.living())
    actor = world.actor_of(process)
    world.add("*", "signal", of=actor, sig=world.pick("USR1", "USR2"))
    if world.chance(0.3):
        world.add(actor, "signals")


def detach(world):
    world.add("*", "detach", of=world.pick(*world.living()).actors[0])


def pause(world):
    world.add("*", "sleep", ms=world.pick((3, 5), (25, 2), (2300, 0.15)))


def listening(world):
    """Adds listeners and connects that are not met, or not yet."""
    if not world.may_connect() or world.ports >= 12:
        return
    process, other = world.pick(*world.living()), world.pick(*world.living())
    listener, client, server, port = world.new_slot(), world.new_slot(), world.new_slot(), world.ports
    a, b = world.actor_of(process), world.actor_of(other)
    world.ports += 1
    connection = Connection(len(world.connections), 4)
    world.add(a, "listen", s=listener, port=port, flags=world.pick((None, 2), ("nonblock", 2)))
    what = world.pick("refused", "waits", "polled", "asked", "aborted")
    if what == "refused":
        world.add(a, "close", s=listener)
        world.add(b, "connect", s=client, port=port, flags=world.pick(None, "nonblock"))
        world.add(b, "poll", on=f"{client}:in+out+rdhup", ms=0)
        world.add(b, "get", s=client, opt="error")
        world.add(b, "send", s=client, out=2 * connection.number, n=1, flags="nosignal")
        world.connections.append(connection)
        return
    if what == "waits":
        world.add(a, "accept", l=listener, s=server)
    elif what == "polled":
        world.add(a, "poll", on=f"{listener}:in+out", ms=world.pick(0, -1), how=world.pick("poll", "select"))
    elif what == "asked":
        for opt in ("acceptconn", "error"):
            world.add(a, "get", s=listener, opt=opt)
        world.add(a, "recv", s=listener, **{"in": 2 * connection.number}, n=1, flags="dontwait")
    world.connections.append(connection)
    world.add(b, "connect", s=client, port=port)
    if what == "aborted":
        world.add(b, "linger", s=client, on=1, seconds=0)
        world.add(b, "close", s=client)
    else:
        other.slots[client] = End(connection, 0)
        process.slots[server] = End(connection, 1)
    world.add(a, "poll", on=f"{listener}:in+out", ms=0)
    if what != "waits":
        world.add(a, "accept", l=listener, s=server)
    if what == "aborted":
        world.add(a, "recv", s=server, **{"in": 2 * connection.number}, n=1, flags="dontwait")
    elif world.chance(0.5):
        warm_up(world, connection)


def another(world):
    if world.may_connect():
        warm_up(world, connect(world))


def more_exchanges(world):
    if world.connections:
        connection = world.random.choice(world.connections)
        for _ in range(2):
            drain(world)
        warm_up(world, connection)
