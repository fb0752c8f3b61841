"""Archives and streams of directories, and their differences."""

from __future__ import annotations

import contextlib
import io
import os
import stat as modes
import tempfile
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple, Union

from . import _sapwood
from ._progress import OnProgress, native

HostPath = Union[str, bytes, "os.PathLike[Any]"]


class ExportReport(NamedTuple):
    """The result of an export.

    ``left_out`` counts sockets, which an archive cannot have, and ``damaged`` files that could not
    be read or only in part. ``diff_id`` and ``digest`` are the SHA-256 of the archive before and
    after compression, in hexadecimal.
    """

    entries: int
    left_out: int
    damaged: int
    size: int
    diff_id: str
    digest: str


class Difference(NamedTuple):
    """One difference of two directories.

    ``kind`` is ``"added"``, ``"removed"``, ``"renamed"`` or ``"changed"``. ``path`` is the path
    from the new directory, or from the old one of what was removed. ``old_path`` is set for what was
    renamed. ``parts`` names what differs in a changed file: content, size, mtime, mode, uid, gid,
    xattrs.
    """

    kind: str
    path: str
    old_path: str | None
    mode: int
    parts: frozenset[str]

    @property
    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return modes.S_ISDIR(self.mode)


@contextlib.contextmanager
def new_file(file: HostPath | BinaryIO) -> Iterator[Any]:
    """The file object to write to. A path gets a new file when the work is done: without it there
    is no file, or the old one."""
    if not isinstance(file, (str, bytes, os.PathLike)):
        yield file
        return
    path = os.fsdecode(file)
    directory = os.path.dirname(path) or "."
    try:
        number, name = tempfile.mkstemp(prefix=".sapwood-", dir=directory)
    except OSError as error:
        error.filename = path
        raise
    try:
        with io.open(number, "wb", buffering=0) as opened:
            os.fchmod(number, 0o666 & ~_umask())
            yield opened
            os.fsync(number)
        os.replace(name, path)
    except BaseException as error:
        os.unlink(name)
        if isinstance(error, OSError) and error.filename == name:
            error.filename = path
        raise


def _umask() -> int:
    """The umask of the process, which only Linux tells without changing it."""
    with io.open("/proc/self/status") as status:
        for line in status:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o022


def export(
    image: _sapwood.Image, directory: bytes, file: HostPath | BinaryIO, how: dict[str, Any]
) -> ExportReport:
    """Writes a directory as a tar archive."""
    with new_file(file) as opened:
        found = _sapwood.export(image, directory, opened, how)
    return ExportReport(*found[:4], bytes(found[4]).hex(), bytes(found[5]).hex())


def send(
    image: _sapwood.Image, snapshot: bytes, file: HostPath | BinaryIO, how: dict[str, Any]
) -> None:
    """Writes a snapshot as a stream."""
    with new_file(file) as opened:
        _sapwood.send(image, snapshot, opened, how)


def receive(
    image: _sapwood.Image,
    directory: bytes,
    file: HostPath | BinaryIO,
    resume: bool,
    progress: OnProgress,
) -> list[str]:
    """Makes the subvolumes of a stream."""
    callback = native(progress)
    if not isinstance(file, (str, bytes, os.PathLike)):
        names = _sapwood.receive(image, directory, file, resume, callback)
    else:
        with io.open(file, "rb") as opened:
            names = _sapwood.receive(image, directory, opened, resume, callback)
    return [os.fsdecode(name) for name in names]


def diff(
    old: tuple[_sapwood.Image, bytes], new: tuple[_sapwood.Image, bytes], content: bool
) -> list[Difference]:
    """The differences of two directories."""
    return [
        Difference(
            kind,
            os.fsdecode(path),
            None if old_path is None else os.fsdecode(old_path),
            mode,
            frozenset(parts),
        )
        for kind, path, old_path, mode, parts in _sapwood.diff(old, new, content)
    ]
