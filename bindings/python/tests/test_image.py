"""Files, names and metadata of an image."""

import errno
import io
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import unittest
import warnings

import sapwood
from support import TestCase, on_both


class Files(TestCase):
    @on_both
    def test_what_is_written_is_read_by_the_next_open(self, path):
        data = os.urandom(3_000_001)
        with sapwood.open(path, writable=True) as image:
            self.assertEqual(image.write_bytes("data", data), len(data))
            image.write_text("/text", "grüße\n")
        with sapwood.open(path) as image:
            self.assertEqual(image.read_bytes("data"), data)
            self.assertEqual((image / "text").read_text(), "grüße\n")

    @on_both
    def test_modes_are_those_of_the_builtin_open(self, path):
        with tempfile.TemporaryDirectory() as directory, sapwood.open(path, True) as image:
            local = os.path.join(directory, "file")

            def both(mode, work):
                """The same work on a file of the image and on one of this machine."""
                results = []
                for opened in (lambda: image.open("file", mode), lambda: open(local, mode)):
                    try:
                        with opened() as file:
                            results.append(work(file))
                    except (OSError, ValueError) as error:
                        results.append((type(error), getattr(error, "errno", None)))
                self.assertEqual(results[0], results[1], mode)
                return results[0]

            self.assertEqual(both("rb", lambda f: f.read()), (FileNotFoundError, errno.ENOENT))
            both("xb", lambda f: f.write(b"0123456789" * 1000))
            self.assertEqual(both("xb", lambda f: 0), (FileExistsError, errno.EEXIST))
            both("rb", lambda f: (f.read(3), f.tell(), f.seek(-4, 2), f.read(), f.read(1)))
            both("rb", lambda f: f.write(b"x"))
            both("ab", lambda f: (f.tell(), f.write(b"end"), f.tell()))
            both("a+b", lambda f: (f.seek(0), f.read(5), f.seek(0, 2), f.write(b"!"), f.tell()))
            both("r+b", lambda f: (f.read(4), f.write(b"####"), f.seek(0), f.read(20)))
            both("r+b", lambda f: (f.truncate(100), f.seek(0, 2), f.seek(200), f.truncate()))
            both("rb", lambda f: f.read())
            both("wb", lambda f: f.read())
            both("w", lambda f: f.writelines(f"{n}\n" for n in range(9000)))
            both("r", lambda f: list(f))
            both("r", lambda f: (f.readline(), f.tell(), f.mode, f.readable(), f.writable()))
            both("w+", lambda f: (f.write("a\nb"), f.seek(0), f.readlines()))
            both("wxb", lambda f: 0)
            both("rbt", lambda f: 0)
            both("+", lambda f: 0)

    @on_both
    def test_a_raw_file_is_written_through(self, path):
        with sapwood.open(path, True) as image:
            with image.open("file", "wb", buffering=0) as raw:
                raw.write(memoryview(b"abc"))
                self.assertEqual(image.read_bytes("file"), b"abc")
                raw.sync()
            self.assertIsInstance(raw, io.RawIOBase)
            with self.assertRaises(ValueError):
                raw.write(b"x")
            with self.assertRaises(ValueError):
                image.open("file", "r", buffering=0)
            with self.assertRaises(ValueError):
                image.open("file", "rb", encoding="utf-8")

    @on_both
    def test_threads_read_one_image_at_a_time(self, path):
        contents = {f"f{n}": os.urandom(200_000) for n in range(8)}
        with sapwood.open(path, True) as image:
            for name, content in contents.items():
                image.write_bytes(name, content)
            wrong = []

            def read(name):
                for _ in range(5):
                    if image.read_bytes(name) != contents[name]:
                        wrong.append(name)

            threads = [threading.Thread(target=read, args=(name,)) for name in contents]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(wrong, [])


