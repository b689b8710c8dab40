"""Projects that cmake builds, each of whose tests is a program."""
import json
import subprocess

import sources
from suite import Unit


def build(place, source, *options):
    sources.install(place, "gcc", "g++", "make", "cmake", "libc6-dev")
    sources.build(
        place,
        source,
        ["cmake", "-S", source, "-B", place / "build", "-DCMAKE_BUILD_TYPE=RelWithDebInfo", *options],
        ["make", "-C", place / "build", sources.jobs()],
    )


def programs(place):
    """ctest's tests: name and command."""
    answer = subprocess.run(
        ["ctest", "--show-only=json-v1"], cwd=place / "build", capture_output=True, text=True, check=True
    )
    return [(test["name"], test["command"]) for test in json.loads(answer.stdout)["tests"] if "command" in test]


def units(place, parse):
    """One for each of them; `parse` is given the program's name and its output."""
    return [
        Unit(
            name=name,
            command=lambda *_, command=command: command,
            parse=lambda text, name=name: parse(name, text),
            cwd=place / "build",
            limit=240,
        )
        for name, command in programs(place)
    ]
