package sapwood

// #include <stdlib.h>
// #include <sapwood.h>
import "C"

import (
	"errors"
	"io"
	"io/fs"
	"path"
	"sync"
	"syscall"
)

// File is an open file of an image. Any number of goroutines may use it at the same time; they
// share one position.
type File struct {
	name string
	// Close writes; every other method reads.
	mutex  sync.RWMutex
	handle *C.sapwood_file
}

var (
	_ fs.File            = (*File)(nil)
	_ io.ReadWriteSeeker = (*File)(nil)
	_ io.ReaderAt        = (*File)(nil)
	_ io.WriterAt        = (*File)(nil)
)

// OpenFile opens a file with flags of package os: os.O_RDONLY, os.O_WRONLY or os.O_RDWR, with
// os.O_CREATE, os.O_EXCL, os.O_TRUNC or os.O_APPEND. A new file gets the permissions perm.
func (f *FS) OpenFile(name string, flag int, perm fs.FileMode) (*File, error) {
	file := &File{name: name}
	err := f.at("open", name, func(handle *C.sapwood_fs, text *C.char) C.int {
		return C.sapwood_file_open(handle, text, C.int(flag), unixMode(perm), &file.handle)
	})
	if err != nil {
		return nil, err
	}
	return file, nil
}

// use runs a function with the handle of the open file.
func (f *File) use(op string, function func(*C.sapwood_file) error) error {
	f.mutex.RLock()
	defer f.mutex.RUnlock()
	if f.handle == nil {
		return wrap(op, f.name, fs.ErrClosed)
	}
	return wrap(op, f.name, function(f.handle))
}

// count runs a function of the library that returns a number of bytes.
func (f *File) count(op string, function func(*C.sapwood_file) C.ssize_t) (int, error) {
	var bytes C.ssize_t
	err := f.use(op, func(handle *C.sapwood_file) (err error) {
		bytes, err = call(func() C.ssize_t { return function(handle) })
		return err
	})
	return int(bytes), err
}

// Close ends the use of the file. Written data is durable after [File.Sync], [FS.Sync] or
// [FS.Close].
func (f *File) Close() error {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if f.handle == nil {
		return wrap("close", f.name, fs.ErrClosed)
	}
	handle := f.handle
	f.handle = nil
	return wrap("close", f.name, done(func() C.int { return C.sapwood_file_close(handle) }))
}

// Name returns the path that the file was opened with.
func (f *File) Name() string { return f.name }

// Read reads at the position of the file.
func (f *File) Read(buffer []byte) (int, error) {
	bytes, err := f.count("read", func(handle *C.sapwood_file) C.ssize_t {
		return C.sapwood_file_read(handle, start(buffer), C.size_t(len(buffer)))
	})
	if err == nil && bytes == 0 && len(buffer) > 0 {
		err = io.EOF
	}
	return bytes, err
}

// ReadAt reads at a byte offset.
func (f *File) ReadAt(buffer []byte, offset int64) (int, error) {
	if offset < 0 {
		return 0, wrap("readat", f.name, errors.New("negative offset"))
	}
	bytes, err := f.count("readat", func(handle *C.sapwood_file) C.ssize_t {
		return C.sapwood_file_pread(handle, start(buffer), C.size_t(len(buffer)), C.uint64_t(offset))
	})
	if err == nil && bytes < len(buffer) {
		err = io.EOF
	}
	return bytes, err
}

// Write writes all bytes at the position of the file; with os.O_APPEND, at its end.
func (f *File) Write(data []byte) (int, error) {
	return f.count("write", func(handle *C.sapwood_file) C.ssize_t {
		return C.sapwood_file_write(handle, start(data), C.size_t(len(data)))
	})
}

// WriteAt writes all bytes at a byte offset.
func (f *File) WriteAt(data []byte, offset int64) (int, error) {
	if offset < 0 {
		return 0, wrap("writeat", f.name, errors.New("negative offset"))
	}
	return f.count("writeat", func(handle *C.sapwood_file) C.ssize_t {
		return C.sapwood_file_pwrite(handle, start(data), C.size_t(len(data)), C.uint64_t(offset))
	})
}

// Seek moves the position of the file.
func (f *File) Seek(offset int64, whence int) (int64, error) {
	var position C.int64_t
	err := f.use("seek", func(handle *C.sapwood_file) (err error) {
		position, err = call(func() C.int64_t {
			return C.sapwood_file_seek(handle, C.int64_t(offset), C.int(whence))
		})
		return err
	})
	return int64(position), err
}

// Truncate cuts the file, or extends it with a hole.
func (f *File) Truncate(size int64) error {
	if size < 0 {
		return wrap("truncate", f.name, syscall.EINVAL)
	}
	return f.use("truncate", func(handle *C.sapwood_file) error {
		return done(func() C.int { return C.sapwood_file_truncate(handle, C.uint64_t(size)) })
	})
}

// Sync makes content and metadata of the file durable.
func (f *File) Sync() error {
	return f.use("sync", func(handle *C.sapwood_file) error {
		return done(func() C.int { return C.sapwood_file_sync(handle) })
	})
}

// Stat describes the file.
func (f *File) Stat() (fs.FileInfo, error) {
	var found C.sapwood_stat_t
	err := f.use("stat", func(handle *C.sapwood_file) error {
		return done(func() C.int { return C.sapwood_file_stat(handle, &found) })
	})
	if err != nil {
		return nil, err
	}
	return newInfo(path.Base(f.name), &found), nil
}

// readAll reads from the position to the end. It believes the size of the file for the first
// buffer only up to a bound: a sparse file may claim any size.
func (f *File) readAll() ([]byte, error) {
	const bound = 16 << 20
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	data := make([]byte, 0, min(info.Size(), bound)+1)
	for {
		if len(data) == cap(data) {
			data = append(data, 0)[:len(data)]
		}
		bytes, err := f.Read(data[len(data):cap(data)])
		data = data[:len(data)+bytes]
		if err == io.EOF {
			return data, nil
		}
		if err != nil {
			return data, err
		}
	}
}

// openDir is an open directory.
type openDir struct {
	fs     *FS
	path   string
	info   fs.FileInfo
	mutex  sync.Mutex
	read   bool
	closed bool
	rest   []fs.DirEntry
}

var _ fs.ReadDirFile = (*openDir)(nil)

func (d *openDir) Stat() (fs.FileInfo, error) { return d.info, nil }

func (d *openDir) Read([]byte) (int, error) { return 0, wrap("read", d.path, syscall.EISDIR) }

func (d *openDir) Close() error {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.closed {
		return wrap("close", d.path, fs.ErrClosed)
	}
	d.closed = true
	return nil
}

// ReadDir returns the next entries, sorted by name. All are read at the first call.
func (d *openDir) ReadDir(count int) ([]fs.DirEntry, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.closed {
		return nil, wrap("readdir", d.path, fs.ErrClosed)
	}
	if !d.read {
		entries, err := d.fs.ReadDir(d.path)
		if err != nil {
			return nil, err
		}
		d.rest, d.read = entries, true
	}
	if count > 0 && len(d.rest) == 0 {
		return nil, io.EOF
	}
	if count <= 0 || count > len(d.rest) {
		count = len(d.rest)
	}
	now := d.rest[:count:count]
	d.rest = d.rest[count:]
	return now, nil
}
