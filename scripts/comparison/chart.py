"""Draws the plots: how many times TCP's rate each transport gives, and what it took, as bars."""

import textwrap
from html import escape

from cases import TRANSPORTS
from table import number

STYLE = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328; }
  .title { font-size: 16px; font-weight: 600; }
  .program, .ratio { font-weight: 600; }
  .note { fill: #59636e; }
  .grid { stroke: #d1d9e0; }
  .one { stroke: #59636e; stroke-dasharray: 4 3; }
  .tcp { fill: #8c959f; }
  .san { fill: #0969da; }
  .unix { fill: #bc4c00; }
  .sockmap { fill: #8250df; }
  .light { opacity: 0.45; }
  .spread { stroke: #1f2328; stroke-width: 1.5; }
  .curve { fill: none; stroke-width: 2; }
  .curve.tcp { stroke: #8c959f; } .curve.san { stroke: #0969da; }
  .curve.unix { stroke: #bc4c00; } .curve.sockmap { stroke: #8250df; }
  .dashed { stroke-dasharray: 5 4; }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc; }
    .note { fill: #9198a1; }
    .grid { stroke: #3d444d; }
    .one { stroke: #9198a1; }
    .tcp { fill: #656c76; }
    .san { fill: #4493f8; }
    .unix { fill: #db6d28; }
    .sockmap { fill: #ab7df8; }
    .spread { stroke: #f0f6fc; }
    .curve { fill: none; }
    .curve.tcp { stroke: #656c76; } .curve.san { stroke: #4493f8; }
    .curve.unix { stroke: #db6d28; } .curve.sockmap { stroke: #ab7df8; }
  }
"""
LABELS, BARS, NOTES = 340, 390, 280
# So many characters of a label fit into a line: in the column of the wide picture, and in a narrow picture. Fonts
# differ in width.
IN_COLUMN, IN_NARROW = 32, 46
WIDTH = LABELS + BARS + NOTES
ROW, BAR, GAP, TOP = 38, 9, 10, 92
COMPARED = ("san", "unix", "sockmap")


def step(largest):
    """Gives the distance of the grid lines. There are at most seven."""
    return next(one for base in (1, 10, 100, 1000) for one in (base, 2 * base, 5 * base) if largest / one <= 7)


def write(text, x, y, kind="", anchor="start"):
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'


def bar(x, y, length, height, kind):
    return f'<rect x="{x}" y="{y:.1f}" width="{max(length, 1):.1f}" height="{height}" rx="2" class="{kind}"/>'


def whisker(x, y, scale, span):
    """Draws a thin line from the least to the largest of the rounds, on the middle of a bar."""
    if not span:
        return ""
    first, last = (x + value * scale for value in span)
    ends = "".join(f"M{end:.1f} {y - 3:.1f}v6" for end in (first, last))
    return f'<path d="M{first:.1f} {y:.1f}H{last:.1f}{ends}" class="spread"/>'


def lines(text, length):
    return textwrap.wrap(text, length, break_on_hyphens=False)


def shortened(text):
    """Gives one line, without the rest that does not fit."""
    return textwrap.shorten(text, IN_NARROW, placeholder=" …")


def legend(y, transports, has_spread, x=16):
    parts = []
    for transport in transports:
        parts.append(f'<circle cx="{x + 5}" cy="{y - 4}" r="5" class="{transport}"/>')
        parts.append(write(TRANSPORTS[transport], x + 15, y, "note"))
        x += 85
    parts.append(f'<line x1="{x + 6}" x2="{x + 6}" y1="{y - 12}" y2="{y + 4}" class="one"/>')
    parts.append(write("TCP's own rate", x + 15, y, "note"))
    if has_spread:
        parts.append(whisker(x + 130, y - 4, 1, (0, 22)))
        parts.append(write("from the lowest round to the highest", x + 160, y, "note"))
    return parts


def picture(width, height, label, parts):
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-label="{escape(label)}">\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def svg(rows, subtitle):
    """Draws the rates in multiples of TCP's, in a picture that stands by itself."""
    compared = [one for one in COMPARED if any(row.times(one) for row in rows)]
    spans = [{one: span(row.times_of_rounds(one)) for one in compared} for row in rows]
    ends = [end for each in spans for one in each.values() if one for end in one]
    largest = max([row.times(one) or 0 for row in rows for one in compared] + ends)
    distance = step(largest)
    last = int(largest // distance + 1) * distance
    programs = len({row.case.program for row in rows})
    bottom = TOP + len(rows) * ROW + (programs - 1) * GAP
    scale = BARS / last
    parts = [
        f"<style>{STYLE}</style>",
        write("The same programs, in multiples of their rate over TCP", 16, 26, "title"),
        write(subtitle, 16, 46, "note"),
        *legend(68, compared, bool(ends)),
    ]
    for mark in range(0, last + 1, distance):
        x = LABELS + mark * scale
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 8}" y2="{bottom}" class="grid"/>')
        parts.append(write(f"{mark}×", x, bottom + 18, "note", "middle"))
    x = LABELS + scale
    parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 8}" y2="{bottom}" class="one"/>')
    y, previous = TOP, rows[0].case.program
    for row, each in zip(rows, spans):
        if row.case.program != previous:
            y += GAP
        previous = row.case.program
        parts.append(write(row.case.program, 16, y + 14, "program"))
        parts += [write(line, 108, y + 14 + 16 * place) for place, line in enumerate(lines(row.case.label, IN_COLUMN))]
        for place, one in enumerate(one for one in compared if row.times(one)):
            top = y + place * (BAR + 1)
            parts.append(bar(LABELS, top, row.times(one) * scale, BAR, one))
            parts.append(whisker(LABELS, top + BAR / 2, scale, each[one]))
        if row.ratio:
            end = max(row.ratio, *(each["san"] or (0,)))
            parts.append(write(f"{row.ratio:.2f}×", LABELS + end * scale + 8, y + 10, "ratio"))
        rates = f"{number(row.rate('tcp'))} → {number(row.rate('san'))} {row.case.unit}"
        parts.append(write(rates, WIDTH - 16, y + 14, "note", "end"))
        y += ROW
    return picture(WIDTH, bottom + 34, "Bar chart: rates over each transport divided by rates over TCP", parts)


def span(ends):
    """Gives the ends of a spread. None: one round has no spread."""
    return ends if ends and ends[0] < ends[1] else None


def bars(rows, what, beyond=None, unit=lambda row: row.case.unit):
    """Draws a narrow picture of one figure for some rows, each on its own scale. The lighter bar is `beyond`: the
    p99."""
    width, room, y, parts = 360, 190, 0, []
    for row in rows:
        known = [one for one in TRANSPORTS if row.median(one, what) is not None]
        if not known:
            continue
        far = beyond or what
        spans = {one: row.spread(one, far) for one in known}
        largest = max([row.median(one, far) for one in known] + [each[1] for each in spans.values() if each]) or 1
        for line in lines(f"{row.case.label}, {unit(row)}", IN_NARROW):
            parts.append(write(line, 0, y + 14, "note"))
            y += 16
        y += 6
        for one in known:
            value, text = row.median(one, what), number(row.median(one, what))
            if beyond:
                parts.append(bar(64, y, row.median(one, far) / largest * room, 14, f"{one} light"))
                text += f" · {number(row.median(one, far))}"
            parts.append(bar(64, y, value / largest * room, 14, one))
            parts.append(whisker(64, y + 7, room / largest, span(spans[one])))
            parts.append(write(TRANSPORTS[one], 58, y + 12, "note", "end"))
            parts.append(write(text, 64 + room + 6, y + 12))
            y += 18
        y += 8
    return picture(width, y, f"Bar chart: {what}", parts) if parts else ""
