"""Draws the curves: what share of the requests took how long, and how latency and rate change with the load."""

import collections
import itertools
import math

import chart
from cases import TRANSPORTS

WIDTH, HEIGHT = 360, 210
LEFT, RIGHT, TOP, BOTTOM = 58, 16, 26, 34
# A curve needs the middle, a tail, and something between.
FEWEST_POINTS = 3
MARKED_PARTS = (50, 90, 99, 99.9, 99.99)


class Frame:
    """Places values in a picture. `x_of` and `y_of` turn values into numbers that are drawn evenly."""

    def __init__(self, points, x_of, y_of):
        self.x_of, self.y_of = x_of, y_of
        xs, ys = ([of(value) for value in values] for of, values in zip((x_of, y_of), zip(*points)))
        self.left, self.right = min(xs), max(xs)
        self.low, self.high = min(ys), max(ys)

    def x(self, value):
        return LEFT + (self.x_of(value) - self.left) / (self.right - self.left or 1) * (WIDTH - LEFT - RIGHT)

    def y(self, value):
        part = (self.y_of(value) - self.low) / (self.high - self.low or 1)
        return HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM)

    def curve(self, points, kind):
        places = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        return f'<polyline points="{places}" class="curve {kind}"/>'

    def dots(self, points, kind):
        return "".join(f'<circle cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="2.5" class="{kind}"/>' for x, y in points)

    def across(self, value, text):
        y = self.y(value)
        line = f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
        return line + chart.write(text, LEFT - 6, y + 4, "note", "end")

    def up(self, value, text, anchor="middle"):
        x = self.x(value)
        line = f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" class="grid"/>'
        return line + chart.write(text, x, HEIGHT - BOTTOM + 16, "note", anchor)


def tens(values):
    """Gives the powers of ten around some values."""
    first, last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]


def duration(micros):
    """Writes a power of ten as it is read."""
    for unit, worth in (("s", 1e6), ("ms", 1e3)):
        if micros >= worth:
            return f"{micros / worth:g} {unit}"
    return f"{micros:g} µs"


def drawn(title, label, parts):
    return chart.picture(WIDTH, HEIGHT, label, [chart.write(title, 0, 14, "note"), *parts])


def beyond(part):
    """Gives the place of a share. Ever smaller shares of slow requests lie evenly: 50 %, 90 %, 99 %, 99.9 %."""
    return -math.log10(1 - part / 100)


def distribution(row):
    """Draws what share of a row's requests took how long at most. Gives nothing where the client does not say."""
    curves = {one: row.percentiles(one) for one in TRANSPORTS}
    curves = {one: points for one, points in curves.items() if len(points) >= FEWEST_POINTS}
    if not curves:
        return ""
    every = list(itertools.chain(*curves.values()))
    levels = tens([took for _, took in every])
    frame = Frame([*every, (50, levels[0]), (50, levels[-1])], beyond, math.log10)
    parts = [frame.across(level, duration(level)) for level in levels]
    last = max(part for part, _ in every)
    marked = [part for part in MARKED_PARTS if part <= last]
    parts += [frame.up(part, f"{part:g} %", "end" if part == last else "middle") for part in marked]
    for one, points in curves.items():
        parts += [frame.curve(points, one), frame.dots(points, one)]
    return drawn(chart.shortened(row.case.label), f"Latency distribution: {row.case.label}", parts)


def by_load(rows):
    """Gives the rows of paced clients by their number of connections, from little load to much. Leaves out numbers with
    one row only."""
    groups = collections.defaultdict(list)
    for row in rows:
        if row.case.pace and row.rate("tcp"):
            groups[row.case.pace[0]].append(row)
    ordered = {connections: sorted(each, key=lambda row: row.case.pace[1]) for connections, each in groups.items()}
    return {connections: each for connections, each in ordered.items() if len(each) > 1}


def loads(frame, rows):
    return [frame.up(row.case.pace[1], f"{row.case.pace[1]:,}/s", "end" if row is rows[-1] else "middle") for row in rows]


def latency_against_load(connections, rows):
    """Draws p50 and, dashed, p99."""
    curves = {}
    for one in TRANSPORTS:
        for what in ("p50_us", "p99_us"):
            points = [(row.case.pace[1], row.median(one, what)) for row in rows]
            curves[one, what] = [(x, y) for x, y in points if y]
    every = list(itertools.chain(*curves.values()))
    levels = tens([took for _, took in every])
    frame = Frame([*every, (every[0][0], levels[0]), (every[0][0], levels[-1])], math.log10, math.log10)
    parts = [*(frame.across(level, duration(level)) for level in levels), *loads(frame, rows)]
    for (one, what), points in curves.items():
        if points:
            parts += [frame.curve(points, f"{one} dashed" if what == "p99_us" else one), frame.dots(points, one)]
    return drawn(f"{over(connections)}: p50, and p99 (dashed)", f"Latency against load, {over(connections)}", parts)


def rate_against_load(connections, rows):
    """Draws the rate in percent of the offered load."""
    curves = {}
    for one in TRANSPORTS:
        points = [(row.case.pace[1], row.rate(one)) for row in rows]
        curves[one] = [(load, 100 * rate / load) for load, rate in points if rate]
    every = list(itertools.chain(*curves.values()))
    frame = Frame([*every, (every[0][0], 0), (every[0][0], 100)], math.log10, float)
    parts = [*(frame.across(share, f"{share} %") for share in (0, 50, 100)), *loads(frame, rows)]
    for one, points in curves.items():
        if points:
            parts += [frame.curve(points, one), frame.dots(points, one)]
    return drawn(f"{over(connections)}: answered of what is offered", f"Rate against load, {over(connections)}", parts)


def over(connections):
    return f"{connections} connection{'s' * (connections > 1)}"
