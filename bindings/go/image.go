package sapwood

// #include <stdlib.h>
// #include <sapwood.h>
import "C"

import (
	"unsafe"
)

// MkfsOptions are the options of a new file system.
type MkfsOptions struct {
	// Size of the image in bytes. Zero: as small as the files of Source allow.
	Size uint64
	// Options of `sapwood mkfs`, as "name" or "name=value", such as "label=root".
	Options []string
	// Directory of this machine whose files the image gets. Empty: none.
	Source string
	// An existing image is replaced.
	Replace bool
}

// Mkfs makes a file system of the type "btrfs" or "ext4" in a new image file. The file gets its
// name when it is complete and durable.
func Mkfs(image, kind string, options MkfsOptions) error {
	name, source := C.CString(image), (*C.char)(nil)
	defer C.free(unsafe.Pointer(name))
	format := C.CString(kind)
	defer C.free(unsafe.Pointer(format))
	if options.Source != "" {
		source = C.CString(options.Source)
		defer C.free(unsafe.Pointer(source))
	}
	// The list ends with NULL. Memory of Go cannot hold it: C must find pointers to C in it.
	size := C.size_t(len(options.Options) + 1)
	memory := C.calloc(size, C.size_t(unsafe.Sizeof(source)))
	defer C.free(memory)
	list := unsafe.Slice((**C.char)(memory), int(size))
	for at, option := range options.Options {
		list[at] = C.CString(option)
		defer C.free(unsafe.Pointer(list[at]))
	}
	flags := C.uint32_t(0)
	if options.Replace {
		flags |= C.SAPWOOD_REPLACE
	}
	return wrap("mkfs", image, done(func() C.int {
		return C.sapwood_mkfs(name, format, C.uint64_t(options.Size), &list[0], source, flags)
	}))
}

// Finding is a defect, or something to know, that a check found.
type Finding struct {
	// Kind of the finding, as a word that stays the same from version to version.
	Code string
	// Description, with the block, key or inode.
	Text string
	// Every reader copes with it: nothing is lost or in danger.
	Warning bool
}

// Report is the result of a check.
type Report struct {
	// Nothing is wrong. There may be warnings.
	Clean    bool
	Findings []Finding
	// Number of further findings, which Findings does not contain.
	Suppressed uint64
}

// Check checks an image that is not open, and changes nothing. With data, it reads all data too,
// and compares it with its checksums (btrfs).
func Check(image string, data bool) (*Report, error) {
	name := C.CString(image)
	defer C.free(unsafe.Pointer(name))
	flags := C.uint32_t(0)
	if data {
		flags |= C.SAPWOOD_CHECK_DATA
	}
	var found *C.sapwood_report
	err := done(func() C.int { return C.sapwood_check(name, flags, &found) })
	if err != nil {
		return nil, wrap("check", image, err)
	}
	defer C.sapwood_report_free(found)
	report := &Report{
		Clean:      bool(C.sapwood_report_is_clean(found)),
		Suppressed: uint64(C.sapwood_report_suppressed(found)),
	}
	for at := C.size_t(0); at < C.sapwood_report_count(found); at++ {
		var finding C.sapwood_finding
		if err := done(func() C.int { return C.sapwood_report_get(found, at, &finding) }); err != nil {
			return nil, wrap("check", image, err)
		}
		report.Findings = append(report.Findings, Finding{
			Code:    C.GoString(finding.code),
			Text:    C.GoString(finding.text),
			Warning: bool(finding.warning),
		})
	}
	return report, nil
}

// Version returns the version of the library.
func Version() string { return C.GoString(C.sapwood_version()) }