class Names(TestCase):
    @on_both
    def test_directories_links_and_renames(self, path):
        with sapwood.open(path, True) as image:
            image.mkdir("a/b/c", parents=True)
            image.mkdir("a/b/c", parents=True, exist_ok=True)
            self.assertErrno(FileExistsError, errno.EEXIST, "a", image.mkdir, "a")
            file = image / "a" / "b" / "file"
            file.write_text("x")
            (image / "a/link").symlink_to("b/file")
            (image / "a/second").hardlink_to(file)
            self.assertEqual((image / "a/link").readlink(), "b/file")
            self.assertEqual((image / "a/link").read_text(), "x")
            self.assertEqual((image / "a/link").resolve(), file)
            self.assertEqual(file.stat().st_nlink, 2)
            self.assertTrue((image / "a/link").is_symlink())
            self.assertTrue((image / "a/link").is_file())
            self.assertFalse((image / "a/none").exists())
            moved = file.rename("/a/moved")
            self.assertEqual((moved, moved.read_text()), (image / "a/moved", "x"))
            self.assertErrno(
                FileExistsError, errno.EEXIST, "a/second",
                image.rename, "a/second", "a/moved", replace=False,
            )
            self.assertErrno(OSError, errno.ENOTEMPTY, "/a", (image / "a").rmdir)
            moved.unlink()
            moved.unlink(missing_ok=True)
            self.assertErrno(FileNotFoundError, errno.ENOENT, "/a/moved", moved.unlink)
            image.rmtree("a")
            self.assertFalse(image.exists("a"))

    @on_both
    def test_walks_and_patterns_are_those_of_pathlib(self, path):
        import pathlib

        tree = ["a/b/one.txt", "a/b/two.py", "a/c/d/three.txt", ".hidden/four.txt", "five"]
        with tempfile.TemporaryDirectory() as directory, sapwood.open(path, True) as image:
            if image.exists("lost+found"):
                image.rmdir("lost+found")
            local = pathlib.Path(directory)
            for name in tree:
                (local / name).parent.mkdir(parents=True, exist_ok=True)
                (local / name).write_text(name)
                (image / name).parent.mkdir(parents=True, exist_ok=True)
                (image / name).write_text(name)
            (local / "a/up").symlink_to("..")
            (image / "a/up").symlink_to("..")
            for top_down in (True, False):
                walked = [
                    (str(top.relative_to("/")), sorted(dirs), sorted(files))
                    for top, dirs, files in image.walk(top_down=top_down)
                ]
                expected = [
                    (os.path.relpath(top, directory), sorted(dirs), sorted(files))
                    for top, dirs, files in os.walk(directory, topdown=top_down)
                ]
                # os.walk lists a link to a directory as a directory.
                expected = [
                    (top, [d for d in dirs if d != "up"], sorted(files + ["up"] * ("up" in dirs)))
                    for top, dirs, files in expected
                ]
                self.assertEqual(sorted(walked), sorted(expected))
            for pattern in ("*", "a/*/*.txt", "**/*.txt", "a/**/d", "a/b/one.txt", "[ab]", "x/*"):
                found = sorted(str(it.relative_to("/")) for it in image.glob(pattern))
                expected = sorted(str(it.relative_to(local)) for it in local.glob(pattern))
                self.assertEqual(found, expected, pattern)
            self.assertEqual(len(list((image / "a").rglob("*.txt"))), 2)
            for _, dirs, _ in image.walk():
                dirs[:] = [name for name in dirs if name != "a"]
            self.assertEqual(sorted(p.name for p in image.iterdir("a/b")), ["one.txt", "two.py"])

    @on_both
    def test_a_name_that_is_not_utf_8_comes_back(self, path):
        with sapwood.open(path, True) as image:
            image.write_bytes(b"caf\xe9", b"1")
            name = os.fsdecode(b"caf\xe9")
            self.assertIn(name, image.listdir())
            self.assertEqual((image / name).read_bytes(), b"1")
            with self.assertRaises(ValueError):
                image.read_bytes("a\0b")

    def test_a_path_is_no_path_of_this_machine(self):
        with tempfile.TemporaryDirectory() as directory:
            files = [os.path.join(directory, name) for name in ("a", "b")]
            for file in files:
                sapwood.ImageBuilder("ext4").build(file, 16 << 20)
            with sapwood.open(files[0]) as one, sapwood.open(files[1]) as other:
                with self.assertRaises(TypeError):
                    open(one / "etc")
                with self.assertRaises(ValueError):
                    one.stat(other / "lost+found")
                self.assertNotEqual(one / "x", other / "x")
                self.assertEqual(one / "x" / "/y", one / "y")
                self.assertEqual(str(one.root), "/")


class Metadata(TestCase):
    @on_both
    def test_stat_has_the_numbers_of_os_stat(self, path):
        with sapwood.open(path, True, owner=(12, 34)) as image:
            image.write_bytes("file", b"x" * 5000)
            image.chmod("file", 0o4750)
            image.utime("file", ns=(1_000_000_007, -5))
            found = image.stat("file")
            self.assertEqual(stat.filemode(found.st_mode), "-rwsr-x---")
            self.assertEqual((found.st_uid, found.st_gid, found.st_size), (12, 34, 5000))
            self.assertEqual((found.st_atime_ns, found.st_mtime_ns), (1_000_000_007, -5))
            self.assertGreater(found.st_ctime, 1e9)
            image.chown("file", gid=7)
            self.assertEqual((image / "file").stat().st_gid, 7)
            image.setxattr("file", "user.note", b"v")
            self.assertEqual(image.listxattr("file"), ["user.note"])
            self.assertEqual(image.getxattr("file", "user.note"), b"v")
            image.removexattr("file", "user.note")
            self.assertErrno(OSError, errno.ENODATA, "file", image.getxattr, "file", "user.note")
            space = image.space()
            self.assertTrue(0 < space.used < space.total and 0 < space.free < space.total)


