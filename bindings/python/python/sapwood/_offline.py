"""Images that are not open: check, information, size."""

from __future__ import annotations

import os
import uuid
from typing import Any, NamedTuple, Union

from . import _sapwood
from ._progress import OnProgress, native


class Finding(NamedTuple):
    """A finding of a check.

    ``code`` is a word that stays the same from version to version. A ``warning`` is nothing that is
    lost or in danger.
    """

    code: str
    warning: bool
    text: str


class CheckReport(NamedTuple):
    """The result of a check: whether the image is clean, all findings, and the number of further
    ones."""

    clean: bool
    findings: list[Finding]
    suppressed: int


class Info(NamedTuple):
    """Facts of an image. Sizes are bytes."""

    label: str
    uuid: uuid.UUID
    size: int
    used: int
    free: int
    features: list[str]


_HostPath = Union[str, bytes, "os.PathLike[Any]"]


def check(path: _HostPath, *, data: bool = False, progress: OnProgress = None) -> CheckReport:
    """Checks an image that is not open for writing, and changes nothing. ``data``: reads all data
    too, and compares it with its checksums (btrfs)."""
    clean, findings, suppressed = _sapwood.check(os.fsencode(path), data, native(progress))
    return CheckReport(clean, [Finding(*finding) for finding in findings], suppressed)


def info(path: _HostPath) -> Info:
    """Facts of an image, which is not opened."""
    label, number, size, used, free, features = _sapwood.info(os.fsencode(path))
    return Info(label, uuid.UUID(bytes=bytes(number)), size, used, free, features)


def resize(
    path: _HostPath, size: int | str, *, progress: OnProgress = None
) -> tuple[int, int]:
    """Changes the size of an image that is not open. ``size`` is bytes, or a text: ``"min"``,
    ``"2G"``, ``"+512M"``, ``"-1G"``. Returns the sizes before and after."""
    return _sapwood.resize(os.fsencode(path), str(size), native(progress))
