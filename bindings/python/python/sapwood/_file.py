"""Files of an image as the file objects of `io`."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import IO, Any

from . import _sapwood

_BUFFER = 128 << 10


class RawFile(io.RawIOBase):
    """A file of an image without a buffer. Threads share its position."""

    def __init__(self, file: _sapwood.File, name: str, mode: str) -> None:
        super().__init__()
        self._file = file
        self.after_close: Callable[[], object] | None = None
        self.name = name
        self.mode = mode
        self._readable = "r" in mode or "+" in mode
        self._writable = mode != "rb"

    def readable(self) -> bool:
        return self._readable

    def writable(self) -> bool:
        return self._writable

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._need(self._readable, "readable")
        view = memoryview(buffer).cast("B")
        data = self._file.read(len(view))
        view[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        self._need(self._readable, "readable")
        return self._file.read_all()

    def write(self, data: Any) -> int:
        self._need(self._writable, "writable")
        return self._file.write(data if isinstance(data, bytes) else bytes(data))

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.seek(0, os.SEEK_CUR)

    def truncate(self, size: int | None = None) -> int:
        self._need(self._writable, "writable")
        size = self.tell() if size is None else size
        self._file.truncate(size)
        return size

    def sync(self) -> None:
        """Makes content and metadata durable, as `os.fsync`. Flush the buffers above first."""
        self._file.sync()

    def close(self) -> None:
        after, self.after_close = self.after_close, None
        try:
            super().close()
        finally:
            self._file.close()
        if after is not None:
            after()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"mode={self.mode!r}"
        return f"<sapwood file {self.name!r} {state}>"

    @staticmethod
    def _need(allowed: bool, what: str) -> None:
        if not allowed:
            raise io.UnsupportedOperation(f"not {what}")


def open_file(
    image: _sapwood.Image,
    path: bytes,
    mode: str,
    buffering: int,
    encoding: str | None,
    errors: str | None,
    newline: str | None,
    permissions: int,
) -> IO[Any]:
    """Opens a file as the builtin ``open`` does. The default encoding is UTF-8."""
    action, updating, binary = _parse(mode)
    if binary and (encoding, errors, newline) != (None, None, None):
        raise ValueError("binary mode takes no encoding, errors or newline")
    if buffering == 0 and not binary:
        raise ValueError("can't have unbuffered text I/O")
    file = image.open_file(
        path,
        {
            "read": action == "r" or updating,
            "write": action in "wx" or (action == "r" and updating),
            "append": action == "a",
            "truncate": action == "w",
            "create": action in "wa",
            "create_new": action == "x",
            "permissions": permissions,
        },
    )
    raw = RawFile(file, os.fsdecode(path), f"{action}b{'+' if updating else ''}")
    try:
        if action == "a":
            raw.seek(0, os.SEEK_END)
        if buffering == 0:
            return raw  # type: ignore[return-value]
        size = buffering if buffering > 1 else _BUFFER
        buffered: io.BufferedRandom | io.BufferedReader | io.BufferedWriter
        if updating:
            buffered = io.BufferedRandom(raw, size)
        elif action == "r":
            buffered = io.BufferedReader(raw, size)
        else:
            buffered = io.BufferedWriter(raw, size)
        if binary:
            return buffered
        lines = buffering == 1
        text = io.TextIOWrapper(buffered, encoding or "utf-8", errors, newline, lines)
        text.mode = mode  # type: ignore[misc]
        return text
    except BaseException:
        raw.close()
        raise


def _parse(mode: str) -> tuple[str, bool, bool]:
    """The action (one of r, w, a, x), whether it has a plus, whether it is binary."""
    letters = set(mode)
    actions = letters & set("rwax")
    known = letters <= set("rwax+bt") and len(letters) == len(mode)
    if not known or len(actions) != 1 or {"b", "t"} <= letters:
        raise ValueError(f"invalid mode: {mode!r}")
    return actions.pop(), "+" in letters, "b" in letters
