"""Open images."""

from __future__ import annotations

import errno
import io
import os
import stat as modes
import warnings
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import IO, Any, BinaryIO, NamedTuple, Union

from . import _sapwood, _streams
from ._file import open_file
from ._offline import CheckReport, check
from ._path import Path
from ._progress import OnProgress, native
from ._streams import Difference, ExportReport

Name = Union[str, bytes, "os.PathLike[Any]", Path]
HostPath = Union[str, bytes, "os.PathLike[Any]"]


class Subvolume(NamedTuple):
    """A subvolume of a btrfs; its path begins at the top level."""

    id: int
    path: str
    read_only: bool


class Space(NamedTuple):
    """Bytes of a file system, as `shutil.disk_usage` names them."""

    total: int
    used: int
    free: int


def open(
    path: HostPath,
    writable: bool = False,
    *,
    options: str = "",
    subvolume: HostPath | None = None,
    owner: tuple[int, int] | None = None,
) -> Image:
    """Opens an image file or a block device.

    ``options`` are mount options (``"compress=zstd"``), ``subvolume`` is the path of a btrfs
    subvolume from the top level, and ``owner`` gets the files that are created (the caller, if it
    is not given). No other process can open the image meanwhile, unless both only read.
    """
    return Image(path, writable, options=options, subvolume=subvolume, owner=owner)


