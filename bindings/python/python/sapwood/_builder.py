"""New images."""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
import uuid as uuids
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO, Union

from . import _sapwood
from ._image import HostPath, host_path
from ._progress import OnProgress, native

_FORMATS = ("btrfs", "ext4")


class ImageBuilder:
    """Makes an image from directories, files and archives.

    The sources are applied in the order of the calls: a later file replaces an earlier one of its
    name, and directories are merged. The calls return the builder, so they can be chained.
    """

    def __init__(
        self,
        format: str,
        *,
        label: str | None = None,
        uuid: uuids.UUID | None = None,
        time: int | None = None,
        reproducible: bool = False,
        owner: tuple[int, int] | None = None,
        all_root: bool = False,
        exclude: Iterable[str] = (),
        options: Mapping[str, str | None] | None = None,
    ) -> None:
        """``format`` is ``"btrfs"`` or ``"ext4"``. ``time``, in seconds since 1970, is every time
        that no source has. A ``reproducible`` image depends on its sources and options alone.
        ``owner`` is the root directory's, ``all_root`` gives all files to root, ``exclude`` are
        patterns of paths that are left out, and ``options`` are options of mkfs by their names
        (``{"inode-size": "512"}``)."""
        if format not in _FORMATS:
            raise ValueError(f"format {format!r}: {' or '.join(_FORMATS)}")
        self._what: dict[str, Any] = {
            "format": format,
            "label": label,
            "uuid": None if uuid is None else list(uuid.bytes),
            "time": None if time is None else time * 1_000_000_000,
            "reproducible": reproducible,
            "owner": owner,
            "all_root": all_root,
            "exclude": list(exclude),
            "options": list((options or {}).items()),
        }
        self._sources: list[tuple[str, Any]] = []
        self._files: _Files | None = None

    def add_tree(self, path: HostPath) -> ImageBuilder:
        """Adds everything that is in a directory, as ``cp -a`` copies it. The directory itself
        becomes the root."""
        if not os.path.isdir(path):
            os.listdir(path)
        return self._add("tree", host_path(path))

    def add_tar(self, archive: HostPath | BinaryIO) -> ImageBuilder:
        """Adds the files of a tar archive, plain or compressed: a path of this machine, or a binary
        file object, which `build` reads once."""
        return self._add_archive("tar", archive)

    def add_layer(self, archive: HostPath | BinaryIO) -> ImageBuilder:
        """Adds a layer of a container image, whose whiteouts hide files of the sources before it.
        Otherwise as `add_tar`."""
        return self._add_archive("layer", archive)

    def add_oci(self, path: HostPath) -> ImageBuilder:
        """Adds a container image: an OCI layout or an archive of ``docker save``; ``PATH:TAG``
        chooses one of several."""
        return self._add("oci", host_path(path))

    def add_file(
        self,
        source: HostPath | BinaryIO,
        target: str,
        *,
        mode: int = 0o644,
        uid: int = 0,
        gid: int = 0,
        mtime: float = 0,
    ) -> ImageBuilder:
        """Adds the content of a file of this machine or of a binary file object, which is read now,
        as the file ``target`` of the image."""
        if isinstance(source, (str, bytes, os.PathLike)):
            with io.open(source, "rb") as file:
                return self.add_file(
                    file, target, mode=mode, uid=uid, gid=gid, mtime=mtime
                )
        entry = tarfile.TarInfo(_inside(target))
        entry.mode, entry.uid, entry.gid, entry.mtime = mode, uid, gid, mtime
        self._open_files().add(entry, source)
        return self

    def add_bytes(
        self,
        data: bytes,
        target: str,
        *,
        mode: int = 0o644,
        uid: int = 0,
        gid: int = 0,
        mtime: float = 0,
    ) -> ImageBuilder:
        """Adds these bytes as the file ``target`` of the image."""
        source = io.BytesIO(data)
        return self.add_file(source, target, mode=mode, uid=uid, gid=gid, mtime=mtime)

    def add_directory(
        self, target: str, *, mode: int = 0o755, uid: int = 0, gid: int = 0, mtime: float = 0
    ) -> ImageBuilder:
        """Adds a directory."""
        entry = tarfile.TarInfo(_inside(target))
        entry.type = tarfile.DIRTYPE
        entry.mode, entry.uid, entry.gid, entry.mtime = mode, uid, gid, mtime
        self._open_files().add(entry)
        return self

    def add_symlink(self, content: str, target: str, *, mtime: float = 0) -> ImageBuilder:
        """Adds the symbolic link ``target`` that contains ``content``."""
        entry = tarfile.TarInfo(_inside(target))
        entry.type, entry.linkname, entry.mtime = tarfile.SYMTYPE, content, mtime
        entry.mode = 0o777
        self._open_files().add(entry)
        return self

    def build(
        self,
        path: HostPath,
        size: int | str | None = None,
        *,
        free: int | str | None = None,
        free_inodes: int = 0,
        output: str = "raw",
        replace: bool = True,
        progress: OnProgress = None,
    ) -> int:
        """Makes the image, and returns the bytes of its file.

        Without a ``size`` (bytes, or ``"2G"``) the image is as small as it can be, with ``free``
        space (bytes, ``"64M"`` or ``"10%"``) and ``free_inodes`` for files that are added later to an
        ext4 (btrfs makes inodes as it needs them). ``output`` is the format of the file: ``"raw"``,
        ``"qcow2"``, ``"vhd"``, ``"zstd"``, ``"android-sparse"``. The file gets its name when it is
        complete.
        """
        if self._files is not None:
            self._files.end()
            self._files = None
        what = {
            **self._what,
            "size": _sapwood.parse_size(size) if isinstance(size, str) else size,
            "free": None if free is None else str(free),
            "free_inodes": free_inodes,
            "output": output,
            "replace": replace,
            "sources": [
                (kind, host_path(source.name) if isinstance(source, _Files) else source)
                for kind, source in self._sources
            ],
            "progress": native(progress),
        }
        return _sapwood.build(host_path(path), what)

    def _add(self, kind: str, source: Any) -> ImageBuilder:
        if self._files is not None:
            self._files.end()
            self._files = None
        self._sources.append((kind, source))
        return self

    def _add_archive(self, kind: str, archive: Union[HostPath, BinaryIO]) -> ImageBuilder:
        if not isinstance(archive, (str, bytes, os.PathLike)):
            return self._add(f"{kind}-stream", archive)
        os.stat(archive)
        return self._add(kind, host_path(archive))

    def _open_files(self) -> _Files:
        if self._files is None:
            files = _Files()
            self._add("tar", files)
            self._files = files
        return self._files


class _Files:
    """Files that were added one by one, in a temporary archive."""

    def __init__(self) -> None:
        self._file = tempfile.NamedTemporaryFile(prefix="sapwood-", suffix=".tar")
        self._archive = tarfile.open(
            fileobj=self._file,
            mode="w",
            format=tarfile.PAX_FORMAT,
            encoding="utf-8",
            errors="surrogateescape",
        )

    @property
    def name(self) -> str:
        return self._file.name

    def add(self, entry: tarfile.TarInfo, source: Any = None) -> None:
        if source is None:
            self._archive.addfile(entry)
            return
        with tempfile.SpooledTemporaryFile(max_size=1 << 20) as content:
            while data := source.read(1 << 20):
                content.write(data)
            entry.size = content.tell()
            content.seek(0)
            self._archive.addfile(entry, content)

    def end(self) -> None:
        self._archive.close()
        self._file.flush()


def _inside(target: str) -> str:
    name = os.fspath(target).strip("/")
    if not name or "\0" in name:
        raise ValueError(f"no name of a file: {target!r}")
    return name
