"""Writes the plot, the tables, the page, and the figures in the README."""

import dataclasses
import datetime
import functools
import os
import re

import chart
import machine
import page
import table

SECTION = re.compile(r"(<!-- figures:begin -->\n).*?(<!-- figures:end -->)", re.DOTALL)

PAGE = """# The same programs on TCP, shared memory, AF_UNIX and sockmap

{where}
{versions}.

Made by `scripts/compare`. The same command ran on plain TCP, under `sanctl run`, both ends, over AF_UNIX where the
program offers it, and with sockmap, each time with a fresh server, the transports in turn. {note}
The ratio is that of the medians, "of the rounds" the least and the largest of single rounds. A dash: the program or its
client has none. Of every run under it `sanctl status --json` showed twice what it was carried by: once while the client
ran, all of the server's connections on shared memory at that moment; once after the client's end, that none of the
server's had gone back to TCP but because it paused. {repeated}
{adverse}

## Throughput

{rates}
{notes}
## Latency in µs, and the processor time of both ends

Latencies are those that the client measured; CPU seconds are user and system time of server and client, children
included, for a million requests (transactions, messages) or a GiB.

{costs}

{losses}![Rates in multiples of TCP's](compare.svg)

[The page with all plots](compare.html)

## May be on TCP under `sanctl run` too

Of these rows nothing was asked but what they were on while they ran. Most show what the library costs where it does
little.

{on_tcp}

## Commands

{commands}
"""


@dataclasses.dataclass(frozen=True)
class Report:
    """All that was measured, and the machine and versions."""

    rows: list
    rounds: int
    sanctl: str
    note: str

    @functools.cached_property
    def where(self):
        date = datetime.date.today().isoformat()
        return f"Medians of {self.rounds} round{'s' * (self.rounds > 1)}, {date}, {machine.describe()}."

    @functools.cached_property
    def repeated(self):
        """Says how many runs on the SAN did not count."""
        times = sum(len(row.repeated) for row in self.rows)
        runs = sum(len(row.figures["san"]) for row in self.rows)
        if not times:
            return f"All {runs} runs on it were measured once."
        return (
            f"Where an end had got no processor in time, so that a connection was on TCP, a run was measured once more: "
            f"{times} time{'s' * (times > 1)} of {runs} runs."
        )

    @functools.cached_property
    def versions(self):
        return machine.versions(self.sanctl)


def replace(path, text):
    """Replaces the file in one step, so that a reader never sees half a file."""
    beside = path.with_name(path.name + ".new")
    beside.write_text(text)
    os.replace(beside, path)


def stay(row):
    """Says why the row's connections stay on TCP, and what was seen of them."""
    seen = next(figure.carried for figure in row.figures["san"][::-1] if figure)
    return f"{row.case.may_stay_on_tcp}." + f" Seen while it ran: {seen}." * bool(seen)


def losses(rows):
    again = table.judged_again(rows)
    if not again:
        return ""
    return f"## {table.LOSSES_TITLE}\n\n{table.LOSSES_NOTE}\n\n{table.markdown(table.LOSSES, table.losses, again)}\n\n"


def write(folder, report):
    rows, notes = report.rows, table.footnotes(report.rows)
    folder.mkdir(parents=True, exist_ok=True)
    replace(folder / "compare.svg", chart.svg(table.headlines(rows), report.where))
    replace(folder / "compare.html", page.html(report))
    commands = "\n".join(f"- {row.case.program}, {row.case.label}: `{row.case.command}`" for row in rows)
    on_tcp = "\n".join(f"- {row.case.program}, {row.case.label}: {stay(row)}" for row in rows if row.case.may_stay_on_tcp)
    replace(
        folder / "compare.md",
        PAGE.format(
            where=report.where,
            versions=report.versions,
            note=report.note,
            repeated=report.repeated,
            rates=table.markdown(table.RATES, table.rates, rows, notes),
            adverse=table.ADVERSE_NOTE,
            notes=table.below(notes),
            costs=table.markdown(table.COSTS, table.costs, rows, notes),
            losses=losses(rows),
            on_tcp=on_tcp,
            commands=commands,
        ),
    )


def update_readme(readme, report):
    """Changes the README between its markers only, and only if it has them."""
    if not readme.exists():
        return
    text = readme.read_text()
    rows = table.headlines(report.rows)
    notes = table.footnotes(rows)
    section = (
        f"![Rates over shared memory, AF_UNIX and sockmap, in multiples of TCP's](docs/figures/compare.svg)\n\n"
        f"{table.markdown(table.SHORT, table.short, rows, notes)}\n{table.below(notes)}\n"
        f"{report.where} An arrow leads from TCP's figure to the SAN's. Made by `scripts/compare`:\n"
        f"[all rows, versions and commands](docs/figures/compare.md),\n"
        f"[the page with the plots](docs/figures/compare.html),\n"
        f"[what each figure is limited by](docs/performance.md#real-programs).\n"
    )
    updated = SECTION.sub(lambda found: found.group(1) + section + found.group(2), text)
    if updated != text:
        replace(readme, updated)
