"""What the user must read."""


class Failure(Exception):
    """The run cannot go on, or a suite cannot be had here."""
