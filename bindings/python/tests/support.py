"""Helpers of the tests."""

import functools
import os
import tempfile
import unittest

import sapwood

FORMATS = ("btrfs", "ext4")


def on_both(test):
    """Runs a test with an empty image of each format, which is checked at the end."""

    @functools.wraps(test)
    def run(self):
        for kind in FORMATS:
            with self.subTest(kind), tempfile.TemporaryDirectory() as directory:
                path = os.path.join(directory, "disk.img")
                sapwood.ImageBuilder(kind, label="from Python").build(path, "128M")
                test(self, path)
                report = sapwood.check(path, data=True)
                self.assertEqual((report.clean, report.findings), (True, []))

    return run


class TestCase(unittest.TestCase):
    """A test with errors of the operating system."""

    def assertErrno(self, kind, number, filename, call, *arguments, **named):
        with self.assertRaises(kind) as raised:
            call(*arguments, **named)
        self.assertEqual((raised.exception.errno, raised.exception.filename), (number, filename))
        return raised.exception
