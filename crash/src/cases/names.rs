//! Names: links, renames, directories, conflicts.

/// Names and workloads.
pub(super) const CASES: &[(&str, &str)] = &[
    ("link, then fsync", "std: link A/foo A/ln; fsync A/foo"),
    (
        "link in another directory, after the file was logged",
        "std: append A/foo 100 9; fsync A/foo; link A/foo B/ln; fsync A/foo",
    ),
    (
        "link of a file that was logged, its directory fsynced",
        "std: append A/foo 100 9; fsync A/foo; link A/foo B/ln; fsync B",
    ),
    (
        "link and removed attribute of a file that was logged, a new file fsynced",
        "std: setxattr A/foo more 5 1; fsync A/foo; removexattr A/foo base; link A/foo A/ln; creat A/q; fsync A/q",
    ),
    (
        "link of a new file that was logged and changed since, a new file fsynced",
        "std: creat A/x; write A/x 0 4096 9; fsync A/x; append A/x 100 10; setxattr A/x n 5 1; link A/x B/x; creat A/q; fsync A/q",
    ),
    (
        "link removed again before the fsync",
        "std: link A/foo A/ln; fsync A/foo; unlink A/ln; fsync A/foo",
    ),
    (
        "one of two links removed, then fsync",
        "std: link A/foo A/ln; sync; unlink A/ln; fsync A/foo",
    ),
    (
        "one of two links in different directories removed, then fsync",
        "std: link A/foo B/ln; sync; unlink B/ln; fsync A/foo",
    ),
    (
        "first of two links in different directories removed, then fsync of the other",
        "std: link A/foo B/ln; sync; unlink A/foo; fsync B/ln",
    ),
    (
        "links in three directories, two removed, one directory fsynced",
        "std: link A/foo B/ln; link A/foo A/C/ln; sync; unlink B/ln; unlink A/foo; fsync A/C/ln; fsync B",
    ),
    (
        "one of two links removed, its name taken by a new file",
        "std: link A/foo A/ln; sync; unlink A/ln; creat A/ln; fsync A/ln",
    ),
    (
        "one of two links removed, its name taken by a new file, the old one fsynced",
        "std: link A/foo A/ln; sync; unlink A/ln; creat A/ln; fsync A/foo",
    ),
    (
        "links renamed in a ring, a new file takes the name that is left",
        "std: link A/foo A/l1; link A/foo A/l2; sync; rename A/l1 A/l3; rename A/l2 A/l1; creat A/l2; fsync A/l2",
    ),
    (
        "link takes the place of a renamed special file",
        "std: mknod A/dev; creat A/t; fsync A/t; rename A/dev A/dev2; link A/dev2 A/dev; unlink A/t; fsync A",
    ),
    (
        "link of a file whose name was another's",
        "std: unlink A/bar; link A/foo A/bar; fsync A/foo",
    ),
    (
        "link to a file in a new directory, then fsync of the file",
        "std: mkdir N; link A/foo N/ln; fsync A/foo",
    ),
    (
        "rename, then fsync",
        "std: rename A/foo A/moved; fsync A/moved",
    ),
    (
        "rename across directories, then fsync",
        "std: rename A/foo B/moved; fsync B/moved",
    ),
    (
        "rename across directories, the new directory fsynced",
        "std: rename A/foo B/moved; fsync B",
    ),
    (
        "rename across directories, the old directory fsynced",
        "std: rename A/foo B/moved; creat A/new; fsync A",
    ),
    (
        "rename after an fsync, then fsync of the directory",
        "std: append A/foo 100 9; fsync A/foo; rename A/foo A/moved; fsync A",
    ),
    (
        "rename after an fsync of its directory, another file fsynced",
        "std: creat A/x; fsync A; rename A/x A/y; rename A/foo A/moved; creat A/z; fsync A/z",
    ),
    (
        "rename of a new file that was fsynced, then a new one with the old name",
        "std: creat A/x; write A/x 0 4096 9; fsync A/x; rename A/x A/y; creat A/x; write A/x 0 100 10; fsync A/x",
    ),
    (
        "rename over an existing file, then fsync",
        "std: creat A/x; write A/x 0 4096 9; rename A/x A/foo; fsync A/foo",
    ),
    (
        "rename over an existing file, fsynced before",
        "std: creat A/x; write A/x 0 4096 9; fsync A/x; rename A/x A/foo",
    ),
    (
        "rename over an existing file across directories",
        "std: rename A/foo B/foo; fsync B/foo",
    ),
    (
        "rename over an existing file, its directory fsynced",
        "std: rename A/bar A/foo; fsync A",
    ),
    (
        "rename over an open file, which is then fsynced",
        "std: hold A/foo 0; rename A/bar A/foo; fsync @0; fsync A/foo",
    ),
    (
        "old name taken by a new file, which is fsynced",
        "std: rename A/foo A/moved; creat A/foo; write A/foo 0 4096 9; fsync A/foo",
    ),
    (
        "old name taken by a new file, file gone to another directory",
        "std: rename A/foo B/moved; creat A/foo; fsync A/foo",
    ),
    (
        "old name taken by a new directory",
        "std: rename A/foo A/moved; mkdir A/foo; creat A/foo/x; fsync A/foo/x",
    ),
    (
        "old name taken by a symbolic link",
        "std: rename A/foo A/moved; symlink moved A/foo; fsync A",
    ),
    (
        "two files swap names, the first is fsynced",
        "std: rename A/foo A/t; rename A/bar A/foo; rename A/t A/bar; fsync A/foo",
    ),
    (
        "two files swap names, the second is fsynced",
        "std: rename A/foo A/t; rename A/bar A/foo; rename A/t A/bar; fsync A/bar",
    ),
    (
        "chain of renames, the last name fsynced",
        "std: creat A/a; creat A/b; sync; rename A/b A/c; rename A/a A/b; rename A/foo A/a; fsync A/a",
    ),
    (
        "chain of renames out of a directory",
        "std: creat A/C/f1; creat A/C/f2; sync; rename A/C/f2 A/f2; rename A/C/f1 A/C/f2; fsync A/C/f2",
    ),
    (
        "file moved away and back",
        "std: append A/foo 10 9; rename A/foo B/x; fsync B/x; rename B/x A/foo; fsync A/foo",
    ),
    (
        "exchange of files in two directories",
        "std: exchange A/foo B/foo; fsync A/foo",
    ),
    (
        "exchange with a file that is in the log only",
        "std: creat A/x; fsync A; exchange A/x B/foo; fsync A",
    ),
    (
        "exchange after both were fsynced",
        "std: append A/foo 9 9; fsync A/foo; append A/bar 9 10; fsync A/bar; exchange A/foo A/bar; fsync A",
    ),
    (
        "exchange of directories, one of them fsynced",
        "std: creat A/C/x; fsync A/C/x; exchange A/C B/D; creat A/C/y; fsync A/C/y",
    ),
    (
        "exchange of a file and a directory",
        "std: exchange A/foo A/C; fsync A/foo; fsync A/C",
    ),
    ("new directory, fsynced", "empty: mkdir d; fsync d"),
    (
        "new directory with a file, the directory fsynced",
        "empty: mkdir d; creat d/x; write d/x 0 100 1; fsync d",
    ),
    (
        "new directories with a file, the file fsynced",
        "std: mkdir A/n; mkdir A/n/m; creat A/n/m/x; write A/n/m/x 0 5000 9; fsync A/n/m/x",
    ),
    (
        "new directories, the upper one fsynced",
        "std: mkdir A/n; mkdir A/n/m; creat A/n/m/x; fsync A/n; fsync A",
    ),
    (
        "new file in a new directory that got its name by rename",
        "std: mkdir A/n; rename A/n B/m; creat B/m/x; fsync B/m/x",
    ),
    (
        "directory renamed after a file in it was fsynced",
        "std: mkdir A/n; creat A/n/x; fsync A/n/x; rename A/n B/n; creat B/n/y; fsync B/n/y",
    ),
    (
        "old directory renamed, a new file in it fsynced",
        "std: rename A/C B/C; creat B/C/x; fsync B/C/x",
    ),
    (
        "directory renamed, then fsynced",
        "std: creat A/C/x; sync; rename A/C A/E; fsync A/E",
    ),
    (
        "directory renamed, a new one takes its name and is fsynced",
        "std: creat A/C/x; sync; rename A/C A/E; mkdir A/C; fsync A/C",
    ),
    (
        "directory renamed, a new one takes its name; a file in it is fsynced",
        "std: creat A/C/x; sync; rename A/C A/E; mkdir A/C; creat A/C/x; fsync A/C/x",
    ),
    (
        "directory renamed, fsync of what it had before",
        "std: creat A/C/x; sync; rename A/C B/C; append B/C/x 100 9; fsync B/C/x; fsync A",
    ),
    (
        "file moved to a new directory, which is fsynced",
        "std: mkdir N; rename A/foo N/foo; fsync N",
    ),
    (
        "file moved to a new directory, the old one fsynced",
        "std: mkdir N; rename A/foo N/foo; creat A/x; fsync A",
    ),
    (
        "directory moved to a new directory, which is fsynced",
        "std: creat A/C/x; sync; mkdir N; rename A/C N/C; fsync N",
    ),
    (
        "directory removed and made again, a file in it fsynced",
        "std: mkdir A/x; fsync A/x; rmdir A/x; mkdir A/x; creat A/x/y; fsync A/x/y",
    ),
    (
        "file removed and made again, both fsynced",
        "std: creat A/x; write A/x 0 100 9; fsync A/x; unlink A/x; creat A/x; write A/x 0 4096 10; fsync A/x",
    ),
    (
        "old file removed and made again, fsynced",
        "std: unlink A/foo; creat A/foo; write A/foo 0 10 9; fsync A/foo",
    ),
    (
        "old file removed, its directory fsynced",
        "std: unlink A/foo; fsync A",
    ),
    (
        "directory fsynced, then a name removed, another file fsynced",
        "std: creat A/x; fsync A; unlink A/bar; append A/foo 10 9; fsync A/foo",
    ),
    (
        "directory fsynced after each of several removals",
        "std: creat A/C/x; creat A/C/y; sync; creat A/C/z; fsync A/C; unlink A/C/x; fsync A/C; unlink A/C/z; fsync A/C",
    ),
    (
        "removed name taken by a child that was renamed, the directory fsynced",
        "std: unlink A/foo; rename A/bar A/foo; fsync A",
    ),
    (
        "directory emptied and removed, its parent fsynced",
        "std: creat A/C/x; sync; unlink A/C/x; rmdir A/C; fsync A",
    ),
    (
        "file fsynced in a directory, which then is emptied and removed",
        "std: creat A/C/x; fsync A/C/x; unlink A/C/x; rmdir A/C; fsync A",
    ),
    (
        "fsync of the root after changes below",
        "std: creat x; mkdir y; creat y/z; rename A/foo w; fsync .",
    ),
    (
        "two files in one directory fsynced in turn",
        "std: creat A/x; creat A/y; fsync A/x; fsync A/y; unlink A/x; fsync A/y",
    ),
    (
        "file moved into the directory of one that was fsynced",
        "std: append B/foo 10 9; fsync B/foo; rename A/foo B/moved; append B/foo 10 10; fsync B/foo",
    ),
    (
        "names moved around between two fsynced directories",
        "std: creat A/x; creat B/y; fsync A; fsync B; rename A/x B/x; rename B/y A/y; fsync A; creat B/z; fsync B",
    ),
    (
        "hard link across directories, renamed at one end",
        "std: rename A/two A/three; fsync A/three; rename B/two B/D/two; fsync B/D/two",
    ),
    (
        "last link but one goes with a rename over it",
        "std: rename A/foo A/two; fsync B/two; fsync A/two",
    ),
    (
        "directory renamed over one in a directory that was fsynced, another file fsynced",
        "std: link A/foo B/ln; fsync B; rename A/C B/D; fdatasync A/foo",
    ),
    (
        "directory renamed over one whose name only the log has",
        "std: rename A/C A/E; fsync A; rename B/D A/E; append A/bar 10 9; fsync A/bar",
    ),
    (
        "link of a file whose names are in the log, the directory fsynced",
        "std: zero A/foo 4096 8192; fdatasync A/foo; link A/foo A/ln; fsync A",
    ),
    (
        "rename over a file, fsynced, renamed back, another fsynced",
        "std: rename A/bar A/foo; fsync A/foo; rename A/foo A/bar; mkdir A/C/F; fsync A/C",
    ),
    (
        "rename over a file, fsynced, renamed on to another directory",
        "std: rename B/foo A/foo; fsync A/foo; rename A/foo A/C/moved; fsync A/C",
    ),
    (
        "new file removed by a rename over it after its fsync, another fsynced",
        "std: creat A/new; fsync A/new; rename A/two A/new; append A/bar 10 9; fdatasync A/bar",
    ),
    (
        "renamed in a directory that was fsynced then, renamed on to another, a third file fsynced",
        "std: rename A/bar A/baz; fsync A; rename A/baz B/bar; append A/foo 10 9; fsync A/foo",
    ),
    (
        "renamed twice in a directory that was fsynced in between, another file fsynced",
        "std: rename A/bar A/baz; fsync A; rename A/baz A/bay; append B/foo 10 9; fsync B/foo",
    ),
];
