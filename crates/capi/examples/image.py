"""Makes an image, fills it and lists it through libsapwood, with ctypes: `image.py btrfs FILE`.

SAPWOOD_LIBRARY names the library where it is not installed.
"""

import ctypes
import errno
import os
import sys

FS = ctypes.c_void_p
STRING = ctypes.c_char_p


class Entry(ctypes.Structure):
    _fields_ = [("name", STRING), ("ino", ctypes.c_uint64), ("mode", ctypes.c_uint32)]


def load():
    lib = ctypes.CDLL(os.environ.get("SAPWOOD_LIBRARY", "libsapwood.so.0"))

    def checked(result, _function, arguments):
        if result < 0:
            message = os.fsdecode(lib.sapwood_error_message())
            raise OSError(-result, message)
        return result

    def declare(name, *arguments, result=ctypes.c_int):
        function = getattr(lib, name)
        function.argtypes = arguments
        function.restype = result
        if result is not STRING:
            function.errcheck = checked

    out = ctypes.POINTER(ctypes.c_void_p)
    declare("sapwood_version", result=STRING)
    declare("sapwood_error_message", result=STRING)
    declare(
        "sapwood_mkfs", STRING, STRING, ctypes.c_uint64, ctypes.POINTER(STRING), STRING,
        ctypes.c_uint32,
    )
    declare("sapwood_open", STRING, STRING, out)
    declare("sapwood_close", FS)
    declare("sapwood_mkdir", FS, STRING, ctypes.c_uint32)
    declare("sapwood_file_open", FS, STRING, ctypes.c_int, ctypes.c_uint32, out)
    declare("sapwood_file_close", ctypes.c_void_p)
    for name in "sapwood_file_read", "sapwood_file_write":
        declare(name, ctypes.c_void_p, STRING, ctypes.c_size_t, result=ctypes.c_ssize_t)
    declare("sapwood_dir_open", FS, STRING, out)
    declare("sapwood_dir_next", ctypes.c_void_p, ctypes.POINTER(Entry))
    declare("sapwood_dir_close", ctypes.c_void_p)
    return lib


class Image:
    """An open image; a context manager."""

    def __init__(self, lib, path, options=None):
        self.lib = lib
        self.fs = self._new(lib.sapwood_open, os.fsencode(path), options)

    @staticmethod
    def _new(make, *arguments):
        handle = ctypes.c_void_p()
        make(*arguments, ctypes.byref(handle))
        return handle

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.lib.sapwood_close(self.fs)

    def mkdir(self, path, mode=0o755):
        self.lib.sapwood_mkdir(self.fs, os.fsencode(path), mode)

    def write(self, path, data):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        file = self._new(self.lib.sapwood_file_open, self.fs, os.fsencode(path), flags, 0o644)
        try:
            self.lib.sapwood_file_write(file, data, len(data))
        finally:
            self.lib.sapwood_file_close(file)

    def read(self, path):
        file = self._new(self.lib.sapwood_file_open, self.fs, os.fsencode(path), os.O_RDONLY, 0)
        try:
            data, buffer = b"", ctypes.create_string_buffer(1 << 16)
            while count := self.lib.sapwood_file_read(file, buffer, len(buffer)):
                data += buffer.raw[:count]
            return data
        finally:
            self.lib.sapwood_file_close(file)

    def names(self, path):
        directory, entry = self._new(self.lib.sapwood_dir_open, self.fs, os.fsencode(path)), Entry()
        try:
            while self.lib.sapwood_dir_next(directory, ctypes.byref(entry)):
                yield os.fsdecode(entry.name)
        finally:
            self.lib.sapwood_dir_close(directory)


def main(kind, path):
    lib = load()
    options = (STRING * 2)(b"label=from Python", None)
    lib.sapwood_mkfs(os.fsencode(path), kind.encode(), 128 << 20, options, None, 0)
    data = bytes(range(256)) * 1000
    with Image(lib, path) as image:
        image.mkdir("data")
        image.write("data/bytes", data)
        image.write(b"data/not utf-8 \xff", b"")
        try:
            image.read("data/missing")
        except OSError as error:
            assert error.errno == errno.ENOENT and "data/missing" in error.strerror, error
        else:
            raise AssertionError("a missing file was read")
    with Image(lib, path, b"ro") as image:
        assert image.read("data/bytes") == data
        names = sorted(image.names("data"))
        assert [os.fsencode(name) for name in names] == [b"bytes", b"not utf-8 \xff"], names
    print(f"sapwood {lib.sapwood_version().decode()}: {path} ({kind}) has {len(names)} files")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: image.py btrfs|ext4 FILE")
    main(*sys.argv[1:])
