"""Configures the library for each mode."""

EARLY = {"SANSHIM_MOVE_AFTER": "0"}


def by_rdma(operations):
    return f'[shm]\nrdma_threshold = 512\nrdma_operations = "{operations}"\n'


# The environment of each mode, and the text of its rules file.
MODES = {
    "default": ({}, None),
    "early": (EARLY, None),
    # The coordinator asks connections back to TCP where the program says `* detach`.
    "detach": (EARLY, None),
    "read": (EARLY, by_rdma("read")),
    "write": (EARLY, by_rdma("write")),
    "both": (EARLY, by_rdma("both")),
    "suspend": (EARLY, '[shm]\nswap = "suspend"\n'),
}
# As between hosts, over the objects of shared memory. Only where it is named: a link loses what a killed process sent
# (docs/reference/other-hosts.md).
BY_NAME = {"link": (EARLY | {"SANSHIM_PROVIDERS": "shm-objects"}, None)}
NATIVE = "native"


def environment(mode, library, folder, log=None):
    if mode == NATIVE:
        return {}
    values, rules = (MODES | BY_NAME)[mode]
    values = {**values, "LD_PRELOAD": library}
    if rules:
        path = folder / f"{mode}.toml"
        path.write_text(rules)
        values["SANSHIM_CONFIG"] = str(path)
    if log:
        values |= {"SANSHIM_LOG": "info", "SANSHIM_LOG_FILE": str(log)}
    return values
