//! Content, size, extents and checksums.

/// Names and workloads.
pub(super) const CASES: &[(&str, &str)] = &[
    (
        "new file with data",
        "empty: creat x; write x 0 5000 1; fsync x",
    ),
    (
        "overwrite in the middle",
        "std: write A/foo 4096 4096 9; fsync A/foo",
    ),
    (
        "overwrite of the same range three times, each fsynced",
        "std: write A/foo 0 8192 9; fsync A/foo; write A/foo 0 8192 10; fsync A/foo; write A/foo 0 8192 11; fsync A/foo",
    ),
    (
        "second fsync without a change",
        "std: write A/foo 0 4096 9; fsync A/foo; fsync A/foo; sync; fsync A/foo",
    ),
    (
        "append after an fsynced append",
        "std: append A/foo 4096 9; fsync A/foo; append A/foo 5000 10; fsync A/foo; append A/foo 10 11",
    ),
    (
        "append that is not fsynced after one that is",
        "std: append A/foo 4096 9; fsync A/foo; append A/foo 4096 10; fsync A/bar",
    ),
    (
        "hole punched into the tail",
        "std: punch A/foo 16384 3616; fsync A/foo",
    ),
    (
        "hole punched over the whole file",
        "std: punch A/foo 0 20480; fsync A/foo",
    ),
    (
        "hole punched where the log has an extent",
        "std: write A/foo 0 16384 9; fsync A/foo; punch A/foo 4096 8192; fsync A/foo",
    ),
    (
        "hole at the begin of an extent, data before it written anew",
        "std: punch A/foo 4096 4096; write A/foo 0 4096 9; fsync A/foo",
    ),
    (
        "hole punched past the end, into preallocated space",
        "std: falloc-keep A/foo 20480 65536; fsync A/foo; punch A/foo 24576 8192; fsync A/foo; append A/foo 20000 9; fsync A/foo",
    ),
    (
        "hole between old and new data",
        "std: write A/foo 65536 4096 9; fsync A/foo",
    ),
    (
        "new file that begins with a hole",
        "std: creat A/x; write A/x 65536 4096 9; fsync A/x",
    ),
    (
        "hole that a second write fills after an fsync",
        "std: write A/foo 40960 4096 9; fsync A/foo; write A/foo 28672 4096 10; fsync A/foo",
    ),
    (
        "truncation to an unaligned size",
        "std: truncate A/foo 5000; fsync A/foo",
    ),
    (
        "truncation, then a write past a hole",
        "std: truncate A/foo 4096; write A/foo 12288 4096 9; fsync A/foo",
    ),
    (
        "truncation down and up again",
        "std: truncate A/foo 8192; truncate A/foo 20000; fsync A/foo",
    ),
    (
        "truncation down and up again, unaligned",
        "std: truncate A/foo 6000; truncate A/foo 20000; fdatasync A/foo",
    ),
    (
        "truncation after the data was fsynced",
        "std: append A/foo 8192 9; fsync A/foo; truncate A/foo 15000; fsync A/foo",
    ),
    (
        "truncation that is fsynced, extension that is not",
        "std: truncate A/foo 5000; fsync A/foo; truncate A/foo 30000; fsync A/bar",
    ),
    (
        "truncation to nothing and a new beginning",
        "std: truncate A/foo 0; write A/foo 0 4096 9; fsync A/foo; append A/foo 100 10; fsync A/foo",
    ),
    (
        "truncation of a new file that is in the log already",
        "std: creat A/x; write A/x 0 32768 9; fsync A/x; truncate A/x 8192; fsync A/x; truncate A/x 12288; fsync A/x",
    ),
    (
        "inline file becomes longer",
        "std: append A/bar 100 9; fsync A/bar",
    ),
    (
        "inline file becomes shorter",
        "std: truncate A/bar 100; fsync A/bar",
    ),
    (
        "inline file grows into extents",
        "std: write A/bar 0 9000 9; fsync A/bar",
    ),
    (
        "inline file grows by truncation alone",
        "std: truncate A/bar 10000; fsync A/bar",
    ),
    (
        "inline file gets a second extent behind a hole",
        "std: write A/bar 8192 4096 9; fsync A/bar",
    ),
    (
        "file with extents becomes inline",
        "std: truncate A/foo 0; write A/foo 0 100 9; fsync A/foo",
    ),
    (
        "inline file, fsynced, then not inline, fsynced",
        "std: creat A/x; write A/x 0 50 9; fsync A/x; write A/x 0 9000 10; fsync A/x",
    ),
    (
        "preallocated, fsynced, then partly written",
        "std: creat A/x; falloc A/x 0 65536; fsync A/x; write A/x 8192 4096 9; fsync A/x",
    ),
    (
        "preallocated past the end, then truncated to its size",
        "std: falloc-keep A/foo 20480 40960; fsync A/foo; truncate A/foo 20000; fsync A/foo",
    ),
    (
        "preallocated past the end twice, first part fsynced",
        "std: falloc-keep A/foo 20480 8192; fsync A/foo; falloc-keep A/foo 28672 16384; fsync A/foo; append A/foo 3000 9; fsync A/foo",
    ),
    (
        "preallocated and extended, only fdatasynced",
        "std: falloc A/foo 20480 8192; fdatasync A/foo",
    ),
    (
        "preallocated extent written in three parts",
        "std: creat A/x; falloc A/x 0 24576; sync; write A/x 8192 4096 9; fdatasync A/x; write A/x 0 4096 10; fdatasync A/x; write A/x 16384 8192 11; fsync A/x",
    ),
    (
        "zeroed over the old end",
        "std: zero A/foo 18000 10000; fsync A/foo",
    ),
    (
        "zeroed, size kept",
        "std: zero-keep A/foo 16384 16384; fsync A/foo; append A/foo 100 9; fsync A/foo",
    ),
    (
        "appended, only fdatasynced",
        "std: append A/foo 3000 9; fdatasync A/foo",
    ),
    (
        "extended by truncation, only fdatasynced",
        "std: truncate A/foo 50000; fdatasync A/foo",
    ),
    (
        "long file, overwritten in many places between fsyncs",
        "std: creat A/x; write A/x 0 600000 9; fsync A/x; write A/x 4096 4096 10; write A/x 100000 5000 11; write A/x 500000 70000 12; fsync A/x; write A/x 4000 200 13; fdatasync A/x",
    ),
    (
        "compressed file, overwritten inside an extent",
        "std: creat A/x; compress A/x; write A/x 0 131072 1; fsync A/x; write A/x 4096 4096 2; fsync A/x",
    ),
    (
        "compressed inline file",
        "std: creat A/x; compress A/x; write A/x 0 2000 1; fsync A/x; append A/x 1000 2; fsync A/x",
    ),
    (
        "compressed file, hole punched",
        "std: creat A/x; compress A/x; write A/x 0 65536 1; sync; punch A/x 8192 8192; fsync A/x",
    ),
    (
        "overwritten in place",
        "std: creat A/x; nocow A/x; write A/x 0 32768 1; sync; write A/x 4096 8192 2; fsync A/x",
    ),
    (
        "overwritten in place and extended",
        "std: creat A/x; nocow A/x; write A/x 0 8192 1; fsync A/x; write A/x 4096 12288 2; fdatasync A/x",
    ),
    (
        "in place into preallocated space",
        "std: creat A/x; nocow A/x; falloc A/x 0 32768; sync; write A/x 4096 8192 2; fdatasync A/x",
    ),
    (
        "in place, renamed, after an fsync of another file",
        "std: creat A/x; nocow A/x; write A/x 0 16384 1; sync; creat B/y; fsync B/y; write A/x 0 4096 2; rename A/x A/z; fsync A/z",
    ),
    (
        "written, renamed, after an fsync of another file",
        "std: creat B/y; fsync B/y; write A/foo 0 4096 9; rename A/foo A/moved; fsync A/moved",
    ),
    (
        "written, linked, after an fsync of another file",
        "std: creat B/y; fsync B/y; write A/foo 0 4096 9; link A/foo A/ln; fsync A/foo",
    ),
    (
        "fsynced empty, then written, then linked; another is fsynced",
        "std: creat A/x; fsync A/x; write A/x 0 8192 9; link A/x A/y; creat A/z; fsync A/z",
    ),
    (
        "fsynced with data, then linked; another is fsynced",
        "std: creat A/x; write A/x 0 8192 9; fsync A/x; link A/x A/y; creat A/z; fsync A/z",
    ),
    (
        "fsynced with data, appended, renamed; another is fsynced",
        "std: creat A/x; write A/x 0 8192 9; fsync A/x; append A/x 4096 10; rename A/x A/y; creat A/z; fsync A/z",
    ),
    (
        "reflink of data that was just written",
        "std: write B/foo 0 4096 9; reflink B/foo 0 A/foo 0 8192; fsync A/foo",
    ),
    (
        "reflink into a new file, source overwritten and fsynced, then the copy removed",
        "std: creat A/x; reflink B/foo 0 A/x 0 0; fsync A/x; write B/foo 0 4096 9; fsync B/foo; unlink A/x; fsync A",
    ),
    (
        "reflinks that share parts of one extent",
        "std: creat A/x; reflink B/foo 0 A/x 0 4096; reflink B/foo 4096 A/x 8192 4096; reflink B/foo 0 A/x 16384 8192; fsync A/x; fsync B/foo",
    ),
    (
        "reflink within a file, past its end",
        "std: reflink A/foo 0 A/foo 40960 8192; fsync A/foo",
    ),
    (
        "reflink into a hole that was fsynced",
        "std: punch A/foo 4096 8192; fsync A/foo; reflink B/foo 0 A/foo 4096 8192; fsync A/foo",
    ),
    (
        "reflink of an extent whose checksums are in the log only",
        "std: write B/foo 0 8192 9; fsync B/foo; reflink B/foo 0 A/foo 8192 8192; fsync A/foo; fsync B/foo",
    ),
    (
        "reflink after truncation of the target",
        "std: truncate A/foo 4096; reflink B/foo 0 A/foo 8192 8192; fsync A/foo",
    ),
    (
        "reflink of an inline file",
        "std: creat A/x; reflink A/bar 0 A/x 0 0; fsync A/x",
    ),
    (
        "holes that have items",
        "holes: punch A/foo 4096 8192; fsync A/foo; write A/foo 49152 4096 9; fsync A/foo; truncate A/foo 100000; fsync A/foo",
    ),
    (
        "holes that have items, new file",
        "holes: creat A/x; write A/x 40960 4096 9; fsync A/x; write A/x 8192 4096 10; fsync A/x",
    ),
    (
        "large tree blocks in two copies",
        "usual: write A/foo 4096 8192 9; fsync A/foo; creat B/x; write B/x 0 100 10; fsync B/x; sync; append B/x 5000 11; fsync B/x",
    ),
];
