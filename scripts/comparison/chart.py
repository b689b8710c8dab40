"""The plots: how many times TCP's rate each transport gives, and what it took, as bars."""

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
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc; }
    .note { fill: #9198a1; }
    .grid { stroke: #3d444d; }
    .one { stroke: #9198a1; }
    .tcp { fill: #656c76; }
    .san { fill: #4493f8; }
    .unix { fill: #db6d28; }
    .sockmap { fill: #ab7df8; }
  }
"""
LABELS, BARS, NOTES = 340, 390, 260
WIDTH = LABELS + BARS + NOTES
ROW, BAR, GAP, TOP = 38, 9, 10, 92
COMPARED = ("san", "unix", "sockmap")


def step(largest):
    """The distance of the grid lines: at most seven of them."""
    return next(one for base in (1, 10, 100, 1000) for one in (base, 2 * base, 5 * base) if largest / one <= 7)


def write(text, x, y, kind="", anchor="start"):
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'


def bar(x, y, length, height, kind):
    return f'<rect x="{x}" y="{y:.1f}" width="{max(length, 1):.1f}" height="{height}" rx="2" class="{kind}"/>'


def legend(y, transports, x=16):
    parts = []
    for transport in transports:
        parts.append(f'<circle cx="{x + 5}" cy="{y - 4}" r="5" class="{transport}"/>')
        parts.append(write(TRANSPORTS[transport], x + 15, y, "note"))
        x += 85
    return parts


def picture(width, height, label, parts):
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-label="{escape(label)}">\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def svg(rows, subtitle):
    """The rates in multiples of TCP's: a picture that stands by itself."""
    compared = [one for one in COMPARED if any(row.times(one) for row in rows)]
    largest = max(row.times(one) or 0 for row in rows for one in compared)
    distance = step(largest)
    last = int(largest // distance + 1) * distance
    programs = len({row.case.program for row in rows})
    bottom = TOP + len(rows) * ROW + (programs - 1) * GAP
    scale = BARS / last
    parts = [
        f"<style>{STYLE}</style>",
        write("The same programs, in multiples of their rate over TCP", 16, 26, "title"),
        write(subtitle, 16, 46, "note"),
        *legend(68, compared),
    ]
    for mark in range(0, last + 1, distance):
        x = LABELS + mark * scale
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 8}" y2="{bottom}" class="grid"/>')
        parts.append(write(f"{mark}×", x, bottom + 18, "note", "middle"))
    y, previous = TOP, rows[0].case.program
    for row in rows:
        if row.case.program != previous:
            y += GAP
        previous = row.case.program
        parts.append(write(row.case.program, 16, y + 14, "program"))
        parts.append(write(row.case.label, 108, y + 14))
        for place, one in enumerate(one for one in compared if row.times(one)):
            parts.append(bar(LABELS, y + place * (BAR + 1), row.times(one) * scale, BAR, one))
        parts.append(write(f"{row.ratio:.2f}×", LABELS + row.ratio * scale + 8, y + 10, "ratio"))
        rates = f"{number(row.rate('tcp'))} → {number(row.rate('san'))} {row.case.unit}"
        parts.append(write(rates, WIDTH - 16, y + 14, "note", "end"))
        y += ROW
    x = LABELS + scale
    parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 8}" y2="{bottom}" class="one"/>')
    return picture(WIDTH, bottom + 34, "Bar chart: rates over each transport divided by rates over TCP", parts)


def bars(rows, what, beyond=None, unit=lambda row: row.case.unit):
    """A narrow picture of one figure for some rows, each on its own scale; the lighter bar is `beyond`: the p99."""
    width, room, y, parts = 360, 190, 0, []
    for row in rows:
        known = [one for one in TRANSPORTS if row.median(one, what) is not None]
        if not known:
            continue
        largest = max(row.median(one, beyond or what) for one in known) or 1
        parts.append(write(f"{row.case.label}, {unit(row)}", 0, y + 14, "note"))
        y += 22
        for one in known:
            value, text = row.median(one, what), number(row.median(one, what))
            if beyond:
                far = row.median(one, beyond)
                parts.append(bar(64, y, far / largest * room, 14, f"{one} light"))
                text += f" · {number(far)}"
            parts.append(bar(64, y, value / largest * room, 14, one))
            parts.append(write(TRANSPORTS[one], 58, y + 12, "note", "end"))
            parts.append(write(text, 64 + room + 6, y + 12))
            y += 18
        y += 8
    return picture(width, y, f"Bar chart: {what}", parts) if parts else ""
