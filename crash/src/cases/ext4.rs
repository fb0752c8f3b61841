//! Trouble cases of ext4 only: orders between data and map, reused blocks, orphans, hash trees,
//! attribute blocks. The workloads name a base of ext4, and run only there.

use super::many::list;

/// Names and workloads.
pub(super) fn cases() -> Vec<(String, String)> {
    let fixed = CASES.iter();
    let fixed = fixed.map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
    fixed.chain(long()).collect()
}

const CASES: &[(&str, &str)] = &[
    (
        "blocks of a removed file are used again by one that is fsynced",
        "ext4: unlink A/foo; creat A/x; write A/x 0 30000 9; fsync A/x",
    ),
    (
        "blocks of a truncated file are used again, the directory fsynced",
        "ext4: truncate A/foo 0; creat A/x; write A/x 0 30000 9; fsync A",
    ),
    (
        "pointer blocks freed, then used for data",
        "ext4-indirect: write A/foo 0 400000 9; sync; truncate A/foo 0; fsync A/foo; creat A/x; write A/x 0 600000 8; fsync A/x; fsync B",
    ),
    (
        "directory blocks freed, then used for data",
        "ext4: creat A/C/x; sync; unlink A/C/x; rmdir A/C; fsync A; write A/foo 0 60000 9; fsync A/foo; fsync B",
    ),
    (
        "shrunk within a block, then grown, never written back in between",
        "ext4-usual: truncate A/foo 5000; truncate A/foo 12000; fsync A/foo",
    ),
    (
        "shrunk within a block and committed by another's fsync, then grown",
        "ext4-usual: truncate A/foo 5000; fsync A/bar; truncate A/foo 12000; fsync A/bar",
    ),
    (
        "tail of the last block after a write behind the end",
        "ext4-usual: write A/bar 9000 100 9; fsync A/bar; append A/bar 100 8; fsync B",
    ),
    (
        "unlinked while held, written on, released",
        "ext4: hold A/foo 0; unlink A/foo; fsync A; write @0 0 50000 9; sync; release 0; fsync A",
    ),
    (
        "two orphans, the first one released first",
        "ext4: hold A/foo 0; hold B/foo 1; unlink A/foo; unlink B/foo; sync; release 0; fsync A; release 1; fsync B",
    ),
    (
        "three orphans, the one in the middle released first",
        "ext4: hold A/foo 0; hold B/foo 1; hold A/bar 2; unlink A/foo; unlink B/foo; unlink A/bar; sync; release 1; fsync A; release 0; release 2; sync",
    ),
    (
        "orphan that gets a name again",
        "ext4: tmpfile A 0; write @0 0 20000 9; sync; link @0 A/x; fsync A/x",
    ),
    (
        "orphan beside one that is truncated",
        "ext4: hold A/foo 0; unlink A/foo; sync; truncate B/foo 100; fsync B/foo; release 0; fsync B/foo",
    ),
    (
        "attribute block shared by two, changed by one",
        "ext4: setxattr A/foo big 600 9; setxattr B/foo big 600 9; setxattr A/bar big 600 9; sync; setxattr A/bar big 600 8; fsync A/bar; unlink B/foo; fsync B",
    ),
    (
        "attribute block freed, then shared anew",
        "ext4: setxattr A/bar big 600 9; sync; removexattr A/bar big; fsync A/bar; setxattr B/foo big 600 9; fsync B/foo; setxattr A/bar big 600 9; fsync A/bar",
    ),
    (
        "unwritten blocks written in part, the size behind them",
        "ext4: falloc A/bar 0 40000; write A/bar 10000 3000 9; fsync A/bar; write A/bar 30000 20000 8; fsync B",
    ),
    (
        "unwritten blocks behind the end, the file appended",
        "ext4: falloc-keep A/bar 0 40000; append A/bar 5000 9; fdatasync A/bar; append A/bar 5000 8; fsync B",
    ),
    (
        "unwritten blocks for the begin of what was written and is dirty",
        "ext4: write A/bar 0 9000 6; falloc A/bar 0 8192; fsync A",
    ),
    (
        "unwritten blocks for the middle of what was written and is dirty",
        "ext4: write A/bar 0 20000 6; write A/bar 30000 3000 5; falloc A/bar 4096 8192; fsync A",
    ),
    (
        "exchange of directories in different parents, then one removed",
        "ext4: exchange A/C B/D; fsync A; rmdir A/C; fsync B; rename B/D A/C; fsync A/C",
    ),
    (
        "whiteouts, within a directory and across directories",
        "ext4: rename A/foo A/moved whiteout=true; fsync A/moved; rename A/bar B/bar whiteout=true; fsync B",
    ),
    (
        "whiteouts, after and before a fast commit",
        "ext4-fast: append A/bar 3000 9; fsync A/bar; rename A/foo B/moved whiteout=true; fsync B/moved; append A/bar 3000 8; fsync A/bar; unlink A/foo; fsync A",
    ),
    (
        "inode number used again by a file of another kind",
        "ext4: unlink A/bar; mkdir A/d; fsync A/d; rmdir A/d; creat A/x; write A/x 0 3000 9; fsync A/x; unlink A/x; symlink long A/s; fsync A",
    ),
    (
        "fast link and long link in one name",
        "ext4: symlink short A/s; fsync A; unlink A/s; symlink sixty-characters-and-more-sixty-characters-and-more-sixty-characters A/s; fsync A; unlink A/s; fsync A",
    ),
    (
        "first fast commit of more than one sector",
        "ext4-fast: rename A/foo B/moved; creat A/C/new; fsync B/moved; append B/moved 3000 9; fsync B/moved",
    ),
    (
        "append, other file fsynced, append again",
        "ext4-fast: append A/foo 3000 9; fsync A/bar; append A/foo 3000 8; fsync A/foo; rename A/foo A/x; fsync A/x",
    ),
];

