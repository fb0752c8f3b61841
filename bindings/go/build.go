package sapwood

// #include <stdlib.h>
// #include <sapwood.h>
import "C"

import (
	"unsafe"
)

// SourceKind says what a source of files is.
type SourceKind string

// The kinds of sources. Archives are plain or compressed with gzip, zstd, xz or bzip2.
const (
	// Dir is the contents of a directory.
	Dir SourceKind = "dir"
	// Tar is a tar archive.
	Tar SourceKind = "tar"
	// Cpio is a cpio archive.
	Cpio SourceKind = "cpio"
	// OCI is a container image: an OCI layout, or an archive of `docker save`.
	OCI SourceKind = "oci"
	// Layer is a layer of a container image, applied to the sources before it.
	Layer SourceKind = "layer"
	// Overlay is a layer of overlayfs, applied to the sources before it.
	Overlay SourceKind = "overlay"
)

// Source is a source of files for an image.
type Source struct {
	Kind SourceKind
	// Path on this machine. A container image may have a tag: "debian.tar:12".
	Path string
	// Directory of the image that gets the files. Empty: the one of the source before, at first the
	// root.
	At string
}

// BuildOptions describe a new image with files.
type BuildOptions struct {
	// Size of the image in bytes. Zero: as small as the files allow.
	Size uint64
	// Space that stays available to users, as "64M" or "10%" of the smallest size.
	Free string
	// Sources, applied in their order: a later file replaces an earlier one of the same name.
	Sources []Source
	// Everything belongs to root.
	AllRoot bool
	// The same sources give the same bytes.
	Reproducible bool
	// Patterns of paths that are left out, with everything below them.
	Exclude []string
	// Format of the file, as "qcow2". Empty: raw.
	OutputFormat string
	// Other options of `sapwood mkfs`, by name; an empty value is none. {"label": "root"}.
	Options map[string]string
	// An existing image is replaced.
	Replace bool
}

// Build makes an image of the type "btrfs" or "ext4" with files. The file gets its name when it is
// complete and durable.
func Build(image, kind string, options BuildOptions) error {
	return wrap("build", image, build(image, kind, options))
}

func build(image, kind string, options BuildOptions) error {
	name, format := C.CString(image), C.CString(kind)
	defer C.free(unsafe.Pointer(name))
	defer C.free(unsafe.Pointer(format))
	var builder *C.sapwood_builder
	if err := done(func() C.int { return C.sapwood_builder_new(format, &builder) }); err != nil {
		return err
	}
	defer C.sapwood_builder_free(builder)
	for _, source := range options.Sources {
		if err := add(builder, source); err != nil {
			return err
		}
	}
	if err := set(builder, options); err != nil {
		return err
	}
	flags := C.uint32_t(0)
	if options.Replace {
		flags |= C.SAPWOOD_REPLACE
	}
	return done(func() C.int {
		return C.sapwood_builder_write(builder, name, C.uint64_t(options.Size), flags)
	})
}

func add(builder *C.sapwood_builder, source Source) error {
	if source.At != "" {
		at := C.CString(source.At)
		defer C.free(unsafe.Pointer(at))
		if err := done(func() C.int { return C.sapwood_builder_at(builder, at) }); err != nil {
			return err
		}
	}
	kind, path := C.CString(string(source.Kind)), C.CString(source.Path)
	defer C.free(unsafe.Pointer(kind))
	defer C.free(unsafe.Pointer(path))
	return done(func() C.int { return C.sapwood_builder_add(builder, kind, path) })
}

func set(builder *C.sapwood_builder, options BuildOptions) error {
	one := func(option, text string) error {
		name, value := C.CString(option), (*C.char)(nil)
		defer C.free(unsafe.Pointer(name))
		if text != "" {
			value = C.CString(text)
			defer C.free(unsafe.Pointer(value))
		}
		return done(func() C.int { return C.sapwood_builder_set(builder, name, value) })
	}
	given := []struct {
		name, value string
		is          bool
	}{
		{"free", options.Free, options.Free != ""},
		{"output-format", options.OutputFormat, options.OutputFormat != ""},
		{"all-root", "", options.AllRoot},
		{"reproducible", "", options.Reproducible},
	}
	for _, option := range given {
		if !option.is {
			continue
		}
		if err := one(option.name, option.value); err != nil {
			return err
		}
	}
	for _, pattern := range options.Exclude {
		if err := one("exclude", pattern); err != nil {
			return err
		}
	}
	for option, value := range options.Options {
		if err := one(option, value); err != nil {
			return err
		}
	}
	return nil
}

// Resize changes the size of an image that is not open, and of its file: "min", "2G", or a change
// as "+1G". It returns the size of the file system in bytes.
func Resize(image, size string) (uint64, error) {
	name, wanted := C.CString(image), C.CString(size)
	defer C.free(unsafe.Pointer(name))
	defer C.free(unsafe.Pointer(wanted))
	var after C.uint64_t
	err := done(func() C.int { return C.sapwood_resize(name, wanted, &after) })
	return uint64(after), wrap("resize", image, err)
}
