"""What processes have: memory, descriptors and mappings; and what /dev/shm has."""

import os
import pathlib

SHARED_MEMORY = pathlib.Path("/dev/shm")


def pss(pid):
    """Kibibytes: what it shares counts in parts."""
    for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    return 0


def descriptors(process, apart_from):
    """How many it has, without the files below a folder."""
    count = 0
    for one in (process / "fd").iterdir():
        try:
            count += not (apart_from and os.readlink(one).startswith(apart_from))
        except OSError:
            # Closed meanwhile.
            continue
    return count


def of_process(pid, apart_from=""):
    process = pathlib.Path(f"/proc/{pid}")
    return {
        "memory_kib": pss(pid),
        "descriptors": descriptors(process, apart_from),
        "mappings": (process / "maps").read_text().count("\n"),
    }


def of_family(pids, apart_from=""):
    """The sum over processes; those that end meanwhile are left out."""
    total = dict.fromkeys(("memory_kib", "descriptors", "mappings"), 0)
    for pid in pids:
        try:
            for name, value in of_process(pid, apart_from).items():
                total[name] += value
        except OSError:
            continue
    return total


def of_shared_memory():
    kib, files = 0, 0
    for file in SHARED_MEMORY.rglob("*"):
        try:
            kib, files = kib + file.stat().st_blocks // 2, files + 1
        except OSError:
            continue
    return {"shm_kib": kib, "shm_files": files}
