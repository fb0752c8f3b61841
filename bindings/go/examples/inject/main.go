// Inject copies files of this machine into an image, owned by root: `inject IMAGE FILE... DIR`. A
// builder of micro-VMs does this with a key, an agent and a configuration before each start.
package main

import (
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"

	sapwood "github.com/sapwood-fs/sapwood/bindings/go"
)

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: inject IMAGE FILE... DIR")
		os.Exit(2)
	}
	last := len(os.Args) - 1
	if err := inject(os.Args[1], os.Args[2:last], os.Args[last]); err != nil {
		fmt.Fprintln(os.Stderr, "inject:", err)
		os.Exit(1)
	}
}

func inject(name string, files []string, dir string) (err error) {
	image, err := sapwood.Open(name)
	if err != nil {
		return err
	}
	// Written data is durable when Close returns without an error.
	defer func() {
		if closing := image.Close(); err == nil {
			err = closing
		}
	}()
	if err := image.SetCreator(0, 0); err != nil {
		return err
	}
	if err := image.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, file := range files {
		if err := copyIn(image, file, path.Join(dir, filepath.Base(file))); err != nil {
			return err
		}
	}
	return nil
}

func copyIn(image *sapwood.FS, from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	info, err := source.Stat()
	if err != nil {
		return err
	}
	file, err := image.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, info.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(file, source)
	if closing := file.Close(); err == nil {
		err = closing
	}
	return err
}
