"""The plot: how many times TCP's rate the SAN gives, a bar for each case."""
from html import escape

from table import number

LABELS, BARS, NOTES = 340, 390, 260
ROW, GAP, TOP = 26, 14, 88
WIDTH = LABELS + BARS + NOTES

STYLE = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328; }
  .title { font-size: 16px; font-weight: 600; }
  .program, .ratio { font-weight: 600; }
  .note { fill: #59636e; }
  .grid { stroke: #d1d9e0; }
  .tcp { stroke: #59636e; stroke-dasharray: 4 3; }
  .faster { fill: #0969da; }
  .slower { fill: #bc4c00; }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc; }
    .note { fill: #9198a1; }
    .grid { stroke: #3d444d; }
    .tcp { stroke: #9198a1; }
    .faster { fill: #4493f8; }
    .slower { fill: #db6d28; }
  }
"""


def step(largest):
    """The distance of the grid lines: at most seven of them."""
    return next(one for base in (1, 10, 100, 1000) for one in (base, 2 * base, 5 * base) if largest / one <= 7)


def write(text, x, y, kind="", anchor="start"):
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'


def svg(rows, subtitle):
    distance = step(max(row.ratio for row in rows))
    last = int(max(row.ratio for row in rows) // distance + 1) * distance
    programs = len({row.case.program for row in rows})
    bottom = TOP + len(rows) * ROW + (programs - 1) * GAP
    scale = BARS / last
    parts = [
        write("Shared memory against TCP, the same programs", 16, 26, "title"),
        write(subtitle, 16, 46, "note"),
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
        low, high = number(row.rate("tcp")), number(row.rate("san"))
        length = row.ratio * scale
        kind = "faster" if row.ratio >= 1 else "slower"
        parts += [
            write(row.case.program, 16, y + 13, "program"),
            write(row.case.label, 84, y + 13),
            f'<rect x="{LABELS}" y="{y}" width="{length:.1f}" height="18" rx="2" class="{kind}"/>',
            write(f"{row.ratio:.2f}×", LABELS + length + 8, y + 13, "ratio"),
            write(f"{low} → {high} {row.case.unit}", WIDTH - 16, y + 13, "note", "end"),
        ]
        y += ROW
    x = LABELS + scale
    parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 8}" y2="{bottom}" class="tcp"/>')
    parts.append(write("TCP", x, TOP - 14, "note", "middle"))
    height = bottom + 34
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img" '
        f'aria-label="Bar chart: rates over shared memory divided by rates over TCP">\n'
        f"<style>{STYLE}</style>\n" + "\n".join(parts) + "\n</svg>\n"
    )
