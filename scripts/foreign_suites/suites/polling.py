"""polling's and async-io's tests. mio's, which wait for sockets in the same way, are in none of its published crates."""
import libtest
import sources
from suite import Suite

CRATES = {"polling": "3.11.0", "async-io": "2.6.0"}


class Polling(Suite):
    name = "polling"
    title = "polling, async-io"

    def names(self, source):
        return sorted(path.stem for path in (source / "tests").glob("*.rs") if not path.stem.startswith("windows"))

    def sources(self, place):
        for name, version in CRATES.items():
            (place / name).mkdir(exist_ok=True)
            yield place / name, sources.crate(place / name, name, version)

    def prepare(self, place):
        for folder, source in self.sources(place):
            libtest.build(folder, source, self.names(source))

    def version(self, place):
        return ", ".join(CRATES.values())

    def units(self, place, short):
        return [
            libtest.unit(f"{folder.name}: {name}", program, source, limit=300)
            for folder, source in self.sources(place)
            for name, program in sorted(libtest.programs(folder, source, self.names(source)).items())
        ]


SUITE = Polling()
