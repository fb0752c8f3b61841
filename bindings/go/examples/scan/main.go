// Scan reports the facts that a scanner of VM images looks for: the operating system, the packages
// of dpkg, and programs that run with the rights of their owner. `scan IMAGE`. It needs no root and
// changes nothing.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	sapwood "github.com/sapwood-fs/sapwood/bindings/go"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: scan IMAGE")
		os.Exit(2)
	}
	if err := scan(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "scan:", err)
		os.Exit(1)
	}
}

func scan(name string) error {
	image, err := sapwood.Open(name, "ro")
	if err != nil {
		return err
	}
	defer image.Close()
	system, err := field(image, "etc/os-release", "PRETTY_NAME=")
	if err != nil {
		return err
	}
	packages, err := field(image, "var/lib/dpkg/status", "Package: ")
	if err != nil {
		return err
	}
	fmt.Printf("system: %s\npackages: %d\n", strings.Join(system, ""), len(packages))
	// From here on any function that takes an fs.FS works.
	return fs.WalkDir(image, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !entry.Type().IsRegular() {
			return nil
		}
		info, err := entry.Info()
		if err == nil && info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
			fmt.Printf("set-id: %s %s (owner %d)\n", info.Mode(), path, info.Sys().(*sapwood.Stat).Uid)
		}
		return err
	})
}

// field returns the rest of each line of a file that begins with a prefix. A missing file has no
// such line.
func field(image fs.FS, name, prefix string) ([]string, error) {
	file, err := image.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var found []string
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if value, is := strings.CutPrefix(lines.Text(), prefix); is {
			found = append(found, strings.Trim(value, `"`))
		}
	}
	return found, lines.Err()
}