fn long() -> Vec<(String, String)> {
    let (long_name, longest) = ("n".repeat(60), "n".repeat(240));
    vec![
        (
            "hash tree grows from one block, fsyncs in between".to_owned(),
            format!(
                "ext4: {}; sync; {}; fsync A/C; {}; fsync A/C",
                list(0..10, |n| format!("mknod A/C/{long_name}{n}")),
                list(10..16, |n| format!("mknod A/C/{long_name}{n}")),
                list(16..60, |n| format!("mknod A/C/{long_name}{n}")),
            ),
        ),
        (
            "hash tree gets a second level".to_owned(),
            format!(
                "ext4: mkdir A/h; {}; fsync A/h; {}; fsync A/h; {}; fsync A/h",
                list(0..330, |n| format!("link A/foo A/h/{longest}{n}")),
                list(330..400, |n| format!("link A/foo A/h/{longest}{n}")),
                list(0..20, |n| format!("unlink A/h/{longest}{n}")),
            ),
        ),
        (
            "log that wraps, with revokes".to_owned(),
            format!(
                "ext4: {}",
                list(0..15, |n| format!(
                    "mkdir A/d{n}; creat A/d{n}/x; setxattr A/d{n}/x big 700 {n}; write A/d{n}/x 0 9000 {n}; fsync A/d{n}/x; \
                     unlink A/d{n}/x; rmdir A/d{n}; fsync A"
                ))
            ),
        ),
        (
            "pieces of a file, each in an extent of its own, then cut".to_owned(),
            format!(
                "ext4: creat A/x; {}; fsync A/x; truncate A/x 300000; fsync A/x; truncate A/x 0; fsync B",
                list(0..150, |n| format!("write A/x {} 1024 {}", n * 4096, n % 50)),
            ),
        ),
        (
            "device filled up, then a removal and a file in its place".to_owned(),
            "ext4: creat A/fill; falloc-keep A/fill 0 45000000; sync; unlink A/fill; fsync A; creat A/x; write A/x 0 3000000 9; fsync A/x".to_owned(),
        ),
    ]
}
