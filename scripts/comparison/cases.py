"""What a comparison is made of: cases of programs, each measured on a fresh server."""
import dataclasses

TRANSPORTS = ("tcp", "san")


@dataclasses.dataclass(frozen=True)
class Figure:
    """One measurement: a rate in the case's unit, and the median latency where it is known."""

    rate: float
    latency_us: float | None = None


@dataclasses.dataclass(frozen=True)
class Case:
    """One line of the table. `measure(stage, transport, seconds)` gives a Figure."""

    program: str
    label: str
    unit: str
    command: str
    measure: object
    # Its connections are too short to leave TCP: it is to cost what TCP costs.
    stays_on_tcp: bool = False