class Errors(TestCase):
    @on_both
    def test_errors_have_the_class_the_number_and_the_name(self, path):
        with sapwood.open(path, True) as image:
            image.mkdir("dir")
            image.write_bytes("file", b"")
            error = self.assertErrno(
                FileNotFoundError, errno.ENOENT, "no/file", image.read_bytes, "no/file"
            )
            self.assertEqual(str(error), "[Errno 2] no such file or directory: 'no/file'")
            self.assertErrno(NotADirectoryError, errno.ENOTDIR, "file/x", image.stat, "file/x")
            self.assertErrno(IsADirectoryError, errno.EISDIR, "dir", image.read_bytes, "dir")
            self.assertErrno(IsADirectoryError, errno.EISDIR, "dir", image.write_bytes, "dir", b"")
            self.assertErrno(OSError, errno.ENAMETOOLONG, "x" * 256, image.mkdir, "x" * 256)
            for call, wrong in ((image.write_bytes, "text"), (image.write_text, b"bytes")):
                image.write_bytes("kept", b"content")
                self.assertRaises(TypeError, call, "kept", wrong)
                self.assertEqual(image.read_bytes("kept"), b"content")
            with self.assertRaises(OSError) as raised:
                image.write_bytes("big", bytes(200 << 20))
                image.sync()
            self.assertEqual(raised.exception.errno, errno.ENOSPC)
            image.unlink("big", missing_ok=True)
        with sapwood.open(path) as image:
            self.assertErrno(OSError, errno.EROFS, "new", image.write_bytes, "new", b"x")

    @on_both
    def test_a_closed_image_is_a_value_error(self, path):
        image = sapwood.open(path, True)
        file = image.open("file", "wb", buffering=0)
        image.close()
        image.close()
        self.assertTrue(image.closed)
        with self.assertRaisesRegex(ValueError, "closed image"):
            image.listdir()
        with self.assertRaises(OSError):
            file.write(b"late")
        file.close()

    def test_what_is_no_image_is_named(self):
        with tempfile.TemporaryDirectory() as directory:
            missing = os.path.join(directory, "missing")
            error = self.assertErrno(
                FileNotFoundError, errno.ENOENT, missing, sapwood.open, missing
            )
            self.assertEqual(str(error), f"[Errno 2] No such file or directory: {missing!r}")
            blank = os.path.join(directory, "blank")
            with open(blank, "wb") as file:
                file.truncate(8 << 20)
            with self.assertRaises(OSError) as raised:
                sapwood.open(blank)
            self.assertEqual(raised.exception.errno, errno.EMEDIUMTYPE)
            with self.assertRaises(OSError) as raised:
                sapwood.open(blank, options="no_such_option")
            self.assertEqual(raised.exception.errno, errno.EINVAL)

    @on_both
    def test_an_image_that_is_open_for_writing_is_busy(self, path):
        with sapwood.open(path, True) as image:
            with self.assertRaises(OSError) as raised:
                sapwood.open(path)
            self.assertEqual(raised.exception.errno, errno.EBUSY)
            with self.assertRaises(OSError):
                image.check()
        with sapwood.open(path) as one, sapwood.open(path) as other:
            self.assertEqual(one.listdir(), other.listdir())
            self.assertTrue(one.check().clean)

    @on_both
    def test_an_image_that_is_dropped_is_closed_with_a_warning(self, path):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            image = sapwood.open(path, True)
            image.write_bytes("file", b"kept")
            del image
        self.assertEqual([it.category for it in seen], [ResourceWarning])
        # A record of a warning keeps the image.
        seen.clear()
        with sapwood.open(path) as image:
            self.assertEqual(image.read_bytes("file"), b"kept")


