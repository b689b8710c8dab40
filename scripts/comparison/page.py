"""Makes one page with all plots. The page needs nothing from elsewhere, is light or dark as its reader has it, and fits
a phone."""

import itertools
from html import escape

import chart
import curves
import table

PAGE_STYLE = """
  :root { color-scheme: light dark; }
  body { margin: 0 auto; padding: 16px; max-width: 1240px; background: #fff; color: #1f2328;
         font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
  h1 { font-size: 24px; } h2 { font-size: 20px; margin: 32px 0 8px; } h3 { font-size: 15px; margin: 8px 0; }
  svg { display: block; width: 100%; height: auto; max-width: 400px; }
  .plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 300px), 1fr)); gap: 16px; }
  .key { display: inline-block; width: 10px; height: 10px; border-radius: 5px; margin: 0 4px 0 12px; }
  .wide { overflow-x: auto; }
  table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; white-space: nowrap; }
  td, th { border-bottom: 1px solid #d1d9e0; padding: 4px 8px; text-align: right; }
  td:nth-child(-n+2) { text-align: left; }
  .key.tcp { background: #8c959f; } .key.san { background: #0969da; }
  .key.unix { background: #bc4c00; } .key.sockmap { background: #8250df; }
  @media (prefers-color-scheme: dark) {
    body { background: #0d1117; color: #f0f6fc; }
    td, th { border-color: #3d444d; }
    .key.tcp { background: #656c76; } .key.san { background: #4493f8; }
    .key.unix { background: #db6d28; } .key.sockmap { background: #ab7df8; }
  }
"""


def plot(title, picture):
    return f"<div><h3>{title}</h3>{picture}</div>" if picture else ""


def section(program, rows):
    rows = list(rows)
    plots = (
        plot("Throughput", chart.bars(rows, "rate")),
        plot("Latency: p50 · p99", chart.bars(rows, "p50_us", "p99_us", lambda _: "µs")),
        plot("CPU seconds of both ends", chart.bars(rows, "cpu", unit=lambda row: f"for {table.per(row)}")),
        *(plot("Latency distribution", curves.distribution(row)) for row in rows),
    )
    for connections, each in curves.by_load(rows).items():
        plots += (
            plot("Latency against load", curves.latency_against_load(connections, each)),
            plot("Rate against load", curves.rate_against_load(connections, each)),
        )
    note = f"<p>{table.ADVERSE_NOTE}</p>\n" if program == "adverse" else ""
    return f'<h2>{escape(program)}</h2>\n{note}<div class="plots">{"".join(plots)}</div>\n'


def cells(kind, line):
    return "<tr>" + "".join(f"<{kind}>{escape(cell)}</{kind}>" for cell in line) + "</tr>"


def tabular(headings, of, rows, notes=()):
    of = table.marked(of, notes, " ({})".format)
    lines = (cells("th", headings), *(cells("td", of(row)) for row in rows))
    return f'<div class="wide"><table>{"".join(lines)}</table></div>\n'


def html(report):
    rows = report.rows
    note = report.note.replace("`", "")
    key = "".join(
        f'<span class="key {name}"></span>{label}'
        for name, label in chart.TRANSPORTS.items()
        if any(row.rate(name) for row in rows)
    )
    sections = "".join(
        section(program, list(each)) for program, each in itertools.groupby(rows, lambda row: row.case.program)
    )
    notes = table.footnotes(rows)
    below = "".join(f"<p>({number}) {escape(text)}</p>\n" for number, text in enumerate(notes, 1))
    spread = "" if report.rounds < 2 else " A thin line leads from the lowest of the rounds to the highest (of latencies: of the p99)."
    again = table.judged_again(rows)
    losses = (
        f"<h2>{table.LOSSES_TITLE}</h2>\n<p>{table.LOSSES_NOTE}</p>\n{tabular(table.LOSSES, table.losses, again)}"
        if again
        else ""
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>sanshim: the same programs on TCP, shared memory, AF_UNIX and sockmap</title>\n"
        f"<style>{PAGE_STYLE}{chart.STYLE}</style>\n</head>\n<body>\n"
        f"<h1>The same programs on TCP, shared memory, AF_UNIX and sockmap</h1>\n"
        f"<p>{escape(report.where)} {escape(report.versions)}. {escape(note)}</p>\n"
        f"<p>Made by <code>scripts/compare</code>. Each row has its own scale.{spread} {key}</p>\n"
        f"{sections}"
        f"<h2>Throughput</h2>\n{tabular(table.RATES, table.rates, rows, notes)}{below}"
        f"<h2>Latency in µs, and CPU seconds of both ends</h2>\n{tabular(table.COSTS, table.costs, rows, notes)}"
        f"{losses}"
        "</body>\n</html>\n"
    )
