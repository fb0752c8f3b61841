package sapwood_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	sapwood "github.com/sapwood-fs/sapwood/bindings/go"
)

// onBoth runs a test on an empty image of each format.
func onBoth(t *testing.T, test func(t *testing.T, path string, image *sapwood.FS)) {
	for _, kind := range []string{"btrfs", "ext4"} {
		t.Run(kind, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "disk.img")
			options := sapwood.MkfsOptions{Size: 128 << 20, Options: []string{"label=from Go"}}
			must(t, sapwood.Mkfs(path, kind, options))
			image, err := sapwood.Open(path)
			must(t, err)
			if image.Type() != kind {
				t.Errorf("type %q", image.Type())
			}
			test(t, path, image)
			if err := image.Close(); err != nil && !errors.Is(err, fs.ErrClosed) {
				t.Error(err)
			}
			report, err := sapwood.Check(path, true)
			must(t, err)
			if !report.Clean || len(report.Findings) > 0 {
				t.Errorf("check: %+v", report)
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func is(t *testing.T, err, wanted error) {
	t.Helper()
	if !errors.Is(err, wanted) {
		t.Errorf("%v is not %v", err, wanted)
	}
}

func TestAnImageIsAnFS(t *testing.T) {
	onBoth(t, func(t *testing.T, _ string, image *sapwood.FS) {
		must(t, image.MkdirAll("etc/ssh", 0o755))
		must(t, image.Mkdir("empty", 0o700))
		must(t, image.WriteFile("etc/hostname", []byte("box\n"), 0o644))
		must(t, image.WriteFile("etc/ssh/key", bytes.Repeat([]byte("key"), 100_000), 0o600))
		must(t, image.WriteFile("nothing", nil, 0o444))
		must(t, image.Symlink("etc/hostname", "name"))
		must(t, image.Link("etc/hostname", "second"))
		must(t, fstest.TestFS(image, "etc/hostname", "etc/ssh/key", "empty", "nothing", "second"))
		matches, err := fs.Glob(image, "etc/*")
		must(t, err)
		if fmt.Sprint(matches) != "[etc/hostname etc/ssh]" {
			t.Errorf("glob: %v", matches)
		}
	})
}

func TestErrorsAreThoseOfIoFs(t *testing.T) {
	onBoth(t, func(t *testing.T, path string, image *sapwood.FS) {
		must(t, image.Mkdir("dir", 0o755))
		must(t, image.WriteFile("dir/file", nil, 0o644))
		_, err := image.Open("dir/missing")
		is(t, err, fs.ErrNotExist)
		known := new(fs.PathError)
		if !errors.As(err, &known) || known.Path != "dir/missing" || known.Op != "open" {
			t.Errorf("%#v", err)
		}
		is(t, image.Mkdir("dir", 0o755), fs.ErrExist)
		is(t, image.Remove("dir"), syscall.ENOTEMPTY)
		is(t, image.Mkdir("/dir", 0o755), fs.ErrInvalid)
		is(t, image.Mkdir("dir/../x", 0o755), fs.ErrInvalid)
		is(t, image.Mkdir("a\x00b", 0o755), fs.ErrInvalid)
		is(t, image.Lchown("dir", -2, 0), fs.ErrInvalid)
		_, err = image.Getxattr("dir", "user.none")
		is(t, err, syscall.ENODATA)
		_, err = sapwood.Open(path)
		is(t, err, syscall.EBUSY)
		_, err = sapwood.Open(path + ".missing")
		is(t, err, fs.ErrNotExist)
		must(t, os.WriteFile(path+".text", bytes.Repeat([]byte("text"), 100_000), 0o600))
		_, err = sapwood.Open(path + ".text")
		is(t, err, syscall.EMEDIUMTYPE)

		file, err := image.OpenFile("dir/file", os.O_RDONLY, 0)
		must(t, err)
		_, err = file.Write([]byte("x"))
		is(t, err, syscall.EBADF)
		must(t, file.Close())
		is(t, file.Close(), fs.ErrClosed)
		_, err = file.Read(make([]byte, 1))
		is(t, err, fs.ErrClosed)
		must(t, image.Close())
		is(t, image.Close(), fs.ErrClosed)
		is(t, image.Sync(), fs.ErrClosed)
		_, err = image.Stat(".")
		is(t, err, fs.ErrClosed)
	})
}

func TestAChangeIsThereAfterwards(t *testing.T) {
	onBoth(t, func(t *testing.T, path string, image *sapwood.FS) {
		must(t, image.SetCreator(7, 8))
		data := bytes.Repeat([]byte("sapwood"), 50_000)
		must(t, image.WriteFile("old", data, 0o640))
		must(t, image.Rename("old", "file"))
		must(t, image.Lchown("file", 1000, -1))
		must(t, image.Setxattr("file", "user.tag", []byte("value")))
		must(t, image.Setxattr("file", "user.empty", nil))
		must(t, image.Setxattr("file", "user.gone", []byte("x")))
		must(t, image.Removexattr("file", "user.gone"))
		must(t, image.Symlink("../\xff", "link"))
		must(t, image.WriteFile("not utf-8 \xff", []byte("x"), 0o644))
		must(t, image.MkdirAll("a/b/c", 0o755))
		must(t, image.WriteFile("a/b/c/d", data, 0o644))
		must(t, image.RemoveAll("a"))
		must(t, image.RemoveAll("a"))
		must(t, image.Truncate("file", 5))
		must(t, image.Chmod("file", 0o750|fs.ModeSetgid))
		must(t, image.Chtimes("file", time.Time{}, time.Unix(1_700_000_000, 123_456_789)))
		must(t, image.Close())

		image, err := sapwood.Open(path, "ro")
		must(t, err)
		defer image.Close()
		content, err := image.ReadFile("file")
		must(t, err)
		info, err := image.Stat("file")
		must(t, err)
		stat := info.Sys().(*sapwood.Stat)
		if string(content) != "sapwo" || info.Size() != 5 || info.Mode() != 0o750|fs.ModeSetgid ||
			stat.Uid != 1000 || stat.Gid != 8 || stat.Nlink != 1 ||
			!info.ModTime().Equal(time.Unix(1_700_000_000, 123_456_789)) {
			t.Errorf("%q %v %+v", content, info, stat)
		}
		target, err := image.ReadLink("link")
		must(t, err)
		value, err := image.Getxattr("file", "user.tag")
		must(t, err)
		empty, err := image.Getxattr("file", "user.empty")
		must(t, err)
		names, err := image.Listxattr("file")
		must(t, err)
		if target != "../\xff" || string(value) != "value" || len(empty) != 0 || len(names) != 2 {
			t.Errorf("%q %q %q %q", target, value, empty, names)
		}
		entries, err := image.ReadDir(".")
		must(t, err)
		found := map[string]bool{}
		for _, entry := range entries {
			found[entry.Name()] = true
		}
		if !found["not utf-8 \xff"] || found["a"] || found["old"] {
			t.Errorf("%v", entries)
		}
		is(t, image.Mkdir("x", 0o755), syscall.EROFS)
		usage, err := image.Usage()
		must(t, err)
		if size := usage.Blocks * uint64(usage.BlockSize); size < 64<<20 || size > 128<<20 {
			t.Errorf("%+v", usage)
		}
	})
}

func TestAFileIsReadAndWrittenAtOffsets(t *testing.T) {
	onBoth(t, func(t *testing.T, _ string, image *sapwood.FS) {
		file, err := image.Create("file")
		must(t, err)
		_, err = file.WriteAt([]byte("end"), 1<<20)
		must(t, err)
		_, err = file.Write([]byte("start"))
		must(t, err)
		must(t, file.Sync())
		position, err := file.Seek(-3, io.SeekEnd)
		must(t, err)
		rest, err := io.ReadAll(file)
		must(t, err)
		if position != 1<<20 || string(rest) != "end" {
			t.Errorf("%d %q", position, rest)
		}
		buffer := make([]byte, 8)
		bytes, err := file.ReadAt(buffer, 1<<20)
		if bytes != 3 || err != io.EOF {
			t.Errorf("%d %v", bytes, err)
		}
		info, err := file.Stat()
		must(t, err)
		if stat := info.Sys().(*sapwood.Stat); stat.Allocated > 64<<10 {
			t.Errorf("%d bytes are allocated", stat.Allocated)
		}
		must(t, file.Close())
	})
}

func TestSubvolumes(t *testing.T) {
	onBoth(t, func(t *testing.T, _ string, image *sapwood.FS) {
		if image.Type() == "ext4" {
			is(t, image.CreateSubvolume("sub"), syscall.EOPNOTSUPP)
			return
		}
		must(t, image.CreateSubvolume("sub"))
		must(t, image.WriteFile("sub/file", []byte("old"), 0o644))
		must(t, image.Snapshot("sub", "snap", true))
		must(t, image.WriteFile("sub/file", []byte("new"), 0o644))
		content, err := image.ReadFile("snap/file")
		must(t, err)
		if string(content) != "old" {
			t.Errorf("%q", content)
		}
		is(t, image.WriteFile("snap/file", nil, 0o644), syscall.EROFS)
		must(t, image.DeleteSubvolume("snap"))
	})
}

func TestManyGoroutinesGetTheirOwnErrors(t *testing.T) {
	onBoth(t, func(t *testing.T, _ string, image *sapwood.FS) {
		var all sync.WaitGroup
		for worker := range 16 {
			all.Add(1)
			go func() {
				defer all.Done()
				dir := fmt.Sprintf("worker-%d", worker)
				for round := range 50 {
					name := fmt.Sprintf("%s/file-%d", dir, round)
					if _, err := image.Stat(name); !errors.Is(err, fs.ErrNotExist) ||
						!bytes.Contains([]byte(err.Error()), []byte(name)) {
						t.Errorf("%s: %v", name, err)
					}
					if err := image.MkdirAll(dir, 0o755); err != nil {
						t.Error(err)
					}
					if err := image.WriteFile(name, []byte(name), 0o644); err != nil {
						t.Error(err)
					}
					if content, err := image.ReadFile(name); err != nil || string(content) != name {
						t.Errorf("%s: %q %v", name, content, err)
					}
				}
			}()
		}
		all.Wait()
	})
}

func TestMkfsFillsAnImageFromADirectory(t *testing.T) {
	source := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(source, "etc"), 0o755))
	must(t, os.WriteFile(filepath.Join(source, "etc/motd"), []byte("hello"), 0o644))
	for _, kind := range []string{"btrfs", "ext4"} {
		path := filepath.Join(t.TempDir(), "disk.img")
		options := sapwood.MkfsOptions{Source: source}
		must(t, sapwood.Mkfs(path, kind, options))
		is(t, sapwood.Mkfs(path, kind, options), fs.ErrExist)
		options.Replace = true
		must(t, sapwood.Mkfs(path, kind, options))
		options.Options = []string{"no-such-option"}
		is(t, sapwood.Mkfs(path, kind, options), syscall.EINVAL)
		image, err := sapwood.Open(path, "ro")
		must(t, err)
		content, err := image.ReadFile("etc/motd")
		must(t, err)
		if string(content) != "hello" {
			t.Errorf("%q", content)
		}
		must(t, image.Close())
	}
}