class Copies(TestCase):
    @on_both
    def test_copies_in_and_out_keep_the_files(self, path):
        with tempfile.TemporaryDirectory() as directory, sapwood.open(path, True) as image:
            tree = os.path.join(directory, "tree")
            os.makedirs(os.path.join(tree, "sub"))
            for number in range(20):
                with open(os.path.join(tree, "sub", str(number)), "wb") as file:
                    file.write(bytes([number]) * 10_000)
            steps = []
            copied = image.copy_in(tree, "/", owner=(0, 0), progress=steps.append)
            self.assertEqual(copied, 21)
            self.assertEqual((steps[-1].done, steps[-1].bytes), (21, 200_000))
            self.assertEqual(image.stat("tree/sub/7").st_uid, 0)
            image.copy("tree/sub/7", "seven")
            self.assertEqual(image.read_bytes("seven"), b"\7" * 10_000)
            out = os.path.join(directory, "out")
            image.copy_out("/tree", out)
            subprocess.run(["diff", "-r", tree, out], check=True)
            missing = os.path.join(directory, "missing")
            self.assertErrno(
                FileNotFoundError, errno.ENOENT, missing, image.copy_in, missing, "/"
            )
            with self.assertRaises(ValueError):
                image.copy_in(tree, "/", existing="maybe")
            image.copy_in(tree, "/", existing="keep")
            shutil.rmtree(out)

    @on_both
    def test_an_exception_of_the_callback_ends_the_copy(self, path):
        with tempfile.TemporaryDirectory() as directory, sapwood.open(path, True) as image:
            def refuse(step):
                raise LookupError(step.phase)

            with open(os.path.join(directory, "file"), "wb") as file:
                file.write(b"x")
            with self.assertRaises(LookupError):
                image.copy_in(directory, "/", progress=refuse)

    def test_a_signal_ends_long_work_with_keyboard_interrupt(self):
        program = """if True:
            import os, sapwood, signal, sys, threading
            path = os.path.join(sys.argv[1], "disk.img")
            sapwood.ImageBuilder("ext4").build(path, "64M")
            reading, interrupted = threading.Event(), threading.Event()

            class Archive:
                def read(self, size):
                    reading.set()
                    interrupted.wait()
                    return b""

            def interrupt():
                reading.wait()
                os.kill(os.getpid(), signal.SIGINT)

            def handler(number, frame):
                interrupted.set()
                raise KeyboardInterrupt

            signal.signal(signal.SIGINT, handler)
            threading.Thread(target=interrupt).start()
            with sapwood.open(path, writable=True) as image:
                try:
                    image.extract_tar(Archive())
                except KeyboardInterrupt:
                    print("interrupted")
            print(sapwood.check(path).clean)
        """
        with tempfile.TemporaryDirectory() as directory:
            ran = subprocess.run(
                [sys.executable, "-c", program, directory],
                capture_output=True, text=True, timeout=300,
            )
        self.assertEqual((ran.stdout, ran.stderr), ("interrupted\nTrue\n", ""))

    @on_both
    def test_the_lock_of_the_interpreter_is_free_while_the_library_works(self, path):
        with sapwood.open(path, True) as image:
            ran = threading.Event()

            class Archive:
                """An empty archive, whose end comes when another thread of Python ran."""

                content = io.BytesIO(bytes(1024))

                def read(self, size):
                    if not ran.is_set():
                        thread.start()
                        ran.wait()
                    return self.content.read(size)

            thread = threading.Thread(target=ran.set)
            image.extract_tar(Archive())


class Btrfs(TestCase):
    def test_a_snapshot_keeps_what_changes_later(self):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "disk.img")
            sapwood.ImageBuilder("btrfs").build(path, "128M")
            with sapwood.open(path, True) as image:
                image.write_bytes("file", b"before")
                image.snapshot("monday", read_only=True)
                image.write_bytes("file", b"after")
                self.assertEqual(image.read_bytes("monday/file"), b"before")
                self.assertErrno(
                    OSError, errno.EROFS, "monday/file", image.write_bytes, "monday/file", b"x"
                )
                image.create_subvolume("home")
                found = {it.path: it.read_only for it in image.subvolumes()}
                self.assertEqual((found["monday"], found["home"]), (True, False))
                image.write_bytes("home/file", b"in home")
            with sapwood.open(path, subvolume="home") as image:
                self.assertEqual(image.listdir(), ["file"])
            with sapwood.open(path, True) as image:
                image.delete_subvolume("home")
                self.assertFalse(image.exists("home"))
            self.assertTrue(sapwood.check(path).clean)

    def test_ext4_has_no_snapshots(self):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "disk.img")
            sapwood.ImageBuilder("ext4").build(path, "16M")
            with sapwood.open(path, True) as image:
                self.assertErrno(OSError, errno.EOPNOTSUPP, "/", image.snapshot, "monday")


if __name__ == "__main__":
    unittest.main()
