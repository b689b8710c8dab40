"""Writes the plot, the table, and the figures in the README."""
import datetime
import os
import re

import chart
import machine
import table

SECTION = re.compile(r"(<!-- figures:begin -->\n).*?(<!-- figures:end -->)", re.DOTALL)


def replace(path, text):
    """In one step: a reader never sees half a file."""
    beside = path.with_name(path.name + ".new")
    beside.write_text(text)
    os.replace(beside, path)


def write(folder, rows, rounds, sanctl):
    date = datetime.date.today().isoformat()
    where = f"Medians of {rounds} round{'s' * (rounds > 1)}, {date}, {machine.describe()}."
    folder.mkdir(parents=True, exist_ok=True)
    replace(folder / "compare.svg", chart.svg(rows, where))
    commands = "\n".join(f"- {row.case.program}, {row.case.label}: `{row.case.command}`" for row in rows)
    replace(
        folder / "compare.md",
        f"# The same programs on TCP and on shared memory\n\n"
        f"{where}\n{machine.versions(sanctl)}.\n\n"
        f"Made by `scripts/compare`. The same command ran on plain TCP and under `sanctl run`, both ends,\n"
        f"each time with a fresh server, the two transports in turn. The ratio is that of the medians,\n"
        f"\"of the rounds\" the least and the largest of single rounds, the latency the median that the\n"
        f"client measured. Of every run under it `sanctl status --json` showed twice what it was carried by: once\n"
        f"while the client ran, all of the server's connections on shared memory at that moment; once after the\n"
        f"client's end, that none of the server's had gone back to TCP but because it paused. A connection per request is too short to leave\n"
        f"TCP: those rows show what the library costs where it does nothing.\n\n"
        f"{table.markdown(rows)}\n\n![The same figures as a plot](compare.svg)\n\n"
        f"## Commands\n\n{commands}\n",
    )
    return where


def update_readme(readme, rows, where):
    """Only between its markers, and only if it has them."""
    if not readme.exists():
        return
    text = readme.read_text()
    section = (
        f"![Rates over shared memory, in multiples of TCP's](docs/figures/compare.svg)\n\n"
        f"{table.markdown(rows)}\n\n{where} Made by `scripts/compare`; "
        f"[versions and commands](docs/figures/compare.md).\n"
    )
    updated = SECTION.sub(lambda found: found.group(1) + section + found.group(2), text)
    if updated != text:
        replace(readme, updated)
