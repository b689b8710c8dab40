"""The services, and what they send."""

import hashlib

ALL = {}
WORDS = "\n".join(f"line {i} {hashlib.sha256(str(i).encode()).hexdigest()}" for i in range(3000))


def service(*packages):
    """A service that needs these packages. Its function gives what the clients were told, which is to be the same in each mode; a
    client that fails ends the run."""

    def register(function):
        function.packages = packages
        ALL[function.__name__.replace("_", "-")] = function
        return function

    return register


def bytes_of(size):
    return (WORDS.encode() * (size // len(WORDS) + 1))[:size]


def digest(*parts):
    """One name for what would be long to show."""
    return hashlib.sha256(b"".join(parts)).hexdigest()
