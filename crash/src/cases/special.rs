//! Attributes, special files, open files without a name, subvolumes.

/// Names and workloads.
pub(super) const CASES: &[(&str, &str)] = &[
    (
        "attribute removed after it was fsynced",
        "std: setxattr A/foo x 10 9; fsync A/foo; removexattr A/foo x; fsync A/foo",
    ),
    (
        "attribute removed, data written",
        "std: removexattr A/foo base; write A/foo 0 4096 9; fsync A/foo",
    ),
    (
        "attribute removed after a data-only fsync",
        "std: write A/foo 0 4096 9; fsync A/foo; removexattr A/foo base; fsync A/foo",
    ),
    (
        "attribute added after a data-only fsync, then data again",
        "std: write A/foo 0 4096 9; fsync A/foo; setxattr A/foo x 10 9; fsync A/foo; write A/foo 0 4096 10; fsync A/foo",
    ),
    (
        "attribute changed, the file linked and appended",
        "std: setxattr A/foo x 10 9; fsync A/foo; link A/foo A/ln; append A/foo 4096 10; fsync A/foo",
    ),
    (
        "attribute changed, the file renamed, the directory fsynced",
        "std: setxattr A/bar x 10 9; rename A/bar A/baz; fsync A",
    ),
    (
        "attribute of a directory",
        "std: setxattr A x 10 9; fsync A; removexattr A x; fsync A",
    ),
    (
        "attribute of a directory, a file in it fsynced",
        "std: setxattr A x 10 9; creat A/y; fsync A/y",
    ),
    (
        "attribute of a new file, only fdatasynced",
        "std: creat A/x; setxattr A/x n 10 9; write A/x 0 10 9; fdatasync A/x",
    ),
    (
        "access list and mode",
        "std: setacl A/foo 1000; fsync A/foo; chmod A/foo 384; fsync A/foo",
    ),
    (
        "access list that a directory hands down",
        "std: setacl A 1000; creat A/x; mkdir A/d; fsync A/x; fsync A/d",
    ),
    (
        "mode and owner",
        "std: chmod A/foo 448; chown A/foo 7 8; fsync A/foo; chmod A 493; fsync A",
    ),
    (
        "mode changed after an fsync, another fsynced",
        "std: append A/foo 10 9; fsync A/foo; chmod A/foo 448; fsync A/bar",
    ),
    (
        "symbolic link, its directory fsynced",
        "std: symlink somewhere A/sl; fsync A",
    ),
    (
        "symbolic link renamed between two fsyncs of its directory",
        "std: symlink somewhere A/sl; fsync A; rename A/sl A/sm; fsync A",
    ),
    (
        "symbolic link in a new directory",
        "std: mkdir A/n; symlink x A/n/sl; fsync A/n; fsync A",
    ),
    (
        "symbolic link removed and made anew with another target",
        "std: symlink x A/sl; sync; unlink A/sl; symlink longer A/sl; fsync A",
    ),
    (
        "whiteout, the renamed file fsynced",
        "std: rename A/foo A/moved whiteout=true; fsync A/moved",
    ),
    (
        "whiteout across directories, the new directory fsynced",
        "std: rename A/foo B/moved whiteout=true; fsync B",
    ),
    (
        "whiteout across directories, the old directory fsynced",
        "std: rename A/foo B/moved whiteout=true; creat A/new; fsync A",
    ),
    (
        "whiteout by a rename over a file, fsynced before",
        "std: append A/bar 10 9; fsync A/bar; rename A/foo A/bar whiteout=true; fsync A/bar",
    ),
    (
        "whiteout of a file that only the log has, another fsynced",
        "std: creat A/x; fsync A/x; rename A/x B/x whiteout=true; append B/foo 10 9; fsync B/foo",
    ),
    (
        "whiteout of a new file, then removed",
        "std: creat A/x; rename A/x B/x whiteout=true; fsync B/x; unlink A/x; fsync A",
    ),
    (
        "whiteout of a directory, a file in it fsynced",
        "std: creat A/C/x; sync; rename A/C B/C whiteout=true; creat B/C/y; fsync B/C/y",
    ),
    (
        "whiteout renamed onto the file that left it",
        "std: rename A/foo A/moved whiteout=true; fsync A/moved; rename A/foo A/moved; fsync A",
    ),
    (
        "device node, its directory fsynced",
        "std: mknod A/dev; fsync A; chmod A/dev 384; fsync A/dev",
    ),
    (
        "open file without a name is fsynced, then another file",
        "std: creat A/x; write A/x 0 65536 9; hold A/x 0; unlink A/x; fsync @0; creat A/y; fsync A/y",
    ),
    (
        "open old file without a name is written and fsynced",
        "std: hold A/foo 0; unlink A/foo; write @0 0 4096 9; fsync @0; append B/foo 10 10; fsync B/foo",
    ),
    (
        "open file without a name lives through a sync",
        "std: hold A/foo 0; unlink A/foo; sync; truncate @0 100; fsync @0; fsync A",
    ),
    (
        "fsynced file is removed while it is open, another is fsynced",
        "std: hold A/foo 0; append A/foo 10 9; fsync A/foo; unlink A/foo; append A/bar 10 10; fsync A/bar; fsync @0",
    ),
    (
        "file born without a name, fsynced",
        "std: tmpfile A 0; write @0 0 4096 9; fsync @0; append A/foo 10 10; fsync A/foo",
    ),
    (
        "file born without a name gets one",
        "std: tmpfile A 0; write @0 0 4096 9; fsync @0; link @0 A/t; fsync @0",
    ),
    (
        "file born without a name gets one, its directory fsynced",
        "std: tmpfile A 0; write @0 0 4096 9; link @0 A/t; fsync A",
    ),
    (
        "file born without a name gets one, after a sync",
        "std: tmpfile A 0; write @0 0 4096 9; sync; link @0 B/t; fsync @0",
    ),
    (
        "file removed while it is open, then fsynced",
        "std: hold A/foo 0; append A/foo 10 9; fsync A/foo; unlink A/foo; fsync @0; fsync @0",
    ),
    (
        "new file that was logged, removed while it is open, then fsynced",
        "std: creat A/x; write A/x 0 4096 9; hold A/x 0; fsync A/x; unlink A/x; fsync @0; creat A/x; fsync A/x",
    ),
    (
        "file with names in two directories removed while it is open, then fsynced",
        "std: hold B/two 0; unlink B/two; unlink A/two; fsync @0; creat B/two; fsync B/two",
    ),
    (
        "file replaced while it is open, then fsynced",
        "std: hold A/foo 0; creat A/x; write A/x 0 4096 9; rename A/x A/foo; fsync @0",
    ),
    (
        "file removed with its directory while it is open, then fsynced",
        "std: creat B/D/x; sync; hold B/D/x 0; unlink B/D/x; rmdir B/D; fsync @0",
    ),
    (
        "directory removed while it is open, after its file was moved, then fsynced",
        "std: creat B/D/x; sync; hold B/D 0; rename B/D/x A/x; rmdir B/D; fsync @0",
    ),
    (
        "directory removed while it is open, then fsynced",
        "std: hold A/C 0; rmdir A/C; fsync @0; fsync A",
    ),
    (
        "new subvolume, a file in it fsynced",
        "std: subvolume S; creat S/x; write S/x 0 8192 9; fsync S/x",
    ),
    (
        "old subvolume, files in it and outside fsynced",
        "std: subvolume S; creat S/x; write S/x 0 8192 9; sync; write S/x 0 4096 10; fsync S/x; append A/foo 100 11; fsync A/foo; rename S/x S/y; fsync S/y",
    ),
    (
        "snapshot, then both sides written and fsynced",
        "std: snapshot . snap; write snap/A/foo 0 4096 9; fsync snap/A/foo; write A/foo 4096 4096 10; fsync A/foo",
    ),
    (
        "snapshot of files that are in the log",
        "std: write A/foo 0 4096 9; fsync A/foo; snapshot . snap; write A/foo 0 4096 10; fsync A/foo",
    ),
    (
        "snapshot while a rename is in the log",
        "std: append A/foo 10 9; fsync A/foo; rename A/foo A/x; snapshot . snap; fsync A/x",
    ),
    (
        "subvolume removed after a file in it was fsynced",
        "std: subvolume S; sync; creat S/x; write S/x 0 4096 9; fsync S/x; delsubvol S; append A/foo 10 10; fsync A/foo",
    ),
    (
        "subvolume renamed after a file in it was fsynced",
        "std: subvolume S; sync; creat S/x; fsync S/x; rename S A/S; fsync A/S/x; fsync A",
    ),
    (
        "in place after a snapshot",
        "std: creat A/x; nocow A/x; write A/x 0 16384 1; sync; snapshot . snap; write A/x 0 8192 2; fsync A/x; write A/x 0 4096 3; fsync A/x",
    ),
    (
        "fsync right after a sync that had much to do",
        "std: write A/foo 0 16384 9; creat A/x; write A/x 0 100000 10; sync; append A/x 10 11; fsync A/x",
    ),
    (
        "fsyncs and syncs in turn",
        "std: append A/foo 10 9; fsync A/foo; sync; append A/foo 10 10; fsync A/foo; append A/foo 10 11; sync; append A/foo 10 12; fdatasync A/foo",
    ),
];
