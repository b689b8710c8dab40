"""Runs a program once: gives each actor one step at a time, and says what became of each step.

The order is fixed: the next step begins when all steps under way have ended or sleep. A call that sleeps is `blocked`.
If a later step wakes the call, the answer says after which step. So a run gives the same answers again, except where
TCP leaves them open."""
import ctypes
import os
import re
import select
import signal
import time

import modes
from memory import ACTORS, Memory
from steps import LETTERS

TICK = 0.001
# A thread that sleeps for so many ticks in a row counts as blocked.
CALM, CALM_SLOWLY = 8, 30
# A thread must sleep so many times as long where TCP itself may pause: TCP waits for more, or for a late
# acknowledgement.
STREAMS, PATIENCE = ("wstream", "rstream", "exchange", "close"), 7
# After so long, or after so much processor time, an actor that neither sleeps nor answers, or does not begin, never
# will.
HANG, BUSY_NANOSECONDS = 10.0, 400_000_000
# Steps that make descriptors.
NUMBERING = ("listen", "connect", "accept", "dup", "epoll_create", "take")
# A slow run pauses so long between its steps.
PAUSE = 0.01
LIBC = ctypes.CDLL(None, use_errno=True)
SUBREAPER, TGKILL = 36, 234


def become_reaper():
    """Has actors whose parents end come to this process, which ends them all."""
    LIBC.prctl(SUBREAPER, 1, 0, 0, 0)


def activity(pid, tid):
    """Gives a value that changes as long as a thread runs, or None when the thread has ended. Also tells whether the
    thread sleeps."""
    try:
        with open(f"/proc/{pid}/task/{tid}/stat", "rb") as file:
            state = file.read().rpartition(b") ")[2][:1]
        with open(f"/proc/{pid}/task/{tid}/schedstat", "rb") as file:
            ran = [int(word) for word in file.read().split()]
    except (OSError, ValueError):
        return None, False
    return (None, False) if state in b"ZX" else (ran, state in b"SDT")


