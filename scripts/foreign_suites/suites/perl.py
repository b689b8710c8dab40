"""Perl's own tests of sockets, files and processes, with the perl that is installed, which is of the same version."""
import pathlib
import shutil
import subprocess

import sources
import tap
from suite import Suite

FOLDERS = ("cpan/Socket", "cpan/IO-Socket-IP", "dist/IO", "cpan/libnet", "cpan/HTTP-Tiny", "ext/IPC-Open3", "cpan/IPC-SysV")
CORE = ("io/dup", "io/fs", "io/open", "io/pipe", "io/print", "io/read", "io/say", "io/sem", "io/socket", "io/socketpair", "io/tell",
        "io/through", "op/die_exit", "op/exec", "op/fork", "op/kill0", "op/alarm", "op/select", "op/sselect", "op/sysio")  # fmt: skip


class Perl(Suite):
    name = "perl"
    title = "Perl"
    forks = True

    def prepare(self, place):
        sources.install(place, "perl")
        source = sources.debian(place, "perl")
        # Its tests take the modules of ../lib, which in the source are not built.
        core, half = place / "core", place / "unpacking"
        if not core.exists():
            shutil.rmtree(half, ignore_errors=True)
            shutil.copytree(source / "t", half / "t")
            (half / "ext").mkdir()
            found = subprocess.run(["perl", "-e", "print join qq(\n), @INC"], capture_output=True, text=True, check=True)
            # What comes first wins.
            for folder in reversed(found.stdout.splitlines()):
                if pathlib.Path(folder).is_dir() and not folder.startswith(("/etc", "/usr/local")):
                    shutil.copytree(folder, half / "lib", dirs_exist_ok=True)
            half.rename(core)

    def version(self, place):
        return sources.debian_version(place)

    def units(self, place, short):
        found = [tap.unit(name, ["perl", f"{name}.t"], cwd=place / "core" / "t", limit=240) for name in CORE]
        for folder in FOLDERS:
            where = place / "source" / folder
            found += [
                tap.unit(f"{folder}/{test.stem}", ["perl", "-I.", "-Iblib", f"t/{test.name}"], cwd=where, limit=240)
                for test in sorted((where / "t").glob("*.t"))
            ]
        return found


SUITE = Perl()