class Image:
    """An open image. It is a context manager; any number of threads may use it.

    Changes are durable after `sync` and `close`. Close the files of an image before it.
    """

    def __init__(
        self,
        path: HostPath,
        writable: bool = False,
        *,
        options: str = "",
        subvolume: HostPath | None = None,
        owner: tuple[int, int] | None = None,
    ) -> None:
        self.path: str = os.fsdecode(path)
        self.writable: bool = writable
        place = None if subvolume is None else host_path(subvolume)
        self._native = _sapwood.Image(host_path(path), writable, options, place)
        if owner is not None:
            self._native.set_creator(*owner)

    def close(self) -> None:
        """Makes everything durable and ends. A second call does nothing."""
        self._native.close()

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self._native.closed

    @property
    def format(self) -> str:
        """``"btrfs"`` or ``"ext4"``."""
        return self._native.format

    @property
    def root(self) -> Path:
        """The root directory."""
        return Path(self)

    def __enter__(self) -> Image:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        image = getattr(self, "_native", None)
        if image is not None and self.writable and not image.closed:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=2)

    def __truediv__(self, part: str | os.PathLike[str]) -> Path:
        return Path(self, part)

    def __repr__(self) -> str:
        return f"<sapwood image {self.path!r}{' closed' if self.closed else ''}>"

    def path_of(self, name: Name) -> Path:
        """The `Path` of a name."""
        return name if isinstance(name, Path) else Path(self, os.fsdecode(name))

    def _bytes(self, name: Name) -> bytes:
        if not isinstance(name, Path):
            return host_path(name)
        if name.image is not self:
            raise ValueError(f"{name!r} is in another image")
        return host_path(str(name))

    def open(
        self,
        path: Name,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        *,
        permissions: int = 0o644,
    ) -> IO[Any]:
        """Opens a file as the builtin ``open`` does. The default encoding is UTF-8; a new file gets
        these permission bits."""
        name = self._bytes(path)
        return open_file(
            self._native, name, mode, buffering, encoding, errors, newline, permissions
        )

    def read_bytes(self, path: Name) -> bytes:
        """The content of a file."""
        with self.open(path, "rb", 0) as file:
            data: bytes = file.read()
        return data

    def read_text(
        self, path: Name, encoding: str | None = None, errors: str | None = None
    ) -> str:
        """The content of a file as text."""
        with self.open(path, "r", encoding=encoding, errors=errors) as file:
            text: str = file.read()
        return text

    def write_bytes(self, path: Name, data: bytes) -> int:
        """Writes a whole file; creates it, or replaces its content."""
        # A value that is not bytes must not empty the file.
        memoryview(data)
        with self.open(path, "wb", 0) as file:
            return file.write(data)

    def write_text(
        self, path: Name, text: str, encoding: str | None = None, errors: str | None = None
    ) -> int:
        """Writes a whole file of text."""
        if not isinstance(text, str):
            raise TypeError(f"data must be str, not {type(text).__name__}")
        with self.open(path, "w", encoding=encoding, errors=errors) as file:
            return file.write(text)

    def stat(self, path: Name, *, follow_symlinks: bool = True) -> os.stat_result:
        """Metadata of a file, as `os.stat`."""
        return _stat_result(self._native.stat(self._bytes(path), follow_symlinks))

    def lstat(self, path: Name) -> os.stat_result:
        """Metadata of a file; of a symbolic link itself."""
        return self.stat(path, follow_symlinks=False)

    def _mode(self, path: Name, follow: bool = True) -> int:
        """The type and permissions of a file; 0 if there is none."""
        try:
            return self.stat(path, follow_symlinks=follow).st_mode
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return 0
            raise

    def exists(self, path: Name) -> bool:
        """Whether something is at a path."""
        return self._mode(path) != 0

    def is_file(self, path: Name) -> bool:
        """Whether a regular file is at a path."""
        return modes.S_ISREG(self._mode(path))

    def is_dir(self, path: Name) -> bool:
        """Whether a directory is at a path."""
        return modes.S_ISDIR(self._mode(path))

    def is_symlink(self, path: Name) -> bool:
        """Whether a symbolic link is at a path."""
        return modes.S_ISLNK(self._mode(path, follow=False))

    def listdir(self, path: Name = "/") -> list[str]:
        """The names of a directory, in no particular order."""
        return [os.fsdecode(name) for name, _, _ in self._native.entries(self._bytes(path))]

    def iterdir(self, path: Name = "/") -> Iterator[Path]:
        """The paths of a directory, in no particular order."""
        top = self.path_of(path)
        return iter([top / name for name in self.listdir(path)])

    def walk(
        self, top: Name = "/", top_down: bool = True
    ) -> Iterator[tuple[Path, list[str], list[str]]]:
        """Each directory below ``top`` with the names of its directories and of its other files, as
        `pathlib.Path.walk`: symbolic links are not followed, and the caller may change the list of
        directories. `OSError` if a damaged image has a directory below itself."""
        yield from self._walk(self.path_of(top), top_down, frozenset())

    def _walk(
        self, top: Path, top_down: bool, above: frozenset[int]
    ) -> Iterator[tuple[Path, list[str], list[str]]]:
        directories: list[str] = []
        others: list[str] = []
        inodes: dict[str, int] = {}
        for data, kind, inode in self._native.entries(self._bytes(top)):
            name = os.fsdecode(data)
            (directories if modes.S_ISDIR(kind) else others).append(name)
            inodes[name] = inode
        if top_down:
            yield top, directories, others
        for name in directories:
            path, inode = top / name, inodes.get(name, -1)
            if inode in above:
                raise OSError(errno.EUCLEAN, "a directory is below itself", str(path))
            yield from self._walk(path, top_down, above | {inode})
        if not top_down:
            yield top, directories, others

    def glob(self, pattern: str) -> Iterator[Path]:
        """The paths that match a pattern with ``*``, ``?``, ``[...]`` and ``**``."""
        return self.root.glob(pattern.lstrip("/"))

    def resolve(self, path: Name) -> Path:
        """The path without symbolic links. It must exist."""
        return Path(self, os.fsdecode(self._native.canonical(self._bytes(path))))

    def mkdir(
        self, path: Name, mode: int = 0o755, parents: bool = False, exist_ok: bool = False
    ) -> None:
        """Creates a directory."""
        name = self._bytes(path)
        if not name.strip(b"/"):
            if exist_ok:
                return
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        if parents:
            above = os.path.dirname(name.rstrip(b"/"))
            if above.strip(b"/"):
                self._native.mkdir_all(above, 0o755)
        try:
            self._native.mkdir(name, mode)
        except FileExistsError:
            if not (exist_ok and self.is_dir(path)):
                raise

    def rmdir(self, path: Name) -> None:
        """Removes an empty directory."""
        self._native.rmdir(self._bytes(path))

    def unlink(self, path: Name, missing_ok: bool = False) -> None:
        """Removes a name of anything but a directory."""
        try:
            self._native.unlink(self._bytes(path))
        except FileNotFoundError:
            if not missing_ok:
                raise

    def rmtree(self, path: Name, *, progress: OnProgress = None) -> None:
        """Removes a directory with everything below it. Symbolic links are not followed."""
        self._native.remove_tree(self._bytes(path), native(progress))

    def rename(self, source: Name, target: Name, *, replace: bool = True) -> None:
        """Renames; replaces a file or an empty directory at ``target``, unless ``replace`` is
        false."""
        self._native.rename(self._bytes(source), self._bytes(target), replace)

    def symlink(self, target: Name, link: Name) -> None:
        """Creates the symbolic link ``link`` that contains ``target``."""
        content = str(target) if isinstance(target, Path) else target
        self._native.symlink(host_path(content), self._bytes(link))

    def hard_link(self, original: Name, link: Name) -> None:
        """Gives a file one more name, ``link``."""
        self._native.link(self._bytes(original), self._bytes(link))

    def readlink(self, path: Name) -> str:
        """The target of a symbolic link."""
        return os.fsdecode(self._native.readlink(self._bytes(path)))

    def chmod(self, path: Name, mode: int) -> None:
        """Sets permission, set-id and sticky bits."""
        self._native.chmod(self._bytes(path), mode)

    def chown(self, path: Name, uid: int | None = None, gid: int | None = None) -> None:
        """Sets owner and group, as far as they are given; of a symbolic link itself."""
        self._native.chown(self._bytes(path), uid, gid)

    def utime(self, path: Name, *, ns: tuple[int, int]) -> None:
        """Sets the times of the last access and of the last change, in nanoseconds since 1970."""
        self._native.utime(self._bytes(path), *ns)

    def getxattr(self, path: Name, name: str) -> bytes:
        """The value of an extended attribute (``user.x``); of a symbolic link itself."""
        value = self._native.xattr(self._bytes(path), host_path(name))
        if value is None:
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA), str(path))
        return value

    def listxattr(self, path: Name) -> list[str]:
        """The names of all extended attributes; of a symbolic link itself."""
        return [os.fsdecode(name) for name in self._native.xattrs(self._bytes(path))]

    def setxattr(self, path: Name, name: str, value: bytes) -> None:
        """Sets an extended attribute; of a symbolic link itself."""
        self._native.set_xattr(self._bytes(path), host_path(name), value)

    def removexattr(self, path: Name, name: str) -> None:
        """Removes an extended attribute; of a symbolic link itself."""
        self._native.set_xattr(self._bytes(path), host_path(name), None)

    def copy(self, source: Name, target: Name) -> int:
        """Copies the content and the permission bits of a file within the image; btrfs shares the
        content. Returns the number of bytes."""
        return self._native.copy(self._bytes(source), self._bytes(target))

    def copy_in(
        self,
        source: HostPath,
        target: Name,
        *,
        archive: bool = False,
        owner: tuple[int, int] | None = None,
        permissions: int | None = None,
        existing: str = "replace",
        progress: OnProgress = None,
    ) -> int:
        """Copies a file or directory of this machine into the image, as ``cp -r``, or ``cp -a`` if
        ``archive``: into ``target`` if it is a directory, else to that name.

        ``owner`` and ``permissions`` replace those of the source. ``existing`` is ``"replace"``,
        ``"keep"`` or ``"keep-newer"``. Returns the number of names that were copied. What cannot be
        copied is left out, and the first such error is raised at the end.
        """
        how = _copying(archive, owner, permissions, existing, progress)
        return self._native.copy_in(host_path(source), self._bytes(target), how)

    def copy_out(
        self,
        source: Name,
        target: HostPath,
        *,
        archive: bool = False,
        existing: str = "replace",
        progress: OnProgress = None,
    ) -> int:
        """Copies a file or directory of the image to this machine. Otherwise as `copy_in`."""
        how = _copying(archive, None, None, existing, progress)
        return self._native.copy_out(self._bytes(source), host_path(target), how)

    def extract_tar(
        self, archive: HostPath | BinaryIO, target: Name = "/", *, progress: OnProgress = None
    ) -> None:
        """Puts the files of a tar archive, plain or compressed, into a directory. ``archive`` is a
        path of this machine or a binary file object."""
        if not isinstance(archive, (str, bytes, os.PathLike)):
            self._native.extract_tar(archive, self._bytes(target), native(progress))
            return
        with io.open(archive, "rb") as file:
            self._native.extract_tar(file, self._bytes(target), native(progress))

    def export(
        self,
        file: HostPath | BinaryIO,
        source: Name = "/",
        *,
        since: Name | tuple[Image, Name] | None = None,
        layer: bool = False,
        compression: str = "",
        progress: OnProgress = None,
    ) -> ExportReport:
        """Writes a directory to a tar archive: a path of this machine, or a binary file object.

        ``since`` is a directory of this image, or an image and a directory of it: then the archive
        has the changes alone, as a layer of a container image. ``layer`` makes a layer of a whole
        directory. ``compression`` is ``"gzip"`` or ``"zstd"``. A path gets its file when it is
        complete.
        """
        base = None
        if since is not None:
            other, name = since if isinstance(since, tuple) else (self, since)
            base = (other._native, other._bytes(name))
        how = {
            "since": base,
            "layer": layer or since is not None,
            "compression": compression,
            "progress": native(progress),
        }
        return _streams.export(self._native, self._bytes(source), file, how)

    def send(
        self,
        file: HostPath | BinaryIO,
        snapshot: Name = "/",
        *,
        parent: Name | None = None,
        clone_sources: Iterable[Name] = (),
        version: int = 1,
        data: bool = True,
        progress: OnProgress = None,
    ) -> None:
        """Writes a read-only snapshot of a btrfs as a stream of `btrfs send`, with ``parent`` only
        the changes since that snapshot. ``file`` is a path of this machine, which gets its file
        when it is complete, or a binary file object."""
        how = {
            "parent": None if parent is None else self._bytes(parent),
            "clone_sources": [self._bytes(name) for name in clone_sources],
            "version": version,
            "data": data,
            "progress": native(progress),
        }
        _streams.send(self._native, self._bytes(snapshot), file, how)

    def receive(
        self,
        file: HostPath | BinaryIO,
        target: Name = "/",
        *,
        resume: bool = False,
        progress: OnProgress = None,
    ) -> list[str]:
        """Makes the subvolumes of a stream in a directory, and returns their names. ``resume``
        continues an earlier call with the same stream."""
        target = self._bytes(target)
        return _streams.receive(self._native, target, file, resume, progress)

    def diff(
        self,
        old: Name | tuple[Image, Name],
        new: Name = "/",
        *,
        content: bool = False,
    ) -> list[Difference]:
        """The differences between ``old``, a directory of this image or of another one, and the
        directory ``new`` of this image, sorted by path. ``content`` compares the bytes of files
        that were written again."""
        other, name = old if isinstance(old, tuple) else (self, old)
        before = (other._native, other._bytes(name))
        return _streams.diff(before, (self._native, self._bytes(new)), content)

    def snapshot(self, target: Name, source: Name = "/", *, read_only: bool = False) -> None:
        """Creates a snapshot of a btrfs subvolume; ``/`` is the one that is open."""
        self._native.snapshot(self._bytes(source), self._bytes(target), read_only)

    def create_subvolume(self, path: Name) -> None:
        """Creates an empty btrfs subvolume."""
        self._native.create_subvolume(self._bytes(path))

    def delete_subvolume(self, path: Name) -> None:
        """Deletes a btrfs subvolume with everything in it."""
        self._native.delete_subvolume(self._bytes(path))

    def subvolumes(self) -> list[Subvolume]:
        """All subvolumes of a btrfs."""
        found = self._native.subvolumes()
        return [Subvolume(number, os.fsdecode(path), only) for number, path, only in found]

    def space(self) -> Space:
        """The bytes of the file system, used and free."""
        total, free, available = self._native.space()
        return Space(total, total - free, available)

    def sync(self) -> None:
        """Makes everything durable. The buffers of open files are not written; flush them first."""
        self._native.sync()

    def check(self, *, data: bool = False, progress: OnProgress = None) -> CheckReport:
        """Checks the image, which must be open for reading only. See `sapwood.check`."""
        return check(self.path, data=data, progress=progress)


def host_path(path: HostPath) -> bytes:
    """A path as bytes."""
    name = os.fsencode(path)
    if b"\0" in name:
        raise ValueError("embedded null byte")
    return name


def _copying(
    archive: bool,
    owner: tuple[int, int] | None,
    permissions: int | None,
    existing: str,
    progress: OnProgress,
) -> dict[str, Any]:
    return {
        "recursive": True,
        "archive": archive,
        "owner": owner,
        "permissions": permissions,
        "existing": existing,
        "progress": native(progress),
    }


def _stat_result(numbers: _sapwood.Numbers) -> os.stat_result:
    mode, inode, links, uid, gid, size, rdev, allocated, times = numbers
    second = 1_000_000_000
    accessed, modified, changed, _ = times
    named: dict[str, Any] = {
        "st_blksize": 4096,
        "st_blocks": allocated // 512,
        "st_rdev": rdev,
    }
    for name, time in (("atime", accessed), ("mtime", modified), ("ctime", changed)):
        named[f"st_{name}"] = time / second
        named[f"st_{name}_ns"] = time
    whole = [time // second for time in (accessed, modified, changed)]
    return os.stat_result((mode, inode, 0, links, uid, gid, size, *whole), named)
