"""Paths in an image."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._image import Image, Name

_MAGIC = frozenset("*?[")


class Path:
    """A path in an image, with the methods of `pathlib.Path`.

    It begins at the root of the image. It is no `os.PathLike`, so that no function takes it for a
    path of this machine.
    """

    __slots__ = ("_image", "_path")

    def __init__(self, image: Image, *parts: str | os.PathLike[str]) -> None:
        self._image = image
        path = PurePosixPath("/", *parts)
        # POSIX keeps a second slash apart; an image does not.
        self._path = PurePosixPath("/" + str(path).lstrip("/"))

    @property
    def image(self) -> Image:
        """The image."""
        return self._image

    @property
    def name(self) -> str:
        return self._path.name

    @property
    def stem(self) -> str:
        return self._path.stem

    @property
    def suffix(self) -> str:
        return self._path.suffix

    @property
    def parts(self) -> tuple[str, ...]:
        return self._path.parts

    @property
    def parent(self) -> Path:
        return Path(self._image, self._path.parent)

    @property
    def parents(self) -> list[Path]:
        return [Path(self._image, parent) for parent in self._path.parents]

    def joinpath(self, *parts: str | os.PathLike[str]) -> Path:
        return Path(self._image, self._path, *parts)

    def __truediv__(self, part: str | os.PathLike[str]) -> Path:
        return self.joinpath(part)

    def with_name(self, name: str) -> Path:
        return Path(self._image, self._path.with_name(name))

    def with_suffix(self, suffix: str) -> Path:
        return Path(self._image, self._path.with_suffix(suffix))

    def relative_to(self, other: Path | str) -> PurePosixPath:
        return self._path.relative_to(str(other))

    def match(self, pattern: str) -> bool:
        return self._path.match(pattern)

    def __str__(self) -> str:
        return str(self._path)

    def __repr__(self) -> str:
        return f"sapwood.Path({self._image.path!r}, {str(self)!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Path):
            return NotImplemented
        return self._image is other._image and self._path == other._path

    def __lt__(self, other: Path) -> bool:
        if not isinstance(other, Path):
            return NotImplemented
        return self._path < other._path

    def __hash__(self) -> int:
        return hash((id(self._image), self._path))

    def open(
        self,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        *,
        permissions: int = 0o644,
    ) -> IO[Any]:
        return self._image.open(
            self, mode, buffering, encoding, errors, newline, permissions=permissions
        )

    def read_bytes(self) -> bytes:
        return self._image.read_bytes(self)

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        return self._image.read_text(self, encoding, errors)

    def write_bytes(self, data: bytes) -> int:
        return self._image.write_bytes(self, data)

    def write_text(self, text: str, encoding: str | None = None, errors: str | None = None) -> int:
        return self._image.write_text(self, text, encoding, errors)

    def touch(self, mode: int = 0o644, exist_ok: bool = True) -> None:
        self.open("ab" if exist_ok else "xb", permissions=mode).close()

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return self._image.stat(self, follow_symlinks=follow_symlinks)

    def lstat(self) -> os.stat_result:
        return self._image.stat(self, follow_symlinks=False)

    def exists(self) -> bool:
        return self._image.exists(self)

    def is_file(self) -> bool:
        return self._image.is_file(self)

    def is_dir(self) -> bool:
        return self._image.is_dir(self)

    def is_symlink(self) -> bool:
        return self._image.is_symlink(self)

    def iterdir(self) -> Iterator[Path]:
        return self._image.iterdir(self)

    def walk(self, top_down: bool = True) -> Iterator[tuple[Path, list[str], list[str]]]:
        return self._image.walk(self, top_down)

    def glob(self, pattern: str) -> Iterator[Path]:
        """The paths below that match a pattern with ``*``, ``?``, ``[...]`` and ``**``."""
        parts = PurePosixPath(pattern).parts
        if not parts or parts[0] == "/":
            raise ValueError(f"unacceptable pattern: {pattern!r}")
        found: set[Path] = set()
        for path in self._glob(parts):
            if path not in found:
                found.add(path)
                yield path

    def rglob(self, pattern: str) -> Iterator[Path]:
        return self.glob(f"**/{pattern}")

    def _glob(self, parts: tuple[str, ...]) -> Iterator[Path]:
        if not parts:
            yield self
            return
        part, rest = parts[0], parts[1:]
        if part == "**":
            if self.is_dir():
                for directory, _, _ in self.walk():
                    yield from directory._glob(rest)
        elif not _MAGIC & set(part):
            path = self / part
            if path.exists() or path.is_symlink():
                yield from path._glob(rest)
        elif self.is_dir():
            for path in self.iterdir():
                if fnmatch.fnmatchcase(path.name, part) and (not rest or path.is_dir()):
                    yield from path._glob(rest)

    def mkdir(self, mode: int = 0o755, parents: bool = False, exist_ok: bool = False) -> None:
        self._image.mkdir(self, mode, parents, exist_ok)

    def rmdir(self) -> None:
        self._image.rmdir(self)

    def unlink(self, missing_ok: bool = False) -> None:
        self._image.unlink(self, missing_ok)

    def rename(self, target: Name) -> Path:
        self._image.rename(self, target)
        return self._image.path_of(target)

    replace = rename

    def symlink_to(self, target: str | os.PathLike[str] | Path) -> None:
        self._image.symlink(target, self)

    def hardlink_to(self, target: Name) -> None:
        self._image.hard_link(target, self)

    def readlink(self) -> str:
        return self._image.readlink(self)

    def resolve(self) -> Path:
        """The path without symbolic links. It must exist."""
        return self._image.resolve(self)

    def chmod(self, mode: int) -> None:
        self._image.chmod(self, mode)
