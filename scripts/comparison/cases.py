"""The parts of a comparison: cases of programs, each measured on a fresh server."""

import dataclasses

TRANSPORTS = {"tcp": "TCP", "san": "SAN", "unix": "AF_UNIX", "sockmap": "sockmap"}
# A second run on TCP, on the other side of the SAN's run. The difference of the two is what the machine does by itself.
AGAIN = "again"
BULK = ("Gbit/s", "MB/s")
SHORT = "a connection per request is too short"


@dataclasses.dataclass(frozen=True)
class Figure:
    """One measurement: a rate in the case's unit, latencies where the client measures them, and the CPU seconds
    of both ends for a million requests, or for a GiB where the unit is bytes."""

    rate: float
    p50_us: float | None = None
    p99_us: float | None = None
    cpu: float | None = None
    # How many µs so many percent of the requests took at most, where the client says so.
    percentiles: dict = dataclasses.field(default_factory=dict)
    # What sanctl said of the connections during the run, where no more is asked of them.
    carried: str = ""


@dataclasses.dataclass(frozen=True)
class Case:
    """One line of the table. `measure(stage, transport, seconds)` gives a Figure."""

    program: str
    label: str
    unit: str
    command: str
    measure: object
    # The reason why the case's connections need not be on the SAN, if they need not. The case is to cost no more than
    # TCP then.
    may_stay_on_tcp: str = ""
    # The program has an AF_UNIX socket to offer.
    unix: bool = False
    # The case may have sockmap.
    sockmap: bool = True
    # The library costs less than the machine varies by itself, so there is a run AGAIN.
    again: bool = False
    # The connections, and the requests a second over all of them, for a client that makes so many.
    pace: tuple = ()
    # The answer to what a reader would ask about the case's figures.
    footnote: str = ""
    # One of the rows of the README.
    headline: bool = False

    @property
    def bulk(self):
        return self.unit in BULK
