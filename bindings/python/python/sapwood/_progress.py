"""Progress of long work."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Optional


class Progress(NamedTuple):
    """The state of long work.

    ``phase`` is a word for people. ``done`` and ``total`` count the things of the phase; a total of
    0 is not known. ``bytes`` counts the content that was copied.
    """

    phase: str
    done: int
    total: int
    bytes: int


OnProgress = Optional[Callable[[Progress], object]]


def native(progress: OnProgress) -> Callable[[str, int, int, int], object] | None:
    """The callback as the extension module calls it."""
    if progress is None:
        return None
    return lambda phase, done, total, count: progress(Progress(phase, done, total, count))
