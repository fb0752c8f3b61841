package sapwood

// #cgo LDFLAGS: -lsapwood
// #include <fcntl.h>
// #include <stdlib.h>
// #include <sapwood.h>
import "C"

import (
	"io/fs"
	"path"
	"sort"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// FS is an open image. Any number of goroutines may use it at the same time.
type FS struct {
	// Close writes; every other method reads.
	mutex  sync.RWMutex
	handle *C.sapwood_fs
}

var (
	_ fs.ReadDirFS  = (*FS)(nil)
	_ fs.ReadFileFS = (*FS)(nil)
	_ fs.StatFS     = (*FS)(nil)
)

// Open opens an image file or a block device. "disk.img#2" is the second partition. Options are
// mount options, such as "ro" or "compress=zstd". No other program can open the image meanwhile,
// unless both only read.
func Open(image string, options ...string) (*FS, error) {
	name := C.CString(image)
	defer C.free(unsafe.Pointer(name))
	list := C.CString(strings.Join(options, ","))
	defer C.free(unsafe.Pointer(list))
	opened := new(FS)
	err := done(func() C.int { return C.sapwood_open(name, list, &opened.handle) })
	if err != nil {
		return nil, wrap("open", image, err)
	}
	return opened, nil
}

// Close makes all changes durable and releases the image. The image is closed even if this returns
// an error. Closing twice is an error.
func (f *FS) Close() error {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if f.handle == nil {
		return fs.ErrClosed
	}
	handle := f.handle
	f.handle = nil
	return done(func() C.int { return C.sapwood_close(handle) })
}

// use runs a function with the handle of the open image.
func (f *FS) use(function func(*C.sapwood_fs) error) error {
	f.mutex.RLock()
	defer f.mutex.RUnlock()
	if f.handle == nil {
		return fs.ErrClosed
	}
	return function(f.handle)
}

// at runs a function of the library on a path.
func (f *FS) at(op, name string, function func(*C.sapwood_fs, *C.char) C.int) error {
	if err := valid(op, name); err != nil {
		return err
	}
	return wrap(op, name, f.use(func(handle *C.sapwood_fs) error {
		text := C.CString(name)
		defer C.free(unsafe.Pointer(text))
		return done(func() C.int { return function(handle, text) })
	}))
}

// Sync makes all changes durable.
func (f *FS) Sync() error {
	return f.use(func(handle *C.sapwood_fs) error {
		return done(func() C.int { return C.sapwood_sync(handle) })
	})
}

// Type returns "btrfs" or "ext4"; an empty string if the image is closed.
func (f *FS) Type() string {
	kind := ""
	_ = f.use(func(handle *C.sapwood_fs) error {
		kind = C.GoString(C.sapwood_type(handle))
		return nil
	})
	return kind
}

// Usage has the sizes and counts of a file system.
type Usage struct {
	// Unit of the counts of blocks, in bytes.
	BlockSize uint32
	// Size of the file system, unused blocks, and those that an ordinary user may have.
	Blocks, BlocksFree, BlocksAvailable uint64
	// Number of inodes, and unused ones; 0 if they are created on demand.
	Inodes, InodesFree uint64
	// Longest name in bytes.
	NameMax uint32
}

// Usage returns sizes and counts.
func (f *FS) Usage() (Usage, error) {
	var found C.sapwood_statfs_t
	err := f.use(func(handle *C.sapwood_fs) error {
		return done(func() C.int { return C.sapwood_statfs(handle, &found) })
	})
	return Usage{
		BlockSize:       uint32(found.block_size),
		Blocks:          uint64(found.blocks),
		BlocksFree:      uint64(found.blocks_free),
		BlocksAvailable: uint64(found.blocks_available),
		Inodes:          uint64(found.inodes),
		InodesFree:      uint64(found.inodes_free),
		NameMax:         uint32(found.name_max),
	}, err
}

// SetCreator sets the owner and group of new files. The default is the owner of the process.
func (f *FS) SetCreator(uid, gid uint32) error {
	return f.use(func(handle *C.sapwood_fs) error {
		return done(func() C.int { return C.sapwood_set_creator(handle, C.uint32_t(uid), C.uint32_t(gid)) })
	})
}

// Open opens a file or directory for reading. The file is a [*File].
func (f *FS) Open(name string) (fs.File, error) {
	info, err := f.stat("open", name, true)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return &openDir{fs: f, path: name, info: info}, nil
	}
	return f.OpenFile(name, syscall.O_RDONLY, 0)
}

