package sapwood

// #include <stdlib.h>
// #include <sapwood.h>
import "C"

import (
	"io/fs"
	"math"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// Create creates a file, or truncates one that exists.
func (f *FS) Create(name string) (*File, error) {
	return f.OpenFile(name, syscall.O_RDWR|syscall.O_CREAT|syscall.O_TRUNC, 0o666)
}

// WriteFile writes a file, which it creates or truncates.
func (f *FS) WriteFile(name string, data []byte, perm fs.FileMode) error {
	file, err := f.OpenFile(name, syscall.O_WRONLY|syscall.O_CREAT|syscall.O_TRUNC, perm)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if closing := file.Close(); err == nil {
		err = closing
	}
	return err
}

// Mkdir creates a directory.
func (f *FS) Mkdir(name string, perm fs.FileMode) error {
	return f.at("mkdir", name, func(handle *C.sapwood_fs, text *C.char) C.int {
		return C.sapwood_mkdir(handle, text, unixMode(perm))
	})
}

// MkdirAll creates a directory and all missing ones above it.
func (f *FS) MkdirAll(name string, perm fs.FileMode) error {
	return f.at("mkdir", name, func(handle *C.sapwood_fs, text *C.char) C.int {
		return C.sapwood_mkdir_all(handle, text, unixMode(perm))
	})
}

// Remove removes a file, or an empty directory.
func (f *FS) Remove(name string) error {
	info, err := f.stat("remove", name, false)
	if err != nil {
		return err
	}
	return f.at("remove", name, func(handle *C.sapwood_fs, text *C.char) C.int {
		if info.IsDir() {
			return C.sapwood_rmdir(handle, text)
		}
		return C.sapwood_unlink(handle, text)
	})
}

// RemoveAll removes a file, or a directory and everything below it. A missing one is no error.
func (f *FS) RemoveAll(name string) error {
	info, err := f.stat("removeall", name, false)
	if known, ok := err.(*fs.PathError); ok && isNotExist(known.Err) {
		return nil
	}
	if err != nil {
		return err
	}
	return f.at("removeall", name, func(handle *C.sapwood_fs, text *C.char) C.int {
		if info.IsDir() {
			return C.sapwood_remove_all(handle, text)
		}
		return C.sapwood_unlink(handle, text)
	})
}

func isNotExist(err error) bool {
	known, ok := err.(*Error)
	return ok && known.Errno == syscall.ENOENT
}

// Rename renames a file or directory. It replaces a file or an empty directory at the new path.
func (f *FS) Rename(from, to string) error { return f.twoPaths("rename", from, to, rename) }

// Link gives a file one more name.
func (f *FS) Link(original, name string) error { return f.twoPaths("link", original, name, link) }

func rename(handle *C.sapwood_fs, from, to *C.char) C.int { return C.sapwood_rename(handle, from, to) }
func link(handle *C.sapwood_fs, from, to *C.char) C.int   { return C.sapwood_link(handle, from, to) }

func (f *FS) twoPaths(op, from, to string, function func(*C.sapwood_fs, *C.char, *C.char) C.int) error {
	if err := valid(op, to); err != nil {
		return err
	}
	second := C.CString(to)
	defer C.free(unsafe.Pointer(second))
	return f.at(op, from, func(handle *C.sapwood_fs, text *C.char) C.int {
		return function(handle, text, second)
	})
}

// Symlink creates a symbolic link with a target, which may be any text.
func (f *FS) Symlink(target, name string) error {
	if strings.IndexByte(target, 0) >= 0 {
		return &fs.PathError{Op: "symlink", Path: target, Err: fs.ErrInvalid}
	}
	text := C.CString(target)
	defer C.free(unsafe.Pointer(text))
	return f.at("symlink", name, func(handle *C.sapwood_fs, path *C.char) C.int {
		return C.sapwood_symlink(handle, text, path)
	})
}

// Chmod sets permission, set-id and sticky bits. It follows symbolic links.
func (f *FS) Chmod(name string, mode fs.FileMode) error {
	return f.at("chmod", name, func(handle *C.sapwood_fs, text *C.char) C.int {
		return C.sapwood_chmod(handle, text, unixMode(mode))
	})
}

// Lchown sets owner and group, of a symbolic link itself. -1 leaves one as it is.
func (f *FS) Lchown(name string, uid, gid int) error {
	ids := [2]C.uint32_t{}
	for at, id := range [2]int{uid, gid} {
		if id < -1 || id >= math.MaxUint32 {
			return &fs.PathError{Op: "lchown", Path: name, Err: fs.ErrInvalid}
		}
		ids[at] = C.uint32_t(uint32(id))
	}
	return f.at("lchown", name, func(handle *C.sapwood_fs, text *C.char) C.int {
		return C.sapwood_chown(handle, text, ids[0], ids[1])
	})
}

// Chtimes sets the times of the last access and of the last change. A zero time leaves one as it
// is.
func (f *FS) Chtimes(name string, atime, mtime time.Time) error {
	accessed, modified := ctime(atime), ctime(mtime)
	return f.at("chtimes", name, func(handle *C.sapwood_fs, text *C.char) C.int {
		first, second := &accessed, &modified
		if atime.IsZero() {
			first = nil
		}
		if mtime.IsZero() {
			second = nil
		}
		return C.sapwood_set_times(handle, text, first, second)
	})
}

// Truncate changes the size of a file.
func (f *FS) Truncate(name string, size int64) error {
	file, err := f.OpenFile(name, syscall.O_WRONLY, 0)
	if err != nil {
		return err
	}
	err = file.Truncate(size)
	if closing := file.Close(); err == nil {
		err = closing
	}
	return err
}

// Getxattr returns the value of an extended attribute by its full name, such as "user.x".
// A missing one is syscall.ENODATA.
func (f *FS) Getxattr(name, attribute string) ([]byte, error) {
	if strings.IndexByte(attribute, 0) >= 0 {
		return nil, &fs.PathError{Op: "getxattr", Path: name, Err: fs.ErrInvalid}
	}
	key := C.CString(attribute)
	defer C.free(unsafe.Pointer(key))
	return f.value("getxattr", name, func(handle *C.sapwood_fs, text *C.char, buffer unsafe.Pointer, size C.size_t) C.ssize_t {
		return C.sapwood_getxattr(handle, text, key, buffer, size)
	})
}

// Listxattr returns the full names of all extended attributes.
func (f *FS) Listxattr(name string) ([]string, error) {
	list, err := f.value("listxattr", name, func(handle *C.sapwood_fs, text *C.char, buffer unsafe.Pointer, size C.size_t) C.ssize_t {
		return C.sapwood_listxattr(handle, text, (*C.char)(buffer), size)
	})
	names := strings.Split(string(list), "\x00")
	return names[:len(names)-1], err
}

// Setxattr sets an extended attribute.
func (f *FS) Setxattr(name, attribute string, value []byte) error {
	if strings.IndexByte(attribute, 0) >= 0 {
		return &fs.PathError{Op: "setxattr", Path: name, Err: fs.ErrInvalid}
	}
	key := C.CString(attribute)
	defer C.free(unsafe.Pointer(key))
	return f.at("setxattr", name, func(handle *C.sapwood_fs, text *C.char) C.int {
		return C.sapwood_setxattr(handle, text, key, start(value), C.size_t(len(value)))
	})
}

// Removexattr removes an extended attribute. A missing one is syscall.ENODATA.
func (f *FS) Removexattr(name, attribute string) error {
	if strings.IndexByte(attribute, 0) >= 0 {
		return &fs.PathError{Op: "removexattr", Path: name, Err: fs.ErrInvalid}
	}
	key := C.CString(attribute)
	defer C.free(unsafe.Pointer(key))
	return f.at("removexattr", name, func(handle *C.sapwood_fs, text *C.char) C.int {
		return C.sapwood_removexattr(handle, text, key)
	})
}

// CreateSubvolume creates a subvolume of a btrfs.
func (f *FS) CreateSubvolume(name string) error {
	return f.at("subvolume", name, func(handle *C.sapwood_fs, text *C.char) C.int {
		return C.sapwood_subvolume_create(handle, text)
	})
}

// DeleteSubvolume deletes a subvolume or snapshot with everything in it.
func (f *FS) DeleteSubvolume(name string) error {
	return f.at("subvolume", name, func(handle *C.sapwood_fs, text *C.char) C.int {
		return C.sapwood_subvolume_delete(handle, text)
	})
}

// Snapshot creates a snapshot of a subvolume of a btrfs. "." is the subvolume that is open.
func (f *FS) Snapshot(from, to string, readOnly bool) error {
	return f.twoPaths("snapshot", from, to, func(handle *C.sapwood_fs, from, to *C.char) C.int {
		return C.sapwood_snapshot(handle, from, to, C.bool(readOnly))
	})
}

// start returns the address of the first byte; nil if there is none.
func start(data []byte) unsafe.Pointer {
	return unsafe.Pointer(unsafe.SliceData(data))
}
