"""The ways a suite is run: natively, and under the shim at both ends."""
import collections
import re

NATIVE, SHIM, EAGER, SUSPEND = "native", "shim", "shim, at once", "shim, suspended"
BUSY = "native, busy"
UNSHIMMED = NATIVE, BUSY

# A connection's change, as the library logs it; the connector's lines count, so that each connection does once.
CONNECTION = re.compile(r"^sanshim\[(\d+)\] info: fd \d+: (\S+) (\S+) provider=(\w+) reason=(\S+) role=connector", re.MULTILINE)


def of(suite, short=False):
    return [SHIM, EAGER, SUSPEND] if suite.forks and not short else [SHIM, EAGER]


def wrap(mode, command, sanctl, folder, logged):
    """The command and the environment for a mode, with a log in the folder or without."""
    if mode in UNSHIMMED:
        return command, {}
    extra = {}
    if mode != SHIM:
        extra["SANSHIM_MOVE_AFTER"] = "0"
    if mode == SUSPEND:
        rules = folder / "rules.toml"
        rules.write_text('[shm]\nswap = "suspend"\n')
        extra["SANSHIM_CONFIG"] = str(rules)
    log = ["--log", "info", "--log-file", str(folder / "log")] if logged else []
    return [sanctl, "run", *log, "--", *command], extra


def connections(folder):
    """How many connections the log tells of, and how many of these were on the SAN at some time."""
    log = folder / "log"
    seen = collections.defaultdict(set)
    if log.exists():
        for pid, local, peer, provider, _ in CONNECTION.findall(log.read_text(errors="replace")):
            seen[pid, local, peer].add(provider)
    return len(seen), sum("tcp" not in each or len(each) > 1 for each in seen.values())
