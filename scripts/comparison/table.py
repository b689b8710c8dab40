"""Takes the medians of the rounds, and makes the tables in text and in Markdown."""

import dataclasses
import statistics

from cases import AGAIN, TRANSPORTS, Case

NOTHING = "–"
MOST_HEADLINES = 12


@dataclasses.dataclass(frozen=True)
class Row:
    """One case with the figures of all rounds, by transport. A round without a figure has None."""

    case: Case
    figures: dict
    # The reasons why runs on the SAN were measured once more.
    repeated: list = dataclasses.field(default_factory=list)

    def measured(self, transport):
        """Gives the figures of all rounds that have one. For TCP these are the figures of both runs."""
        all_of_them = [*self.figures.get(transport, ()), *(self.figures.get(AGAIN, ()) if transport == "tcp" else ())]
        return [figure for figure in all_of_them if figure]

    def known(self, transport, what):
        values = [getattr(figure, what) for figure in self.measured(transport)]
        return [value for value in values if value is not None]

    def median(self, transport, what):
        """Gives the median. None: the program has no such socket, or its client does not say."""
        known = self.known(transport, what)
        return statistics.median(known) if known else None

    def spread(self, transport, what):
        """Gives the least and the largest of the rounds. None: there are not two rounds."""
        known = self.known(transport, what)
        return (min(known), max(known)) if len(known) > 1 else None

    def percentiles(self, transport):
        """Gives how long so many percent of the requests took at most: the medians of the rounds, of the parts that all
        rounds have."""
        measured = [figure.percentiles for figure in self.measured(transport)]
        parts = set.intersection(*map(set, measured)) if measured else ()
        return [(part, statistics.median(one[part] for one in measured)) for part in sorted(parts)]

    def rate(self, transport):
        return self.median(transport, "rate")

    def times(self, transport):
        """Gives the rate in multiples of TCP's."""
        rate = self.rate(transport)
        return rate and rate / self.rate("tcp")

    @property
    def ratio(self):
        return self.times("san")

    def times_of_rounds(self, transport):
        """Gives the least and the largest ratio of two runs of one round. None: no round has both."""
        pairs = zip(self.figures["tcp"], self.figures.get(transport, ()))
        each = [one.rate / tcp.rate for tcp, one in pairs if tcp and one]
        return (min(each), max(each)) if each else None

    @property
    def ratios(self):
        each = self.times_of_rounds("san")
        return f"{each[0]:.2f}–{each[1]:.2f}" if each else NOTHING

    def passes(self, what):
        """Gives the values of each round that has all three: on TCP, on the SAN, and on TCP on the other side of the
        SAN's run."""
        for figures in zip(*(self.figures[transport] for transport in ("tcp", "san", AGAIN))):
            values = [figure and getattr(figure, what) for figure in figures]
            if all(values):
                yield values

    def between(self, what):
        """Gives the SAN's value in multiples of the mean of the two runs beside it, and how far these two differ, as
        medians."""
        passes = list(self.passes(what))
        if not passes:
            return NOTHING
        san = statistics.median(2 * san / (one + other) for one, san, other in passes)
        tcp = statistics.median(max(one, other) / min(one, other) for one, _, other in passes)
        return f"{san:.2f} ({tcp:.2f})"


def judged_again(rows):
    return [row for row in rows if row.case.again]


def headlines(rows):
    """Gives all rows, if there are not too many to see at a glance, and otherwise the headlines among them."""
    if len(rows) <= MOST_HEADLINES:
        return rows
    return [row for row in rows if row.case.headline][:MOST_HEADLINES]


def number(value):
    """Writes a number with at least three digits that count: 12.3, 1,234, 123 k."""
    if not value:
        return NOTHING
    if value >= 100_000:
        return f"{value / 1000:,.0f} k"
    return f"{value:,.0f}" if value >= 999.5 else f"{value:.3g}"


def times(value):
    return NOTHING if value is None else f"{value:.2f}×"


