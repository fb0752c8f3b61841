//! Cases that need many names or attributes.

/// Names and workloads.
pub(super) fn cases() -> Vec<(String, String)> {
    vec![
        (
            "many links, a name leaves and comes back".to_owned(),
            format!(
                "std: {}; sync; unlink A/l0; link A/foo A/l200; link A/foo A/l0; fsync A/foo",
                list(0..200, |n| format!("link A/foo A/l{n}"))
            ),
        ),
        (
            "many links, half of them removed after an fsync".to_owned(),
            format!(
                "std: {}; sync; {}; fsync A/foo; {}; fsync A/foo",
                list(0..120, |n| format!("link A/foo B/l{n}")),
                list(120..140, |n| format!("link A/foo B/l{n}")),
                list(100..130, |n| format!("unlink B/l{n}")),
            ),
        ),
        (
            "many names, half of them removed, the directory fsynced in between".to_owned(),
            format!(
                "std: {}; fsync A/C; {}; fsync A/C",
                list(0..120, |n| format!("creat A/C/n{n}")),
                list(0..60, |n| format!("unlink A/C/n{}", n * 2)),
            ),
        ),
        (
            "many old names, every third removed, the directory fsynced".to_owned(),
            format!(
                "std: {}; sync; {}; fsync A/C; creat A/C/n0; fsync A/C/n0",
                list(0..120, |n| format!("mknod A/C/n{n}")),
                list(0..40, |n| format!("unlink A/C/n{}", n * 3)),
            ),
        ),
        (
            "many renames in a directory that was fsynced".to_owned(),
            format!(
                "std: {}; sync; creat A/C/x; fsync A/C; {}; creat A/C/y; fsync A/C/y",
                list(0..60, |n| format!("creat A/C/n{n}")),
                list(0..60, |n| format!("rename A/C/n{n} A/C/m{n}")),
            ),
        ),
        (
            // Some of the renamed entries begin a leaf. Linux 6.18 cannot replay a log that has
            // only their new names.
            "many directories renamed in a directory that was fsynced".to_owned(),
            format!(
                "std: {}; sync; creat A/C/x; fsync A/C; {}; creat A/C/y; fsync A/C/y",
                list(0..60, |n| format!("mkdir A/C/n{n}")),
                list(0..60, |n| format!("rename A/C/n{n} A/C/m{n}")),
            ),
        ),
        (
            "many attributes, some removed and changed between fsyncs".to_owned(),
            format!(
                "std: {}; fsync A/foo; {}; {}; fsync A/foo",
                list(0..12, |n| format!("setxattr A/foo a{n} 700 {n}")),
                list(0..4, |n| format!("removexattr A/foo a{}", n * 3)),
                list(0..4, |n| format!("setxattr A/foo a{} 500 77", n * 3 + 1)),
            ),
        ),
        (
            "many extents, checksums of several leaves".to_owned(),
            format!(
                "std: creat A/x; {}; fsync A/x; {}; fsync A/x",
                list(0..80, |n| format!(
                    "write A/x {} 4096 {}",
                    n * 12288,
                    n % 50
                )),
                list(0..40, |n| format!("punch A/x {} 4096", n * 24576)),
            ),
        ),
        (
            "many new files in a new directory, the last one fsynced".to_owned(),
            format!(
                "std: mkdir A/n; {}; fsync A/n/f59; fsync A/n",
                list(0..60, |n| format!(
                    "creat A/n/f{n}; write A/n/f{n} 0 {} {n}",
                    n * 100 + 1
                )),
            ),
        ),
    ]
}

pub(super) fn list(numbers: std::ops::Range<u64>, text: impl Fn(u64) -> String) -> String {
    let texts: Vec<String> = numbers.map(text).collect();
    texts.join("; ")
}
