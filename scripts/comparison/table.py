"""Medians of the rounds, and the table in text and in Markdown."""
import dataclasses
import statistics

from cases import Case


@dataclasses.dataclass(frozen=True)
class Row:
    """One case with the figures of all rounds: rates and latencies by transport."""

    case: Case
    figures: dict

    def rate(self, transport):
        return statistics.median(figure.rate for figure in self.figures[transport])

    def latency(self, transport):
        known = [one.latency_us for one in self.figures[transport] if one.latency_us is not None]
        return statistics.median(known) if known else None

    @property
    def ratio(self):
        return self.rate("san") / self.rate("tcp")

    @property
    def ratios(self):
        """The least and the largest ratio of two neighbouring runs."""
        pairs = zip(self.figures["tcp"], self.figures["san"])
        each = [san.rate / tcp.rate for tcp, san in pairs]
        return min(each), max(each)


def number(value):
    """Three digits that count: 12.3, 1,234, 123 k."""
    if value >= 100_000:
        return f"{value / 1000:,.0f} k"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def microseconds(value):
    return "" if value is None else f"{number(value)} µs"


HEADINGS = ("", "", "unit", "TCP", "SAN", "SAN / TCP", "of the rounds", "latency TCP", "latency SAN")


def cells(row):
    low, high = row.ratios
    return (
        row.case.program,
        row.case.label,
        row.case.unit,
        number(row.rate("tcp")),
        number(row.rate("san")),
        f"{row.ratio:.2f}×",
        f"{low:.2f}–{high:.2f}",
        microseconds(row.latency("tcp")),
        microseconds(row.latency("san")),
    )


def text(rows):
    lines = [HEADINGS, *(cells(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i < 3 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths))
        ).rstrip()
        for line in lines
    )


def markdown(rows):
    lines = [HEADINGS, ("---",) * 3 + ("--:",) * 6, *(cells(row) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
