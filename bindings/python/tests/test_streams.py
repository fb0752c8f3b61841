"""Archives, streams of snapshots, differences."""

import errno
import hashlib
import io
import os
import shutil
import signal
import tarfile
import tempfile

import sapwood
from support import FORMATS, TestCase


def image(kind, directory, name="disk.img"):
    path = os.path.join(directory, name)
    sapwood.ImageBuilder(kind).build(path, "128M")
    return path


def fill(opened):
    opened.mkdir("etc")
    opened.write_text("etc/motd", "first")
    opened.write_text("etc/gone", "soon")
    opened.symlink("motd", "etc/link")


def names(archive):
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return {entry.name.rstrip("/").removeprefix("./") for entry in tar}


class Streams(TestCase):
    def in_directory(self, work, formats=FORMATS):
        for kind in formats:
            with self.subTest(kind), tempfile.TemporaryDirectory() as directory:
                work(kind, directory)

    def test_a_directory_becomes_an_archive(self):
        def work(kind, directory):
            path = os.path.join(directory, "etc.tar")
            with sapwood.open(image(kind, directory), writable=True) as opened:
                fill(opened)
                steps = []
                report = opened.export(path, "etc", progress=steps.append)
                stream = io.BytesIO()
                again = opened.export(stream, "etc")
                packed = io.BytesIO()
                small = opened.export(packed, compression="gzip")
            with open(path, "rb") as file:
                written = file.read()
            self.assertTrue(steps)
            self.assertEqual(report, again)
            self.assertEqual(written, stream.getvalue())
            self.assertEqual((report.size, report.left_out, report.damaged), (len(written), 0, 0))
            self.assertEqual(report.digest, hashlib.sha256(written).hexdigest())
            self.assertEqual(report.digest, report.diff_id)
            self.assertNotEqual(small.digest, small.diff_id)
            self.assertEqual(small.digest, hashlib.sha256(packed.getvalue()).hexdigest())
            self.assertLessEqual({"motd", "gone", "link"}, names(written))
            with tarfile.open(fileobj=io.BytesIO(written)) as tar:
                found = next(entry for entry in tar if entry.name.endswith("motd"))
                self.assertEqual(tar.extractfile(found).read(), b"first")
            umask = os.umask(0)
            os.umask(umask)
            self.assertEqual(os.stat(path).st_mode & 0o777, 0o666 & ~umask)
            self.assertEqual(sorted(os.listdir(directory)), ["disk.img", "etc.tar"])

        self.in_directory(work)

    def test_an_archive_of_changes_has_whiteouts(self):
        def work(kind, directory):
            old = image(kind, directory, "old.img")
            with sapwood.open(old, writable=True) as opened:
                fill(opened)
            new = shutil.copy(old, os.path.join(directory, "new.img"))
            with sapwood.open(new, writable=True) as opened, sapwood.open(old) as before:
                opened.unlink("etc/gone")
                opened.write_text("etc/motd", "the second")
                opened.write_text("etc/new", "new")
                layer = io.BytesIO()
                opened.export(layer, since=(before, "/"))
                found = opened.diff((before, "/"))
            self.assertLessEqual({"etc/.wh.gone", "etc/motd", "etc/new"}, names(layer.getvalue()))
            self.assertNotIn("etc/link", names(layer.getvalue()))
            kinds = {change.path.lstrip("/"): change for change in found}
            self.assertEqual(kinds["etc/gone"].kind, "removed")
            self.assertEqual((kinds["etc/new"].kind, kinds["etc/new"].is_dir), ("added", False))
            self.assertEqual(kinds["etc/motd"].kind, "changed")
            self.assertLessEqual({"content", "size"}, kinds["etc/motd"].parts)

        self.in_directory(work)

    def test_a_snapshot_is_sent_and_received(self):
        def work(kind, directory):
            source, target = image(kind, directory), image(kind, directory, "backup.img")
            full = os.path.join(directory, "full.stream")
            with sapwood.open(source, writable=True) as opened:
                fill(opened)
                opened.snapshot("one", read_only=True)
                opened.write_text("etc/motd", "second")
                opened.rename("etc/gone", "etc/kept")
                opened.snapshot("two", read_only=True)
                opened.send(full, "one")
                changes = io.BytesIO()
                opened.send(changes, "two", parent="one", version=2)
                self.assertErrno(OSError, errno.EINVAL, "/etc", opened.send, io.BytesIO(), "etc")
            with sapwood.open(source) as opened:
                found = {change.path: change for change in opened.diff("one", "two")}
                self.assertEqual(found["etc/kept"].kind, "renamed")
                self.assertEqual(found["etc/kept"].old_path, "etc/gone")
            self.assertLess(changes.tell(), os.path.getsize(full))
            with sapwood.open(target, writable=True) as opened:
                opened.mkdir("in")
                self.assertEqual(opened.receive(full, "in"), ["one"])
                self.assertEqual(opened.receive(io.BytesIO(changes.getvalue()), "in"), ["two"])
                self.assertEqual(opened.read_text("in/one/etc/motd"), "first")
                self.assertEqual(opened.read_text("in/two/etc/motd"), "second")
                self.assertEqual(opened.read_text("in/two/etc/kept"), "soon")
                with self.assertRaises(OSError) as raised:
                    opened.receive(io.BytesIO(b"no stream at all" * 100))
                self.assertEqual(raised.exception.errno, errno.EBADMSG)
            self.assertTrue(sapwood.check(target, data=True).clean)

        self.in_directory(work, ["btrfs"])

    def test_an_exception_of_a_file_object_ends_the_export(self):
        class Full(io.RawIOBase):
            def write(self, data):
                raise OSError(errno.ENOSPC, "full")

        def work(kind, directory):
            path = os.path.join(directory, "etc.tar")
            with sapwood.open(image(kind, directory), writable=True) as opened:
                fill(opened)
                self.assertErrno(OSError, errno.ENOSPC, None, opened.export, Full())
                missing = os.path.join(directory, "no", "etc.tar")
                self.assertErrno(
                    FileNotFoundError, errno.ENOENT, missing, opened.export, missing
                )
                with self.assertRaises(FileNotFoundError):
                    opened.export(path, "nowhere")
                self.assertRaises(ValueError, opened.export, path, compression="lz4")
            self.assertRaises(ValueError, opened.export, path)
            self.assertEqual(os.listdir(directory), ["disk.img"])

        self.in_directory(work)


