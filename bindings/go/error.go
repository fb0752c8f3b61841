package sapwood

// #include <sapwood.h>
import "C"

import (
	"io/fs"
	"runtime"
	"strings"
	"syscall"
)

// Error is an error of the library: its number, and a message that names the path, block or inode.
type Error struct {
	Errno   syscall.Errno
	Message string
}

func (e *Error) Error() string { return e.Message }

// Unwrap returns the error number, which matches [fs.ErrNotExist], [fs.ErrExist] and
// [fs.ErrPermission].
func (e *Error) Unwrap() error { return e.Errno }

// call runs a function of the library. The message of an error belongs to the thread, so the
// goroutine keeps its thread until the message is read.
func call[N ~int32 | ~int64](function func() N) (N, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	result := function()
	if result >= 0 {
		return result, nil
	}
	return 0, &Error{syscall.Errno(-result), C.GoString(C.sapwood_error_message())}
}

// done runs a function of the library that returns no value.
func done(function func() C.int) error {
	_, err := call(function)
	return err
}

// wrap names the operation and its path in an error.
func wrap(op, path string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: path, Err: err}
}

// valid rejects a path that io/fs does not allow. Names need not be UTF-8.
func valid(op, name string) error {
	if strings.IndexByte(name, 0) >= 0 || !fs.ValidPath(strings.ToValidUTF8(name, "?")) {
		return &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	return nil
}
