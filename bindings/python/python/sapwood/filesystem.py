"""Images for fsspec, and so for pandas, dask and others.

    with fsspec.open("sapwood://etc/os-release", image="disk.img") as file:
        print(file.read())
    pandas.read_csv("sapwood://data.csv", storage_options={"image": "disk.img"})

The package registers the protocol ``sapwood``. ``image`` is the image file; ``writable``,
``options`` and ``subvolume`` are as of `sapwood.open`. A chain ``sapwood://data.csv::disk.img``
names the image, too.
"""

from __future__ import annotations

import stat as modes
from datetime import datetime, timezone
from functools import partial
from typing import Any

from fsspec.spec import AbstractFileSystem

from ._image import Image
from ._path import Path


class SapwoodFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """The files of an image. A file that was written is durable when it is closed. The image is
    closed by `close`, or when the file system and its open files are gone."""

    protocol = "sapwood"
    root_marker = ""
    # A file system that stays in a cache would keep its image locked.
    cachable = False

    def __init__(
        self,
        image: Any = None,
        writable: bool = False,
        *,
        options: str = "",
        subvolume: Any = None,
        fo: Any = None,
        target_protocol: str | None = None,
        target_options: Any = None,
        **storage_options: Any,
    ) -> None:
        super().__init__(**storage_options)
        if target_protocol not in (None, "file", "local"):
            raise ValueError(f"an image cannot be at {target_protocol}: it is a local file")
        path = fo if image is None else image
        if path is None:
            raise ValueError("sapwood:// needs an image: image='disk.img'")
        self.image = Image(path, writable, options=options, subvolume=subvolume)

    def close(self) -> None:
        """Makes everything durable, and closes the image."""
        self.image.close()

    def __del__(self) -> None:
        image = getattr(self, "image", None)
        if image is not None:
            image.close()

    def _path(self, path: str) -> Path:
        return Path(self.image, self._strip_protocol(path))

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        if "b" not in mode:
            mode += "b"
        file: Any = self.image.open(self._path(path), mode)
        # The file uses the image, so it keeps the file system until it is closed.
        file.raw.after_close = partial(self._closed, file.writable())
        return file

    def _closed(self, written: bool) -> None:
        if written and not self.image.closed:
            self.image.sync()

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        name = self._path(path)
        return self._facts(name, follow=True)

    def _facts(self, path: Path, follow: bool) -> dict[str, Any]:
        found = path.lstat()
        link = modes.S_ISLNK(found.st_mode)
        facts: dict[str, Any] = {"name": str(path).lstrip("/"), "islink": link}
        if link:
            facts["destination"] = path.readlink()
            try:
                found = path.stat()
            except OSError:
                # A link that leads to nothing has its own metadata.
                if follow:
                    raise
        if modes.S_ISDIR(found.st_mode):
            kind = "directory"
        else:
            kind = "file" if modes.S_ISREG(found.st_mode) else "other"
        return {
            **facts,
            "size": found.st_size if kind == "file" else 0,
            "type": kind,
            "mode": found.st_mode,
            "uid": found.st_uid,
            "gid": found.st_gid,
            "ino": found.st_ino,
            "nlink": found.st_nlink,
            "mtime": found.st_mtime,
            "created": found.st_ctime,
        }

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        top = self._path(path)
        if top.is_dir():
            found = [self._facts(child, follow=False) for child in sorted(top.iterdir())]
        else:
            found = [self._facts(top, follow=True)]
        return found if detail else [facts["name"] for facts in found]

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        self._path(path).mkdir(parents=create_parents)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        self._path(path).mkdir(parents=True, exist_ok=exist_ok)

    def rmdir(self, path: str) -> None:
        self._path(path).rmdir()

    def rm_file(self, path: str) -> None:
        self._path(path).unlink()

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        if maxdepth is not None:
            raise NotImplementedError("rm with maxdepth")
        for name in self.expand_path(path):
            found = self._path(name)
            if not found.is_dir() or found.is_symlink():
                found.unlink()
            elif recursive:
                self.image.rmtree(found)
            else:
                found.rmdir()

    def mv(self, path1: str, path2: str, **_: Any) -> None:
        self._path(path1).rename(self._path(path2))

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        if self._path(path1).is_dir():
            self.makedirs(path2, exist_ok=True)
        else:
            self.image.copy(self._path(path1), self._path(path2))

    def modified(self, path: str) -> datetime:
        return datetime.fromtimestamp(self._path(path).stat().st_mtime, tz=timezone.utc)

    def created(self, path: str) -> datetime:
        return datetime.fromtimestamp(self._path(path).stat().st_ctime, tz=timezone.utc)

    def sync(self) -> None:
        """Makes everything durable."""
        self.image.sync()
