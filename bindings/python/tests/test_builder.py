"""New images, and images that are not open."""

import errno
import io
import os
import tarfile
import tempfile
import unittest
import uuid

import sapwood
from support import FORMATS, TestCase


def archive(names, **attributes):
    """A tar archive of files with their names as content."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.size = len(name)
            for key, value in attributes.items():
                setattr(entry, key, value)
            tar.addfile(entry, io.BytesIO(name.encode()))
    return stream.getvalue()


class Builder(TestCase):
    def built(self, work):
        """Runs a test for both formats in a directory of its own."""
        for kind in FORMATS:
            with self.subTest(kind), tempfile.TemporaryDirectory() as directory:
                work(kind, directory, os.path.join(directory, "disk.img"))

    def test_directories_files_and_archives_are_merged_in_order(self):
        def work(kind, directory, path):
            tree = os.path.join(directory, "tree")
            os.makedirs(os.path.join(tree, "etc"))
            with open(os.path.join(tree, "etc", "motd"), "w") as file:
                file.write("from the tree")
            os.link(os.path.join(tree, "etc", "motd"), os.path.join(tree, "etc", "second"))
            packed = os.path.join(directory, "packed.tar.gz")
            with open(packed, "wb") as file:
                file.write(archive(["opt/one"], uid=5, gid=6, mode=0o640))
            steps = []
            builder = (
                sapwood.ImageBuilder(kind, label="built")
                .add_tree(tree)
                .add_bytes(b"from bytes", "/etc/motd", mode=0o600, uid=1)
                .add_tar(packed)
                .add_tar(io.BytesIO(archive(["opt/two"])))
                .add_file(packed, "usr/share/packed")
                .add_file(io.BytesIO(b"x" * 3_000_000), "usr/bin/tool", mode=0o755)
                .add_directory("var/empty", mode=0o700)
                .add_symlink("usr/bin", "bin")
            )
            size = builder.build(path, progress=steps.append)
            self.assertEqual(size, os.path.getsize(path))
            self.assertTrue(steps)
            self.assertEqual(sapwood.info(path).label, "built")
            with sapwood.open(path) as image:
                self.assertEqual(image.read_text("etc/motd"), "from bytes")
                self.assertEqual(image.read_text("etc/second"), "from the tree")
                self.assertEqual(image.stat("etc/motd").st_mode & 0o7777, 0o600)
                found = image.stat("opt/one")
                self.assertEqual((found.st_uid, found.st_gid), (5, 6))
                self.assertEqual(image.read_text("opt/two"), "opt/two")
                self.assertEqual(image.read_bytes("bin/tool"), b"x" * 3_000_000)
                with open(packed, "rb") as file:
                    self.assertEqual(image.read_bytes("usr/share/packed"), file.read())
                self.assertTrue(image.is_dir("var/empty"))
            report = sapwood.check(path, data=True)
            self.assertEqual((report.clean, report.findings), (True, []))

        self.built(work)

    def test_size_free_uuid_and_output_are_as_given(self):
        def work(kind, directory, path):
            number = uuid.uuid4()
            size = sapwood.ImageBuilder(kind, uuid=number).build(path, size="150M")
            self.assertEqual(size, 150 << 20)
            found = sapwood.info(path)
            self.assertEqual((found.uuid, found.size), (number, 150 << 20))
            builder = sapwood.ImageBuilder(kind).add_bytes(b"x", "file")
            small = builder.build(path)
            self.assertGreater(builder.build(path, free="64M"), small)
            self.assertErrno(
                FileExistsError, errno.EEXIST, path, builder.build, path, replace=False
            )
            builder.build(path, free="16M", free_inodes=1000)
            with sapwood.open(path, writable=True) as image:
                for number in range(1000):
                    image.write_bytes(f"file {number}", b"")
            builder.build(path)
            other = os.path.join(directory, "disk.qcow2")
            builder.build(other, output="qcow2")
            with open(other, "rb") as file:
                self.assertEqual(file.read(4), b"QFI\xfb")
            before, after = sapwood.resize(path, "+16M")
            self.assertEqual(after - before, 16 << 20)
            with sapwood.open(path) as image:
                self.assertEqual(image.read_bytes("file"), b"x")

        self.built(work)

    def test_a_reproducible_image_has_the_same_bytes(self):
        def work(kind, directory, path):
            images = []
            for _ in range(2):
                builder = sapwood.ImageBuilder(kind, reproducible=True)
                builder.add_tar(io.BytesIO(archive(["a", "b/c"]))).build(path)
                with open(path, "rb") as file:
                    images.append(file.read())
            self.assertEqual(*images)

        self.built(work)

    def test_a_failed_build_leaves_no_file(self):
        def work(kind, directory, path):
            class Broken:
                def read(self, size):
                    raise LookupError("no more")

            with self.assertRaisesRegex(LookupError, "no more"):
                sapwood.ImageBuilder(kind).add_tar(Broken()).build(path)
            cut = archive(["a" * 50] * 100)[:-40]
            with self.assertRaises(OSError):
                sapwood.ImageBuilder(kind).add_tar(io.BytesIO(cut)).build(path)
            with self.assertRaises(FileNotFoundError):
                sapwood.ImageBuilder(kind).add_tree("/no/such/directory")
            large = io.BytesIO(os.urandom(150 << 20))
            with self.assertRaises(OSError) as raised:
                sapwood.ImageBuilder(kind).add_file(large, "large").build(path, "120M")
            self.assertEqual(raised.exception.errno, errno.ENOSPC)
            self.assertEqual(os.listdir(directory), [])

        self.built(work)

    def test_arguments_that_make_no_sense_are_refused(self):
        with self.assertRaises(ValueError):
            sapwood.ImageBuilder("xfs")
        with self.assertRaises(ValueError):
            sapwood.ImageBuilder("ext4").build("/nowhere", "1X")
        with self.assertRaises(ValueError):
            sapwood.ImageBuilder("ext4").add_bytes(b"", "/")
        with self.assertRaises(OSError) as raised:
            sapwood.ImageBuilder("ext4", options={"no-such": None}).build("/nowhere", "16M")
        self.assertEqual(raised.exception.errno, errno.EINVAL)
        with self.assertRaises(FileNotFoundError):
            sapwood.ImageBuilder("ext4").add_tar("/no/such.tar")


class Check(TestCase):
    def test_a_damaged_image_has_findings(self):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "disk.img")
            sapwood.ImageBuilder("btrfs").add_bytes(os.urandom(1 << 20), "file").build(path)
            with open(path, "r+b") as file:
                content = file.read()
                with sapwood.open(path) as image:
                    known = image.read_bytes("file")[:4096]
                file.seek(content.index(known))
                file.write(bytes(4096))
            self.assertTrue(sapwood.check(path).clean)
            report = sapwood.check(path, data=True)
            self.assertFalse(report.clean)
            self.assertFalse(report.findings[0].warning)
            with sapwood.open(path) as image, self.assertRaises(OSError) as raised:
                image.read_bytes("file")
            self.assertIn(raised.exception.errno, (errno.EIO, errno.EUCLEAN))


if __name__ == "__main__":
    unittest.main()
