"""Says how long so many percent of the requests took at most, for clients in Python and for logs of others. exchange.c
has the same parts."""

PARTS = 1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9, 99.99
# Every result has these parts. It has another part only if ten values lie beyond that part.
ALWAYS = 50, 99


def percentiles(values):
    values = sorted(values)
    known = [part for part in PARTS if part in ALWAYS or len(values) * (100 - part) >= 1000]
    return {part: values[min(int(len(values) * part / 100), len(values) - 1)] for part in known}
