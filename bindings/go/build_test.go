package sapwood_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	sapwood "github.com/sapwood-fs/sapwood/bindings/go"
)

func TestAnImageIsBuiltCopiedExportedAndCompared(t *testing.T) {
	onBoth(t, func(t *testing.T, path string, image *sapwood.FS) {
		host := t.TempDir()
		must(t, os.MkdirAll(filepath.Join(host, "site/css"), 0o755))
		must(t, os.WriteFile(filepath.Join(host, "site/index.html"), []byte("hello"), 0o640))
		must(t, os.WriteFile(filepath.Join(host, "site/css/a.css"), []byte("a{}"), 0o644))

		is(t, image.CopyIn(filepath.Join(host, "missing"), "site", sapwood.CopyOptions{}), fs.ErrNotExist)
		must(t, image.CopyIn(filepath.Join(host, "site"), "site", sapwood.CopyOptions{Archive: true}))
		info, err := image.Stat("site/index.html")
		must(t, err)
		if info.Mode() != 0o640 {
			t.Error(info)
		}
		must(t, image.CopyOut("site", filepath.Join(host, "back"), sapwood.CopyOptions{Recursive: true}))
		content, err := os.ReadFile(filepath.Join(host, "back/css/a.css"))
		must(t, err)
		if string(content) != "a{}" {
			t.Errorf("%q", content)
		}

		must(t, image.MkdirAll("old", 0o755))
		archive := filepath.Join(host, "site.tar.zst")
		made, err := image.Export("site", archive, sapwood.ExportOptions{Compression: "zstd"})
		must(t, err)
		if made.Entries != 4 || made.DiffID == made.Digest || made.Damaged != 0 {
			t.Error(made)
		}
		_, err = image.Export("site", archive, sapwood.ExportOptions{})
		is(t, err, fs.ErrExist)
		must(t, image.Untar(archive, "old"))
		found, err := image.Diff("old", image, "site", true)
		must(t, err)
		if len(found) != 0 {
			t.Error(found)
		}
		must(t, image.WriteFile("site/index.html", []byte("other"), 0o644))
		must(t, image.Remove("site/css/a.css"))
		found, err = image.Diff("old", image, "site", true)
		must(t, err)
		if len(found) != 3 || found[1].Kind != sapwood.Removed || found[1].Path != "css/a.css" ||
			found[2].Kind != sapwood.Changed || found[2].Parts&sapwood.PartContent == 0 {
			t.Error(found)
		}
		options := sapwood.ExportOptions{Since: image, SincePath: "old", Layer: true}
		made, err = image.Export("site", filepath.Join(host, "layer.tar"), options)
		must(t, err)
		if made.Entries == 0 {
			t.Error(made)
		}
		_, err = image.Diff("../old", image, "site", true)
		is(t, err, fs.ErrInvalid)

		built := filepath.Join(host, "built.img")
		build := sapwood.BuildOptions{
			AllRoot:      true,
			Reproducible: true,
			Free:         "4M",
			Exclude:      []string{"/www/css"},
			Options:      map[string]string{"label": "built"},
			Sources:      []sapwood.Source{{Kind: sapwood.Tar, Path: archive, At: "www"}},
		}
		must(t, sapwood.Build(built, image.Type(), build))
		is(t, sapwood.Build(built, image.Type(), build), fs.ErrExist)
		build.Sources[0].Kind = "zip"
		is(t, sapwood.Build(filepath.Join(host, "no.img"), image.Type(), build), syscall.EINVAL)
		size, err := sapwood.Resize(built, "+32M")
		must(t, err)
		again, err := sapwood.Open(built, "ro")
		must(t, err)
		defer again.Close()
		names, err := again.ReadDir("www")
		must(t, err)
		if len(names) != 1 || names[0].Name() != "index.html" || size < 32<<20 {
			t.Error(names, size)
		}
		found, err = again.Diff("www", image, "old", true)
		must(t, err)
		if len(found) == 0 {
			t.Error("no difference")
		}
	})
}

func TestTwoImagesAreComparedInBothDirectionsWhileOneCloses(t *testing.T) {
	onBoth(t, func(t *testing.T, path string, image *sapwood.FS) {
		other := filepath.Join(t.TempDir(), "other.img")
		must(t, sapwood.Mkfs(other, image.Type(), sapwood.MkfsOptions{Size: 128 << 20}))
		second, err := sapwood.Open(other)
		must(t, err)
		var all sync.WaitGroup
		for range 8 {
			all.Add(2)
			go func() {
				defer all.Done()
				_, err := image.Diff(".", second, ".", false)
				if err != nil && !errors.Is(err, fs.ErrClosed) {
					t.Error(err)
				}
			}()
			go func() {
				defer all.Done()
				_, err := second.Diff(".", image, ".", false)
				if err != nil && !errors.Is(err, fs.ErrClosed) {
					t.Error(err)
				}
			}()
		}
		must(t, second.Close())
		all.Wait()
		_, err = image.Diff(".", second, ".", false)
		is(t, err, fs.ErrClosed)
	})
}
