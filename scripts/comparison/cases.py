"""What a comparison is made of: cases of programs, each measured on a fresh server."""

import dataclasses

TRANSPORTS = {"tcp": "TCP", "san": "SAN", "unix": "AF_UNIX", "sockmap": "sockmap"}
# Another run on TCP, on the other side of that on the SAN: how far the two differ is what the machine does by itself.
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
    # How many µs so many percent of the requests took at most, where the client says it.
    percentiles: dict = dataclasses.field(default_factory=dict)
    # What sanctl said of its connections while it ran, where no more is asked of them.
    carried: str = ""


@dataclasses.dataclass(frozen=True)
class Case:
    """One line of the table. `measure(stage, transport, seconds)` gives a Figure."""

    program: str
    label: str
    unit: str
    command: str
    measure: object
    # Why its connections need not be on the SAN, where they need not: it is to cost no more than TCP.
    may_stay_on_tcp: str = ""
    # The program has an AF_UNIX socket to offer.
    unix: bool = False
    # sockmap may be had for it.
    sockmap: bool = True
    # What the library costs is less than the machine varies by itself: there is a run AGAIN.
    again: bool = False
    # The connections, and the requests a second that are made over all of them, where a client makes so many.
    pace: tuple = ()
    # What a reader would ask about its figures.
    footnote: str = ""
    # One of the rows of the README.
    headline: bool = False

    @property
    def bulk(self):
        return self.unit in BULK
