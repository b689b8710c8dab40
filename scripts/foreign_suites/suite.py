"""What a suite says of itself: where it comes from, what is run, and how its output is read."""
import collections.abc
import dataclasses
import pathlib

PASSED, FAILED, SKIPPED, HUNG, DIED = "passed", "failed", "skipped", "hung", "died"


@dataclasses.dataclass(frozen=True)
class Unit:
    """A program of a suite that is run as one. `command` is given the run's folder, the ids that an earlier try of the same
    run has done or hung in, which it leaves out, and the ids it is to run alone, if any; `parse` makes {id: outcome} of the
    output, and `None` for a test that began and has no outcome."""

    name: str
    command: collections.abc.Callable
    parse: collections.abc.Callable
    cwd: pathlib.Path | None = None
    env: dict = dataclasses.field(default_factory=dict)
    # Seconds without any output after which a test hangs, and for the whole unit.
    stall: int = 60
    limit: int = 900
    # Whether `command` can leave ids out and run some alone.
    selects: bool = False


class Suite:
    """Each file in suites/ has one, named SUITE."""

    name: str
    title: str
    # Programs that fork with connections open also run with swap = "suspend".
    forks = False

    def prepare(self, place):
        """Fetches and builds what is not there yet, in the folder `place`."""
        raise NotImplementedError

    def version(self, place):
        raise NotImplementedError

    def units(self, place, short):
        """Its units; `short` asks for the ones that CI runs."""
        raise NotImplementedError
