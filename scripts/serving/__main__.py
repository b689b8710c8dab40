"""Runs each service of `services/` in each mode and compares what its clients were told."""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).parent
sys.path.append(str(HERE.parent / "servers"))

from processes import HANG, Endpoint, Failure, Stage, free_port

import services
import shim_log

NATIVE, SHIM, AT_ONCE = "native", "shim", "at once"
MODES = {NATIVE: {}, SHIM: {}, AT_ONCE: {"SANSHIM_MOVE_AFTER": "0"}}


class Place:
    """Where one service runs once, and its processes."""

    def __init__(self, stage, mode, log):
        self.stage, self.mode, self.folder = stage, mode, stage.folder
        self.environment = {"HOME": str(stage.folder), "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}
        self.library = MODES[mode] | {"SANSHIM_LOG": "info", "SANSHIM_LOG_FILE": str(log)} if mode != NATIVE else {}
        self.pause = stage.pause

    def port(self):
        return free_port()

    def write(self, name, text):
        (self.folder / name).write_text(text)

    def prepare(self, *command):
        """What has to be done before, without the library."""
        self.stage.finish(self.begin_with("tcp", command, None))

    def begin_with(self, transport, command, stdin):
        source = subprocess.DEVNULL
        if stdin is not None:
            source = tempfile.TemporaryFile(dir=self.folder)
            source.write(stdin.encode())
            source.seek(0)
        environment = self.environment | (self.library if transport == "san" else {})
        return self.stage.start(transport, [str(word) for word in command], stdin=source, **environment)

    def begin(self, *command, stdin=None):
        return self.begin_with("tcp" if self.mode == NATIVE else "san", command, stdin)

    def serve(self, port, *command):
        process = self.begin(*command)
        self.stage.wait_listening(process, Endpoint(port))

    def ask(self, *command, stdin=None):
        return self.end_of(self.begin(*command, stdin=stdin))

    def end_of(self, process):
        return self.stage.finish(process)

    def until(self, text, *command):
        """Asks again and again until the answer has that."""
        deadline = time.monotonic() + HANG
        while text not in (told := self.ask(*command)):
            if time.monotonic() > deadline:
                raise Failure(f"{command} never told {text}:\n{told}")
            self.pause(0.1)


def run(name, mode, sanctl, keep):
    """What the clients were told, or why there is nothing; how long it took, and what moved."""
    with Stage(sanctl, f"sanshim-serve-{name}-") as stage:
        log = stage.folder / "sanshim.log"
        began = time.monotonic()
        try:
            told = services.ALL[name](Place(stage, mode, log))
        except Failure as failure:
            told = failure
        seconds = time.monotonic() - began
        if isinstance(told, Failure) and keep:
            stage.end_all()
            subprocess.run(["cp", "-rT", stage.folder, keep / f"{name}-{mode}".replace(" ", "-")], check=False)
        return told, seconds, shim_log.moved(log, "acceptor")


def difference(expected, told):
    """The first place where they differ."""
    lines = zip(expected.splitlines() + [""], told.splitlines() + [""])
    first = next(((one, other) for one, other in lines if one != other), ("", ""))
    return " for ".join(repr(line[:300]) for line in first[::-1])


def lacks(name):
    """Packages of the service that are not installed."""
    have = subprocess.run(["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *services.ALL[name].packages],
                          capture_output=True, text=True, check=False).stdout
    return [package for package in services.ALL[name].packages if f"{package} installed" not in have.splitlines()]


def main():
    parser = argparse.ArgumentParser(prog="scripts/serve")
    parser.add_argument("services", nargs="*", default=[])
    parser.add_argument("--mode", action="append", choices=[SHIM, AT_ONCE])
    parser.add_argument("--keep", type=pathlib.Path)
    parser.add_argument("--packages", action="store_true")
    # The script has seen to it.
    parser.add_argument("--library")
    arguments = parser.parse_args()
    if arguments.packages:
        print(*sorted({package for each in services.ALL.values() for package in each.packages}))
        return False
    if unknown := set(arguments.services) - services.ALL.keys():
        parser.error(f"unknown services: {', '.join(sorted(unknown))}; there are {', '.join(services.ALL)}")
    wrong, some_missing = 0, False
    for name in arguments.services or services.ALL:
        if missing := lacks(name):
            print(f"{name}: left out, {', '.join(missing)} missing", flush=True)
            some_missing = True
            continue
        expected, seconds, _ = run(name, NATIVE, os.environ["SANCTL"], arguments.keep)
        if isinstance(expected, Failure):
            print(f"{name}: fails natively: {expected}", flush=True)
            wrong += 1
            continue
        line = f"{name}: native {seconds:.1f} s"
        for mode in arguments.mode or (SHIM, AT_ONCE):
            told, seconds, (all_, on_san) = run(name, mode, os.environ["SANCTL"], arguments.keep)
            line += f", {mode} {seconds:.1f} s, {on_san} of {all_} connections on the SAN"
            if isinstance(told, Failure):
                line += f"; FAILED: {told}"
            elif told != expected:
                line += f"; DIFFERS: {difference(str(expected), str(told))}"
            wrong += told != expected
        print(line, flush=True)
    if some_missing:
        print("to run all of them: apt-get install --no-install-recommends $(python3 scripts/serving --packages)")
    return wrong > 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failure as failure:
        sys.exit(str(failure))
