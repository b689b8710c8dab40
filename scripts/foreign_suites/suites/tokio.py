"""tokio's tests of sockets, descriptors, processes, signals and its runtime: those of the published crate that need no second tokio."""
import fnmatch

import libtest
import sources
from suite import Suite

VERSION = "1.54.1"
PATTERNS = """
async_send_sync io_async_fd io_driver* io_split net_* process_* rt_basic rt_common rt_handle_block_on
rt_threaded sendfile signal_* tcp_* udp uds_*
""".split()
FEATURES = ("--features", "full,test-util")
LEFT_OUT = ("*emscripten*", "*named_pipe*", "process_raw_handle", "signal_info")


class Tokio(Suite):
    name = "tokio"
    title = "tokio"

    def names(self, place):
        every = sorted(path.stem for path in (place / "source" / "tests").glob("*.rs"))
        wanted = [name for name in every if any(fnmatch.fnmatch(name, one) for one in PATTERNS)]
        return [name for name in wanted if not any(fnmatch.fnmatch(name, one) for one in LEFT_OUT)]

    def prepare(self, place):
        source = sources.crate(place, "tokio", VERSION)
        libtest.build(place, source, self.names(place), *FEATURES)

    def version(self, place):
        return VERSION

    def units(self, place, short):
        programs = libtest.programs(place, place / "source", self.names(place), *FEATURES)
        return [libtest.unit(name, program, place / "source", limit=300) for name, program in sorted(programs.items())]


SUITE = Tokio()
