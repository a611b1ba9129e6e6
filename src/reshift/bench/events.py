"""What a running benchmark tells whoever watches it."""

from typing import Literal, NamedTuple

Kind = Literal["started", "done", "failed", "cached"]


class Event(NamedTuple):
    """One change in the life of one cell."""

    kind: Kind
    cell: str
    seconds: float = 0.0
    figure: str = ""