class Interruption(TestCase):
    """Ctrl-C: the handler raises KeyboardInterrupt in the callback, where Python runs it."""

    COUNT = 20_000

    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.steps = []

    def tree(self):
        """A directory to fill."""
        tree = os.path.join(self.directory.name, "tree")
        os.mkdir(tree)
        return tree

    def interrupt(self, step):
        self.steps.append(step)
        signal.raise_signal(signal.SIGINT)

    def left(self):
        return sorted(os.listdir(self.directory.name))

    def test_a_build_from_a_directory_leaves_nothing(self):
        tree = self.tree()
        for number in range(self.COUNT):
            with open(os.path.join(tree, f"file{number}"), "w"):
                pass
        for kind in FORMATS:
            with self.subTest(kind):
                path = os.path.join(self.directory.name, "disk.img")
                builder = sapwood.ImageBuilder(kind).add_tree(tree)
                with self.assertRaises(KeyboardInterrupt):
                    builder.build(path, progress=self.interrupt)
                self.assertEqual(self.left(), ["tree"])
        self.assertEqual(len(self.steps), len(FORMATS))

    def test_a_build_from_an_archive_leaves_nothing(self):
        # One file of 8 GiB of zeros, all of which would be read.
        packed = os.path.join(self.directory.name, "packed.tar")
        entry = tarfile.TarInfo("zeros")
        entry.size = 8 << 30
        with open(packed, "wb") as file:
            file.write(entry.tobuf())
            file.truncate(512 + entry.size + 1024)
        for kind in FORMATS:
            for reproducible in (False, True):
                with self.subTest(kind, reproducible=reproducible):
                    path = os.path.join(self.directory.name, "disk.img")
                    builder = sapwood.ImageBuilder(kind, reproducible=reproducible)
                    with self.assertRaises(KeyboardInterrupt):
                        builder.add_tar(packed).build(path, progress=self.interrupt)
                    self.assertEqual(self.left(), ["packed.tar"])

    def test_a_copy_ends(self):
        # One file with many names, each of which a copy makes a file of its own.
        tree = self.tree()
        first = os.path.join(tree, "file0")
        with open(first, "wb") as file:
            file.write(os.urandom(1 << 16))
        for number in range(1, self.COUNT):
            os.link(first, os.path.join(tree, f"file{number}"))
        path = os.path.join(self.directory.name, "disk.img")
        out = os.path.join(self.directory.name, "out")
        archive = os.path.join(self.directory.name, "all.tar")
        for kind in FORMATS:
            with self.subTest(kind):
                builder = sapwood.ImageBuilder(kind).add_tree(tree)
                builder.build(path, "1G")
                with sapwood.open(path, writable=True) as opened:
                    with self.assertRaises(KeyboardInterrupt):
                        opened.copy_out("/", out, progress=self.interrupt)
                    self.assertLess(len(os.listdir(out)), self.COUNT)
                    with self.assertRaises(KeyboardInterrupt):
                        opened.export(archive, progress=self.interrupt)
                    with self.assertRaises(KeyboardInterrupt):
                        opened.copy_in(tree, "in", progress=self.interrupt)
                    self.assertLess(len(opened.listdir("in")), self.COUNT)
                self.assertTrue(sapwood.check(path).clean)
                shutil.rmtree(out)
                os.unlink(path)
                self.assertEqual(self.left(), ["tree"])
