"""The file system for fsspec."""

import os
import tempfile
import unittest

import sapwood
from support import FORMATS, TestCase, on_both

try:
    import fsspec
except ImportError:
    raise unittest.SkipTest("no fsspec") from None

from sapwood.filesystem import SapwoodFileSystem


def setUpModule():
    # The wheel registers it by its entry point.
    fsspec.register_implementation("sapwood", SapwoodFileSystem, clobber=True)


class FileSystem(TestCase):
    @on_both
    def test_files_are_opened_by_url(self, path):
        with fsspec.open("sapwood://data/a.csv", "w", image=path, writable=True) as file:
            file.write("x,y\n1,2\n")
        with fsspec.open("sapwood://data/a.csv", "r", image=path) as file:
            self.assertEqual(file.read(), "x,y\n1,2\n")
        with fsspec.open(f"sapwood://data/a.csv::{path}", "rb") as file:
            self.assertEqual(file.read(3), b"x,y")
        with self.assertRaises(FileNotFoundError):
            with fsspec.open("sapwood://none", image=path):
                pass
        with self.assertRaises(ValueError):
            fsspec.filesystem("sapwood")

    @on_both
    def test_the_operations_of_fsspec_work(self, path):
        fs = fsspec.filesystem("sapwood", image=path, writable=True)
        fs.makedirs("a/b")
        fs.pipe_file("a/b/file", b"0123456789")
        fs.pipe("a/second", b"2")
        self.assertEqual(fs.cat_file("a/b/file", start=2, end=5), b"234")
        self.assertEqual(fs.ls("a", detail=False), ["a/b", "a/second"])
        self.assertEqual(fs.info("a/b/file")["size"], 10)
        self.assertTrue(fs.isdir("a/b") and fs.isfile("a/second") and fs.exists("a"))
        self.assertEqual(sorted(fs.find("a")), ["a/b/file", "a/second"])
        self.assertEqual(fs.glob("a/*/f*"), ["a/b/file"])
        self.assertEqual(fs.du("a"), 11)
        fs.mv("a/second", "a/third")
        fs.cp_file("a/third", "copy")
        self.assertEqual(fs.cat("copy"), b"2")
        fs.copy("a", "tree", recursive=True)
        self.assertEqual(fs.cat("tree/b/file"), b"0123456789")
        with tempfile.TemporaryDirectory() as directory:
            fs.get("a/b/file", os.path.join(directory, "out"))
            fs.put(os.path.join(directory, "out"), "back")
        self.assertEqual(fs.cat("back"), b"0123456789")
        fs.rm("a", recursive=True)
        self.assertFalse(fs.exists("a"))
        self.assertGreater(fs.modified("copy").year, 2000)
        fs.close()

    @on_both
    def test_the_image_is_free_when_the_last_file_is_gone(self, path):
        with fsspec.open("sapwood://file", "wb", image=path, writable=True) as file:
            file.write(b"x")
        del file
        with sapwood.open(path, writable=True) as image:
            self.assertEqual(image.read_bytes("file"), b"x")


if __name__ == "__main__":
    unittest.main()
