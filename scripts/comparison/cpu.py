"""The processor time of a process and all below it."""

import collections
import os
import pathlib

TICK = os.sysconf("SC_CLK_TCK")


def fields(stat):
    # The name, in parentheses, may hold anything: the fields begin after the last one.
    return stat.read_text().rpartition(")")[2].split()


def family(root):
    """A process and all below it."""
    children = collections.defaultdict(list)
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(fields(stat)[1])
        except OSError:
            continue
        children[parent].append(int(stat.parent.name))
    found = [root]
    for pid in found:
        found.extend(children[pid])
    return found


def spent(root):
    """User and system seconds, those of children that have ended included."""
    ticks = 0
    for pid in family(root):
        try:
            ticks += sum(map(int, fields(pathlib.Path(f"/proc/{pid}/stat"))[11:15]))
        except OSError:
            continue
    return ticks / TICK
