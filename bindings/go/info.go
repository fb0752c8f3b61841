package sapwood

// #include <sapwood.h>
import "C"

import (
	"io/fs"
	"path"
	"syscall"
	"time"
)

// Stat has the metadata of a file that [fs.FileInfo] has no method for.
type Stat struct {
	// Inode number.
	Ino uint64
	// Allocated space in bytes.
	Allocated uint64
	// Device number of a device node; otherwise 0.
	Rdev uint64
	// Type and permissions, as st_mode of stat(2).
	Mode uint32
	// Number of names.
	Nlink uint32
	// Owner and group.
	Uid, Gid uint32
	// Last access, last change of the inode, creation.
	Atime, Ctime, Btime time.Time
}

type info struct {
	name  string
	size  int64
	mtime time.Time
	stat  Stat
}

func newInfo(name string, found *C.sapwood_stat_t) fs.FileInfo {
	at := func(t C.sapwood_time) time.Time { return time.Unix(int64(t.sec), int64(t.nsec)) }
	return &info{
		name:  name,
		size:  int64(found.size),
		mtime: at(found.mtime),
		stat: Stat{
			Ino:       uint64(found.ino),
			Allocated: uint64(found.allocated),
			Rdev:      uint64(found.rdev),
			Mode:      uint32(found.mode),
			Nlink:     uint32(found.nlink),
			Uid:       uint32(found.uid),
			Gid:       uint32(found.gid),
			Atime:     at(found.atime),
			Ctime:     at(found.ctime),
			Btime:     at(found.btime),
		},
	}
}

func (i *info) Name() string       { return i.name }
func (i *info) Size() int64        { return i.size }
func (i *info) Mode() fs.FileMode  { return fileMode(i.stat.Mode) }
func (i *info) ModTime() time.Time { return i.mtime }
func (i *info) IsDir() bool        { return i.Mode().IsDir() }
func (i *info) Sys() any           { return &i.stat }
func (i *info) String() string     { return fs.FormatFileInfo(i) }

// dirEntry is a name in a directory, and the type of its file.
type dirEntry struct {
	fs   *FS
	dir  string
	name string
	mode fs.FileMode
}

func (e *dirEntry) Name() string               { return e.name }
func (e *dirEntry) IsDir() bool                { return e.mode.IsDir() }
func (e *dirEntry) Type() fs.FileMode          { return e.mode.Type() }
func (e *dirEntry) Info() (fs.FileInfo, error) { return e.fs.Lstat(path.Join(e.dir, e.name)) }
func (e *dirEntry) String() string             { return fs.FormatDirEntry(e) }

var types = map[uint32]fs.FileMode{
	syscall.S_IFDIR:  fs.ModeDir,
	syscall.S_IFLNK:  fs.ModeSymlink,
	syscall.S_IFIFO:  fs.ModeNamedPipe,
	syscall.S_IFSOCK: fs.ModeSocket,
	syscall.S_IFBLK:  fs.ModeDevice,
	syscall.S_IFCHR:  fs.ModeDevice | fs.ModeCharDevice,
}

var bits = map[uint32]fs.FileMode{
	syscall.S_ISUID: fs.ModeSetuid,
	syscall.S_ISGID: fs.ModeSetgid,
	syscall.S_ISVTX: fs.ModeSticky,
}

// fileMode converts st_mode of stat(2).
func fileMode(unix uint32) fs.FileMode {
	mode := fs.FileMode(unix&0o777) | types[unix&syscall.S_IFMT]
	for bit, flag := range bits {
		if unix&bit != 0 {
			mode |= flag
		}
	}
	return mode
}

// unixMode returns permission, set-id and sticky bits.
func unixMode(mode fs.FileMode) C.uint32_t {
	unix := uint32(mode.Perm())
	for bit, flag := range bits {
		if mode&flag != 0 {
			unix |= bit
		}
	}
	return C.uint32_t(unix)
}