class Run:
    def __init__(self, program, mode, tested, slowly=False):
        self.program, self.mode, self.tested = program, mode, tested
        self.calm = CALM_SLOWLY if slowly else CALM
        self.slowly = slowly
        self.log = [""] * len(program.steps)
        self.alive, self.under_way = set(), {}
        self.numbers_vary = False
        self.now = -1

    def go(self):
        """Gives the answers, one for each step."""
        self.memory = Memory()
        try:
            self.poll = select.poll()
            self.by_file = {}
            for actor, channel in enumerate(self.memory.channels):
                self.poll.register(channel, select.POLLIN)
                self.by_file[channel.fileno()] = actor
            for actor in range(self.program.ends):
                self.start(actor)
            for actor in range(self.program.ends):
                self.expect(actor)
            for index, step in enumerate(self.program.steps):
                self.now = index
                self.begin(index, step)
                if not step.at_once:
                    self.settle()
            self.settle()
            for actor, index in self.under_way.items():
                self.log[index] += "; never" if self.log[index] else "never"
            return self.log
        finally:
            self.end()

    def start(self, actor):
        environment = {"PATH": "/usr/bin:/bin", **self.tested.environment(self.mode)}
        output = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDWR, 0),
            (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_RDWR, 0),
            (os.POSIX_SPAWN_OPEN, 2, str(self.tested.folder / "stderr"), output, 0o600),
        ]
        program = str(self.tested.actor)
        os.posix_spawn(program, [program, str(actor), "first"], environment, file_actions=actions, setpgroup=0)

    def expect(self, actor):
        until = time.monotonic() + HANG
        while actor not in self.alive and time.monotonic() < until:
            self.answers(TICK)
            if self.memory.tid(actor) and activity(self.memory.pid(actor), self.memory.tid(actor))[0] is None:
                return

    def begin(self, index, step):
        if step.actor == "*":
            self.log[index] = self.own(step)
            return
        actor = LETTERS.index(step.actor)
        # Two steps at once in one process may take descriptors in either order.
        takes_number = step.name in NUMBERING or step.get("wait") == "epoll"
        self.numbers_vary |= takes_number and any(self.program.steps[other].at_once for other in self.under_way.values())
        if actor not in self.alive:
            self.log[index] = "no actor"
        elif actor in self.under_way:
            self.log[index] = "busy"
        elif self.in_use(step):
            self.log[index] = "in use"
        else:
            try:
                self.memory.channels[actor].send(step.line().encode())
                self.under_way[actor] = index
            except OSError:
                self.log[index] = "no actor"

    def in_use(self, step):
        """Tells whether another call uses the same direction of the connection. TCP leaves open whose bytes come
        first."""
        used = [self.program.steps[index] for index in self.under_way.values()]
        return any(step.get(way) is not None and step.get(way) == other.get(way) for way in ("in", "out") for other in used)

    def own(self, step):
        actor = LETTERS.index(step.get("of", "A"))
        pid, tid = self.memory.pid(actor), self.memory.tid(actor)
        if step.name == "sleep":
            time.sleep(int(step.get("ms")) / 1000)
            return ""
        if actor not in self.alive or activity(pid, tid)[0] is None:
            return "no actor"
        if step.name == "free" and actor not in self.under_way:
            return ""
        number = getattr(signal, f"SIG{step.get('sig', 'USR1')}")
        if step.name == "kill":
            if number == signal.SIGKILL:
                self.forget_positions(pid)
            os.kill(pid, number)
        elif step.name in ("signal", "free"):
            LIBC.syscall(TGKILL, pid, tid, int(number))
        elif step.name == "detach" and self.mode == "detach" and self.tested.sanctl.exists():
            self.tested.detach(pid)
        return ""

    def forget_positions(self, pid):
        for actor, index in self.under_way.items():
            if self.memory.pid(actor) == pid:
                for way in ("in", "out"):
                    stream = self.program.steps[index].get(way)
                    if stream is not None:
                        self.memory.leave_unchecked(int(stream))

    def answers(self, timeout):
        """Takes the answers that are there. Waits `timeout` seconds for the first."""
        for file, _ in self.poll.poll(timeout * 1000):
            actor = self.by_file[file]
            try:
                answer = self.memory.channels[actor].recv(4096).decode(errors="replace").strip()
            except BlockingIOError:
                # An earlier answer made an actor. The wait for that actor took this answer.
                continue
            if answer == "here":
                self.alive.add(actor)
            index = self.under_way.pop(actor, None)
            if index is not None:
                self.answered(index, answer)
                new = self.program.steps[index].get("new")
                if new is not None and answer.startswith("0") and self.program.steps[index].name in ("fork", "thread", "spawn"):
                    self.expect(int(new))

    def answered(self, index, answer):
        if self.numbers_vary and self.program.steps[index].name in NUMBERING:
            answer = re.sub(r"\b\d+\b", "N", answer)
        self.log[index] += f"; after {self.now}: {answer}" if self.log[index] else answer

    def settle(self):
        """Waits until all steps under way have ended or sleep."""
        calm, seen, first = {}, {}, {}
        until = time.monotonic() + HANG
        if self.slowly:
            time.sleep(PAUSE)
        while self.under_way:
            self.answers(TICK)
            for actor, its in list(self.under_way.items()):
                ran, sleeps = activity(self.memory.pid(actor), self.memory.tid(actor))
                if ran is None:
                    self.answers(0)
                    index = self.under_way.pop(actor, None)
                    if index is not None:
                        self.answered(index, "gone")
                        self.alive.discard(actor)
                    continue
                if actor not in self.under_way:
                    # The actor answered while the loop looked at another actor's end.
                    continue
                began = first.setdefault(actor, ran[0])
                # An actor that naps never stays as it is.
                as_before = ran == seen.get(actor) or self.log[its].startswith("naps")
                still = sleeps and as_before and not self.memory.naps(actor)
                calm[actor] = calm.get(actor, 0) + 1 if still else 0
                seen[actor] = ran
                is_busy = ran[0] - began > BUSY_NANOSECONDS
                if is_busy or time.monotonic() > until:
                    self.runs_on(actor, calm, "runs on" if is_busy else "naps")
            if all(calm.get(actor, 0) >= self.enough(index) for actor, index in self.under_way.items()):
                break
        for index in self.under_way.values():
            self.log[index] = self.log[index] or "blocked"

    def enough(self, index):
        return self.calm * (PATIENCE if self.program.steps[index].name in STREAMS else 1)

    def runs_on(self, actor, calm, how):
        """Stops waiting for an actor that should sleep or answer and does neither."""
        index = self.under_way[actor]
        if calm[actor] < self.enough(index) and how not in self.log[index]:
            # An actor that slept before and was woken in vain runs on as well.
            self.log[index] = how
        calm[actor] = self.enough(index)

    def end(self):
        for actor in range(ACTORS):
            pid = self.memory.pid(actor)
            if pid:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        self.memory.close()
        until = time.monotonic() + HANG
        while time.monotonic() < until:
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    time.sleep(0.0005)
            except ChildProcessError:
                break


class Tested:
    """The files that a worker runs with: the actor's program, the library, and a folder for what a run leaves."""

    def __init__(self, actor, library, sanctl, folder, log=None):
        self.actor, self.library, self.sanctl, self.folder, self.log = actor, library, sanctl, folder, log
        folder.mkdir(parents=True, exist_ok=True)

    def environment(self, mode):
        return modes.environment(mode, self.library, self.folder, self.log)

    def detach(self, pid):
        null = [(os.POSIX_SPAWN_OPEN, file, "/dev/null", os.O_RDWR, 0) for file in range(3)]
        command = [str(self.sanctl), "detach", "--wait", "0", str(pid), "all"]
        os.waitpid(os.posix_spawn(command[0], command, {}, file_actions=null), 0)
