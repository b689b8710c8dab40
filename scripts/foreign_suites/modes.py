"""The ways a suite is run: natively, and under the shim at both ends."""

NATIVE, SHIM, EAGER, SUSPEND = "native", "shim", "shim, at once", "shim, suspended"
BUSY = "native, busy"
UNSHIMMED = NATIVE, BUSY


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
