package sapwood

// #include <stdlib.h>
// #include <sapwood.h>
import "C"

import (
	"io/fs"
	"unsafe"
)

// CopyOptions say what a copy keeps.
type CopyOptions struct {
	// Directories are copied with everything below them.
	Recursive bool
	// As Recursive; owner, mode, times, extended attributes, hard links and special files are kept.
	Archive bool
	// A file that exists stays.
	Keep bool
}

func (o CopyOptions) flags() C.uint32_t {
	flags := C.uint32_t(0)
	if o.Recursive {
		flags |= C.SAPWOOD_COPY_RECURSIVE
	}
	if o.Archive {
		flags |= C.SAPWOOD_COPY_ARCHIVE
	}
	if o.Keep {
		flags |= C.SAPWOOD_COPY_KEEP
	}
	return flags
}

// CopyIn copies a file or directory of this machine into the image. If name is a directory, the
// copy gets the name of the source in it. Everything is tried; the first failure is the error.
func (f *FS) CopyIn(source, name string, options CopyOptions) error {
	return f.copied("copy in", name, source, options, func(handle *C.sapwood_fs, here, there *C.char) C.int {
		return C.sapwood_copy(nil, there, handle, here, options.flags())
	})
}

// CopyOut copies a file or directory of the image to this machine. If target is a directory, the
// copy gets its own name in it. Everything is tried; the first failure is the error.
func (f *FS) CopyOut(name, target string, options CopyOptions) error {
	return f.copied("copy out", name, target, options, func(handle *C.sapwood_fs, here, there *C.char) C.int {
		return C.sapwood_copy(handle, here, nil, there, options.flags())
	})
}

func (f *FS) copied(op, name, host string, options CopyOptions, function func(handle *C.sapwood_fs, here, there *C.char) C.int) error {
	there := C.CString(host)
	defer C.free(unsafe.Pointer(there))
	return f.at(op, name, func(handle *C.sapwood_fs, here *C.char) C.int {
		return function(handle, here, there)
	})
}

// Untar extracts a tar archive of this machine into a directory of the image. The archive is plain
// or compressed with gzip, zstd, xz or bzip2.
func (f *FS) Untar(archive, name string) error {
	file := C.CString(archive)
	defer C.free(unsafe.Pointer(file))
	return f.at("untar", name, func(handle *C.sapwood_fs, dir *C.char) C.int {
		return C.sapwood_untar(handle, file, dir)
	})
}

// ExportOptions describe an archive.
type ExportOptions struct {
	// "gzip" or "zstd". Empty: no compression.
	Compression string
	// Only the changes since the directory SincePath of this image, which may be the same one.
	Since     *FS
	SincePath string
	// A layer of an OCI image, with whiteouts.
	Layer bool
	// What cannot be read becomes zeros, and is counted as damaged. Otherwise it is an error.
	KeepGoing bool
	// An existing file is replaced.
	Replace bool
}

// Exported describes an archive that was made.
type Exported struct {
	// Entries, whiteouts among them.
	Entries uint64
	// Sockets, which an archive cannot have.
	LeftOut uint64
	// Files and directories that could not be read, or only in part.
	Damaged uint64
	// Bytes of the archive.
	Size uint64
	// SHA-256 before compression, and of the file: the diff_id and the digest of a layer.
	DiffID, Digest [32]byte
}

// Export writes a directory of the image to a tar archive on this machine. The archive gets its
// name when it is complete and durable.
func (f *FS) Export(name, archive string, options ExportOptions) (*Exported, error) {
	if err := valid("export", name); err != nil {
		return nil, err
	}
	if options.Since != nil {
		if err := valid("export", options.SincePath); err != nil {
			return nil, err
		}
	}
	file := C.CString(archive)
	defer C.free(unsafe.Pointer(file))
	var compression *C.char
	if options.Compression != "" {
		compression = C.CString(options.Compression)
		defer C.free(unsafe.Pointer(compression))
	}
	flags := C.uint32_t(0)
	if options.Layer {
		flags |= C.SAPWOOD_EXPORT_LAYER
	}
	if options.KeepGoing {
		flags |= C.SAPWOOD_EXPORT_KEEP_GOING
	}
	if options.Replace {
		flags |= C.SAPWOOD_REPLACE
	}
	var made C.sapwood_exported
	err := f.since(options, func(since *C.sapwood_fs, old *C.char, handle *C.sapwood_fs) error {
		dir := C.CString(name)
		defer C.free(unsafe.Pointer(dir))
		return done(func() C.int {
			return C.sapwood_export(handle, dir, file, compression, since, old, flags, &made)
		})
	})
	if err != nil {
		return nil, wrap("export", name, err)
	}
	exported := &Exported{
		Entries: uint64(made.entries),
		LeftOut: uint64(made.left_out),
		Damaged: uint64(made.damaged),
		Size:    uint64(made.size),
	}
	copy(exported.DiffID[:], C.GoBytes(unsafe.Pointer(&made.diff_id[0]), 32))
	copy(exported.Digest[:], C.GoBytes(unsafe.Pointer(&made.digest[0]), 32))
	return exported, nil
}

