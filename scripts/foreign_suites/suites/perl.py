"""Perl's own tests of sockets, files and processes, with the perl that is installed, which is of the same version."""
import shutil

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
        # Beside the rest of the source its tests would take the modules there, which are not built.
        if not (place / "core").exists():
            shutil.copytree(source / "t", place / "unpacking" / "t")
            (place / "unpacking").rename(place / "core")

    def version(self, place):
        return sources.debian_version(place)

    def units(self, place, short):
        found = [tap.unit(name, ["perl", f"{name}.t"], cwd=place / "core" / "t", limit=240) for name in CORE]
        for folder in FOLDERS:
            where = place / "source" / folder
            found += [
                tap.unit(f"{folder}/{test.stem}", ["perl", "-I.", f"t/{test.name}"], cwd=where, limit=240)
                for test in sorted((where / "t").glob("*.t"))
            ]
        return found


SUITE = Perl()
