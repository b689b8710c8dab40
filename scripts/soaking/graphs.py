"""The graphs of a soak: a panel for each value, a line for each server, and marks where something was done to it."""

import math
from html import escape

from measures import TITLES

WIDTH, HEIGHT, LEFT, GAP, TOP = 1000, 150, 70, 46, 60
COLOURS = ("#0969da", "#bc4c00", "#1a7f37", "#8250df", "#cf222e", "#9a6700", "#57606a")
STYLE = """
  text { font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328; }
  .title { font-weight: 600; }
  .note { fill: #59636e; }
  .grid { stroke: #d1d9e0; }
  .quiet { fill: #d1d9e0; opacity: 0.5; }
  .event { stroke: #59636e; opacity: 0.1; }
  polyline { fill: none; stroke-width: 1.3; }
  .again { stroke-dasharray: 4 2; }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc; } .note { fill: #9198a1; } .grid { stroke: #3d444d; } .quiet { fill: #3d444d; }
  }
"""
SCALE = {"memory_kib": 1 / 1024, "shm_kib": 1 / 1024}


# What differs much between servers, by powers of ten: from so much up.
BY_POWERS = {"memory_kib": 1, "descriptors": 1, "mappings": 10}


def scale(value, most):
    """What places a number between 0, the bottom, and 1, and the numbers at its lines."""
    if value in BY_POWERS:
        low = math.log10(BY_POWERS[value])
        high = max(math.ceil(math.log10(max(most, 1))), low + 1)
        lines = [10**power for power in range(int(low), int(high) + 1)]
        return lambda y: min(max((math.log10(max(y, 1e-9)) - low) / (high - low), 0), 1), lines
    step = 10 ** math.floor(math.log10(most)) if most > 0 else 1
    top = math.ceil(most / step) * step if most > 0 else 1
    return lambda y: y / top, [0, top / 2, top]


def write(text, x, y, kind="", anchor="start"):
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'


def colour(names, name):
    """A server and the one of its kind that is ended have the same."""
    kinds = list(dict.fromkeys(one.removesuffix("-again") for one in names))
    return COLOURS[kinds.index(name.removesuffix("-again")) % len(COLOURS)]


def drawn(points):
    """The points of a line, without those in the middle of a level piece."""
    kept = [
        point
        for before, point, after in zip([None, *points], points, [*points[1:], None])
        if not before or not after or not before[1] == point[1] == after[1]
    ]
    return " ".join(f"{x:.0f},{y:.0f}" for x, y in kept)


def panel(samples, value, names, top, across):
    lines = {name: [] for name in names}
    for one in samples:
        if value in one.values:
            lines.setdefault(one.name, []).append((one.at, one.values[value] * SCALE.get(value, 1)))
    lines = {name: points for name, points in lines.items() if points}
    place, grid = scale(value, max(y for points in lines.values() for _, y in points))
    parts = [write(TITLES[value], LEFT, top - 8, "title")]
    for number in grid:
        y = top + HEIGHT * (1 - place(number))
        parts.append(f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        parts.append(write(f"{number:g}", LEFT - 8, y + 4, "note", "end"))
    for name, points in lines.items():
        line = drawn([(round(across(x)), round(top + HEIGHT * (1 - place(y)))) for x, y in points])
        kind = "again" if name.endswith("-again") else "lives"
        parts.append(f'<polyline points="{line}" stroke="{colour(names, name)}" class="{kind}"/>')
    return parts


def svg(samples, events, title):
    """`events` are seconds and words."""
    names = list(dict.fromkeys(one.name for one in samples))
    end = max(one.at for one in samples) or 1
    values = [value for value in TITLES if any(value in one.values for one in samples)]
    height = TOP + len(values) * (HEIGHT + GAP)

    def across(at):
        return LEFT + WIDTH * at / end

    parts = [write(title, LEFT, 18, "title")]
    x = LEFT
    for name in names:
        kind = "again" if name.endswith("-again") else "lives"
        parts.append(f'<polyline points="{x},31 {x + 20},31" stroke="{colour(names, name)}" class="{kind}"/>')
        parts.append(write(name, x + 24, 35, "note"))
        x += 32 + 5.6 * len(name)
    bottom = height - GAP + 4
    for phase in ("start", "end"):
        times = [one.at for one in samples if one.phase == phase]
        if times:
            first, last = across(min(times)), across(max(times))
            parts.append(f'<rect x="{first:.1f}" y="{TOP}" width="{max(last - first, 1):.1f}" height="{bottom - TOP}" class="quiet"/>')
    for at, what in events:
        parts.append(f'<line x1="{across(at):.1f}" x2="{across(at):.1f}" y1="{TOP}" y2="{bottom}" class="event"><title>{escape(what)}</title></line>')
    for number, value in enumerate(values):
        parts += panel(samples, value, names, TOP + number * (HEIGHT + GAP), across)
    for part in range(0, 7):
        parts.append(write(f"{end * part / 6:.0f} s", LEFT + WIDTH * part / 6, height - GAP + 20, "note", "middle"))
    body = "\n".join(parts)
    wide = LEFT + WIDTH + 30
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {height}" role="img">\n<style>{STYLE}</style>\n{body}\n</svg>\n'
