"""How long so many percent of the requests took at most: of clients in Python, and of what others logged. exchange.c has the
same parts."""

PARTS = 1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9, 99.99
# Those that everything has; of the others only those that ten values lie beyond.
ALWAYS = 50, 99


def percentiles(values):
    values = sorted(values)
    known = [part for part in PARTS if part in ALWAYS or len(values) * (100 - part) >= 1000]
    return {part: values[min(int(len(values) * part / 100), len(values) - 1)] for part in known}