// since runs a function with the handles of the base of an export, its directory, and this image.
func (f *FS) since(options ExportOptions, work func(since *C.sapwood_fs, old *C.char, handle *C.sapwood_fs) error) error {
	if options.Since == nil {
		return f.use(func(handle *C.sapwood_fs) error { return work(nil, nil, handle) })
	}
	old := C.CString(options.SincePath)
	defer C.free(unsafe.Pointer(old))
	return both(options.Since, f, func(since, handle *C.sapwood_fs) error {
		return work(since, old, handle)
	})
}

// both runs a function with the handles of two open images, which may be one.
func both(one, other *FS, function func(one, other *C.sapwood_fs) error) error {
	if one == other {
		return one.use(func(handle *C.sapwood_fs) error { return function(handle, handle) })
	}
	// Every pair is locked in the same order, so that calls and closes never wait for each other.
	if uintptr(unsafe.Pointer(other)) < uintptr(unsafe.Pointer(one)) {
		return both(other, one, func(second, first *C.sapwood_fs) error { return function(first, second) })
	}
	return one.use(func(first *C.sapwood_fs) error {
		return other.use(func(second *C.sapwood_fs) error { return function(first, second) })
	})
}

// DifferenceKind says what happened to a name.
type DifferenceKind uint32

// The kinds of differences.
const (
	Removed DifferenceKind = C.SAPWOOD_REMOVED
	Renamed DifferenceKind = C.SAPWOOD_RENAMED
	Added   DifferenceKind = C.SAPWOOD_ADDED
	Changed DifferenceKind = C.SAPWOOD_CHANGED
)

// Parts are the parts of a changed file that differ.
type Parts uint32

// The parts of a file.
const (
	PartContent Parts = C.SAPWOOD_PART_CONTENT
	PartSize    Parts = C.SAPWOOD_PART_SIZE
	PartMtime   Parts = C.SAPWOOD_PART_MTIME
	PartMode    Parts = C.SAPWOOD_PART_MODE
	PartUID     Parts = C.SAPWOOD_PART_UID
	PartGID     Parts = C.SAPWOOD_PART_GID
	PartXattrs  Parts = C.SAPWOOD_PART_XATTRS
)

// Difference is a difference between two directories.
type Difference struct {
	Kind DifferenceKind
	// Path in the old directory if it was removed, else in the new one.
	Path string
	// Old path of a renamed file.
	From string
	// Type of the file.
	Type fs.FileMode
	// For a changed file.
	Parts Parts
}

// Diff compares the directory old of this image with the directory name of another image, or of
// this one. The differences are sorted by path. With content, the bytes of files are compared;
// otherwise a file of equal size and modification time counts as unchanged.
func (f *FS) Diff(old string, other *FS, name string, content bool) ([]Difference, error) {
	if err := valid("diff", old); err != nil {
		return nil, err
	}
	if err := valid("diff", name); err != nil {
		return nil, err
	}
	before, after := C.CString(old), C.CString(name)
	defer C.free(unsafe.Pointer(before))
	defer C.free(unsafe.Pointer(after))
	flags := C.uint32_t(0)
	if content {
		flags |= C.SAPWOOD_DIFF_CONTENT
	}
	var found *C.sapwood_differences
	err := both(f, other, func(mine, theirs *C.sapwood_fs) error {
		return done(func() C.int {
			return C.sapwood_diff(mine, before, theirs, after, flags, &found)
		})
	})
	if err != nil {
		return nil, wrap("diff", name, err)
	}
	defer C.sapwood_differences_free(found)
	all := make([]Difference, 0, int(C.sapwood_differences_count(found)))
	for at := C.size_t(0); at < C.sapwood_differences_count(found); at++ {
		var one C.sapwood_difference
		if err := done(func() C.int { return C.sapwood_differences_get(found, at, &one) }); err != nil {
			return nil, wrap("diff", name, err)
		}
		all = append(all, Difference{
			Kind:  DifferenceKind(one.kind),
			Path:  C.GoString(one.path),
			From:  C.GoString(one.from),
			Type:  fileMode(uint32(one.mode)).Type(),
			Parts: Parts(one.parts),
		})
	}
	return all, nil
}
