"""The course of a soak: servers start, load warms them up, a quiet time is measured, then come load and events, and a quiet time again."""

import os
import pathlib
import shutil
import time

import san
from checks import Checks
from events import Events, plan
from load import Load
from measures import Measures
from servers import KINDS, PROGRAMS, Nginx, content

SAMPLE_EVERY = 5
CHECK_EVERY = 40
# How long a quiet time is measured, after so long that what programs do by themselves after the load is over.
SETTLE, QUIET = 8, 10


class Soak:
    def __init__(self, stage, transport, kinds, seed, library, builds, say):
        self.stage, self.transport, self.seed, self.say = stage, transport, seed, say
        self.library, self.builds = library, builds
        self.began = time.monotonic()
        self.marks = []
        self.logs = stage.folder / "logs"
        self.logs.mkdir(mode=0o777)
        self.logs.chmod(0o777)
        self.rotated = 0
        stage.folder.chmod(0o711)
        files = content(stage)
        if "java" in kinds:
            sources = [PROGRAMS / f"{name}.java" for name in ("NioEchoServer", "EchoClient", "Pattern")]
            stage.quietly(["javac", "-d", stage.folder / "java", *sources])
        self.servers = self.make_servers(kinds)
        self.load = Load(stage, self.servers, transport, seed, files)
        self.checks, self.events = Checks(self.load), Events(self)
        self.measures = Measures(self.began)
        self.next_sample = self.next_check = 0.0

    @property
    def now(self):
        return time.monotonic() - self.began

    def make_servers(self, kinds):
        """Of each kind one that lives as long as the soak, and one that is ended again and again."""
        made = {}
        # nginx last: it passes to the Python server.
        for kind in sorted(kinds, key=lambda kind: kind == "nginx"):
            for lives in (True, False):
                where = (self.stage, self.transport, lives, self.log)
                if kind == "nginx":
                    made[kind, lives] = Nginx(*where, behind=made.get(("python", lives)))
                else:
                    made[kind, lives] = KINDS[kind](*where)
        return list(made.values())

    def log(self, name):
        """A log file that every user may write to."""
        file = self.logs / f"{name}.log"
        file.touch()
        file.chmod(0o666)
        return file

    def rotate_logs(self, copies):
        self.rotated += 1
        for file in list(self.logs.glob("*.log")):
            old = file.with_name(f"{file.name}.{self.rotated}")
            if copies:
                shutil.copy(file, old)
                os.truncate(file, 0)
            else:
                file.rename(old)
                self.log(file.stem)

    def start(self):
        self.log("clients")
        for server in self.servers:
            server.start()
            self.say(f"{server.name} listens on port {server.port}")

    def sample(self, phase):
        now, ever = san.counts(self.stage.sanctl) if self.transport == "san" else ({}, {})
        self.measures.take(phase, self.servers, now, ever)

    def pause(self, seconds):
        """Waits, while what is due at times of its own is done."""
        end = self.now + seconds
        while self.now < end:
            self.stage.pause(min(0.1, max(end - self.now, 0)))

    def load_for(self, phase, seconds, events):
        """Load for so long, with the events and samples that come in it."""
        first, events = self.now, list(events)
        while (at := self.now - first) < seconds:
            while events and events[0].at <= at:
                event = events.pop(0)
                self.say(f"{self.now:.0f} s: {event.what}")
                if (to := self.events.do(event)) is not None:
                    self.marks.append((self.now, f"{event.what} {to}"))
            self.load.step(self.load.level(at))
            if self.now >= self.next_sample:
                self.next_sample = self.now + SAMPLE_EVERY
                self.sample(phase)
            if self.now >= self.next_check:
                self.next_check = self.now + CHECK_EVERY
                self.checks.all()
            self.stage.pause(0.1)

    def quiet(self, phase):
        """No client: what servers have when all is over. Those that are ended again and again are measured as they are after their start: how much
        memory Node has then depends on how long ago that was, and what is to be seen is whether an end leaves something behind."""
        self.load.finish()
        self.checks.all()
        for server in self.servers:
            if not server.lives:
                server.restart()
        for server in self.servers:
            server.settle()
        self.pause(SETTLE)
        for server in self.servers:
            server.check()
        # The first only begins the count of processor time.
        self.sample("settled")
        end = self.now + QUIET
        while self.now < end:
            self.pause(QUIET / 4)
            self.sample(phase)

    def run(self, warm_up, seconds):
        self.start()
        self.say(f"warming up for {warm_up:.0f} s")
        self.load_for("warm-up", warm_up, plan(f"{self.seed} warm-up", warm_up))
        self.quiet("start")
        self.say(f"load and events for {seconds:.0f} s")
        self.load_for("load", seconds, plan(self.seed, seconds))
        self.quiet("end")

    def without_san(self):
        """Says which servers showed nothing, since they had TCP alone."""
        if self.transport != "san":
            return []
        names = [server.name for server in self.servers if not self.measures.most(server.name, "moved")]
        return [f"{name} never had a connection on the SAN" for name in names]

    def keep(self, folder):
        """What was started here says, and the library's logs."""
        for process in self.stage.running:
            name = pathlib.Path(process.args[3] if process.args[1:3] == ["run", "--"] else process.args[0]).name
            (folder / f"{name}-{process.pid}.output").write_text(f"{process.line}\n{self.stage.output(process)}")
        for file in [*self.logs.iterdir(), *self.stage.folder.glob("*.log")]:
            shutil.copy(file, folder / file.name)