def footnotes(rows):
    """Gives the footnotes of some rows in their order: answers to what a reader would ask about the figures. Several
    rows may share a footnote."""
    return list(dict.fromkeys(row.case.footnote for row in rows if row.case.footnote))


def label(row, notes, mark):
    """Gives the label of a row, with the number of its footnote."""
    note = row.case.footnote
    return row.case.label + (mark(notes.index(note) + 1) if note in notes else "")


def of_all(row, what):
    return [number(row.median(transport, what)) for transport in TRANSPORTS]


def change(row, what):
    """Writes the change from TCP's figure to the SAN's."""
    before, after = row.median("tcp", what), row.median("san", what)
    return NOTHING if before is None or after is None else f"{number(before)} → {number(after)}"


NAMES = tuple(TRANSPORTS.values())
RATES = ("", "", "unit", *NAMES, "SAN / TCP", "of the rounds", "SAN / AF_UNIX")
COSTS = (
    "",
    "",
    *(f"p50 {name}" for name in NAMES),
    *(f"p99 {name}" for name in NAMES),
    "CPU s for",
    *(f"CPU s {name}" for name in NAMES),
)
ADVERSE_NOTE = (
    "The adverse rows are redis where the library has no advantage: with few requests a second, with many idle connections, or "
    "with other work on the processors."
)
LOSSES_TITLE = "What it costs where it does nothing"
LOSSES_NOTE = (
    "In multiples of TCP's. The run with the library lies between two without it and is compared with their mean; in brackets "
    "how far those two differ, the larger in multiples of the smaller, which is what the machine does by itself. Medians of the "
    "rounds."
)
LOSSES = ("", "", "rate", "p50", "p99", "CPU")
SHORT = ("", "", "unit", *NAMES, "SAN / TCP", "p99, µs", "CPU of both ends")


def per(row):
    """Gives the amount of work that the CPU seconds are for."""
    return "a GiB" if row.case.bulk else f"a million {row.case.unit.removesuffix('/s')}"


def cost(row):
    """Writes the change from TCP's CPU seconds to the SAN's, with the amount of work."""
    seconds = change(row, "cpu")
    return NOTHING if seconds == NOTHING else f"{seconds} s for {per(row)}"


def rates(row):
    unix = row.rate("unix")
    return (
        row.case.program,
        row.case.label,
        row.case.unit,
        *of_all(row, "rate"),
        times(row.ratio),
        row.ratios,
        times(unix and row.ratio and row.rate("san") / unix),
    )


def costs(row):
    return (
        row.case.program,
        row.case.label,
        *of_all(row, "p50_us"),
        *of_all(row, "p99_us"),
        per(row),
        *of_all(row, "cpu"),
    )


def losses(row):
    return (row.case.program, row.case.label, *map(row.between, ("rate", "p50_us", "p99_us", "cpu")))


def short(row):
    return (
        row.case.program,
        row.case.label,
        row.case.unit,
        *of_all(row, "rate"),
        times(row.ratio),
        change(row, "p99_us"),
        cost(row),
    )


def text(headings, cells, rows):
    lines = [headings, *map(cells, rows)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    words = sum(heading in ("", "unit") for heading in headings)
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i < words else cell.rjust(width) for i, (cell, width) in enumerate(zip(line, widths))
        ).rstrip()
        for line in lines
    )


def marked(cells, notes, mark):
    """Gives a function that makes the cells of a row. The second cell, the label, has the number of the row's
    footnote."""

    def of(row):
        first, _, *rest = cells(row)
        return (first, label(row, notes, mark), *rest)

    return of


def markdown(headings, cells, rows, notes=()):
    words = sum(heading in ("", "unit") for heading in headings)
    rule = ("---",) * words + ("--:",) * (len(headings) - words)
    of = marked(cells, notes, "<sup>{}</sup>".format)
    return "\n".join("| " + " | ".join(line) + " |" for line in (headings, rule, *map(of, rows)))


def below(notes):
    """Writes the footnotes below a table in Markdown."""
    return "".join(f"\n<sup>{number}</sup> {note}\n" for number, note in enumerate(notes, 1))