// Stat follows symbolic links. The Sys method of its result returns a [*Stat].
func (f *FS) Stat(name string) (fs.FileInfo, error) { return f.stat("stat", name, true) }

// Lstat describes a symbolic link itself.
func (f *FS) Lstat(name string) (fs.FileInfo, error) { return f.stat("lstat", name, false) }

func (f *FS) stat(op, name string, follow bool) (fs.FileInfo, error) {
	var found C.sapwood_stat_t
	err := f.at(op, name, func(handle *C.sapwood_fs, text *C.char) C.int {
		if follow {
			return C.sapwood_stat(handle, text, &found)
		}
		return C.sapwood_lstat(handle, text, &found)
	})
	if err != nil {
		return nil, err
	}
	return newInfo(path.Base(name), &found), nil
}

// ReadDir returns the entries of a directory, sorted by name. If an entry cannot be read, it
// returns the entries before it, and the error.
func (f *FS) ReadDir(name string) ([]fs.DirEntry, error) {
	var dir *C.sapwood_dir
	err := f.at("readdir", name, func(handle *C.sapwood_fs, text *C.char) C.int {
		return C.sapwood_dir_open(handle, text, &dir)
	})
	if err != nil {
		return nil, err
	}
	entries := []fs.DirEntry{}
	var entry C.sapwood_entry
	for {
		more, err := call(func() C.int { return C.sapwood_dir_next(dir, &entry) })
		if err != nil || more == 0 {
			closing := done(func() C.int { return C.sapwood_dir_close(dir) })
			if err == nil {
				err = closing
			}
			sort.Slice(entries, func(a, b int) bool { return entries[a].Name() < entries[b].Name() })
			return entries, wrap("readdir", name, err)
		}
		entries = append(entries, &dirEntry{
			fs:   f,
			dir:  name,
			name: C.GoString(entry.name),
			mode: fileMode(uint32(entry.mode)),
		})
	}
}

// ReadFile returns the content of a file.
func (f *FS) ReadFile(name string) ([]byte, error) {
	file, err := f.OpenFile(name, syscall.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return file.readAll()
}

// ReadLink returns the target of a symbolic link.
func (f *FS) ReadLink(name string) (string, error) {
	value, err := f.value("readlink", name, func(handle *C.sapwood_fs, text *C.char, buffer unsafe.Pointer, size C.size_t) C.ssize_t {
		return C.sapwood_readlink(handle, text, (*C.char)(buffer), size)
	})
	return string(value), err
}

// value reads a value of any length: first its length, then the value, again if it has grown.
func (f *FS) value(op, name string, function func(*C.sapwood_fs, *C.char, unsafe.Pointer, C.size_t) C.ssize_t) ([]byte, error) {
	if err := valid(op, name); err != nil {
		return nil, err
	}
	var value []byte
	err := f.use(func(handle *C.sapwood_fs) error {
		text := C.CString(name)
		defer C.free(unsafe.Pointer(text))
		for {
			size, err := call(func() C.ssize_t { return function(handle, text, nil, 0) })
			if err != nil || size == 0 {
				return err
			}
			value = make([]byte, size)
			size, err = call(func() C.ssize_t {
				return function(handle, text, unsafe.Pointer(&value[0]), C.size_t(len(value)))
			})
			if known, ok := err.(*Error); ok && known.Errno == syscall.ERANGE {
				continue
			}
			value = value[:size]
			return err
		}
	})
	return value, wrap(op, name, err)
}

// ctime converts a time for the library.
func ctime(t time.Time) C.sapwood_time {
	return C.sapwood_time{sec: C.int64_t(t.Unix()), nsec: C.uint32_t(t.Nanosecond())}
}
