"""What processes have: memory, descriptors and mappings; and what /dev/shm has."""

import pathlib

SHARED_MEMORY = pathlib.Path("/dev/shm")


def pss(pid):
    """Kibibytes: what it shares counts in parts."""
    for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    return 0


def of_process(pid):
    process = pathlib.Path(f"/proc/{pid}")
    return {
        "memory_kib": pss(pid),
        "descriptors": sum(1 for _ in (process / "fd").iterdir()),
        "mappings": (process / "maps").read_text().count("\n"),
    }


def of_family(pids):
    """The sum over processes; those that end meanwhile are left out."""
    total = dict.fromkeys(("memory_kib", "descriptors", "mappings"), 0)
    for pid in pids:
        try:
            for name, value in of_process(pid).items():
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
