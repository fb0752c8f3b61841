// Package sapwood reads and writes btrfs and ext4 images in user space. It needs no root, no loop
// device and no kernel driver.
//
//	image, err := sapwood.Open("disk.img")
//	if err != nil {
//		return err
//	}
//	defer image.Close()
//	err = image.WriteFile("etc/hostname", []byte("box\n"), 0o644)
//
// An [FS] is an [io/fs.FS], so [io/fs.WalkDir], [io/fs.Glob], [net/http.FS] and the like work on an
// image. Its further methods are named like the functions of package os, and change the image.
//
// # Paths
//
// Paths follow [io/fs]: relative to the root of the image, with slashes, "." for the root itself.
// Names are bytes and need not be UTF-8. A symbolic link is followed within the image, and never
// leads out of it. No permission is checked.
//
// # Errors
//
// A method that takes a path returns a [*io/fs.PathError] with an [*Error] in it, so
// errors.Is(err, fs.ErrNotExist) works, and so does errors.Is(err, syscall.ENOSPC).
//
// # Durability
//
// [File.Sync], [FS.Sync] and [FS.Close] return when the changes are durable. Check the error of
// Close.
//
// # Building
//
// The package calls the C library libsapwood (`make install-lib`, or the package libsapwood-dev).
// If it is in another directory, set CGO_CFLAGS and CGO_LDFLAGS.
package sapwood
