//! Shared parts of the tests: images, filled by the kernel or `debugfs`, and their check.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use sapwood_block::{Device, MemoryDevice};
pub(super) use sapwood_testing::oracle::Saved;
pub(super) use sapwood_testing::oracle::ext4::try_kernel_writes as with_kernel;

use crate::check::{CheckError, CheckOptions, CheckReport, check};

/// Checks the image on a device.
pub(super) fn report(device: &Arc<MemoryDevice>) -> Result<CheckReport, CheckError> {
    let device: Arc<dyn Device> = Arc::clone(device) as Arc<dyn Device>;
    check(&device, &CheckOptions::default(), &mut |_| {
        ControlFlow::Continue(())
    })
}

/// The lines of a report.
pub(super) fn lines(report: &CheckReport) -> String {
    let findings = report.findings.iter();
    let lines: Vec<String> = findings
        .map(|finding| format!("{}: {finding}", finding.code()))
        .collect();
    lines.join("\n")
}

/// Asserts that there are no findings.
pub(super) fn assert_clean(device: &Arc<MemoryDevice>, what: &str) -> CheckReport {
    let report = report(device).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(report.findings.is_empty(), "{what}:\n{}", lines(&report));
    report
}

/// Files of every kind, made by the kernel: many names, long names, links, holes, attributes.
pub(super) fn fill(at: &Path) {
    let dir = at.join("many");
    std::fs::create_dir(&dir).unwrap();
    for number in 0..400 {
        let name = format!("name-{number:04}-{}", "x".repeat(number % 90));
        std::fs::write(dir.join(&name), vec![b'a'; number * 7 % 5000]).unwrap();
        if number % 3 == 0 {
            std::fs::remove_file(dir.join(&name)).unwrap();
        }
    }
    for depth in 0..8 {
        let path: std::path::PathBuf = (0..=depth).map(|level| format!("d{level}")).collect();
        std::fs::create_dir(at.join(path)).unwrap();
    }
    let big = std::fs::File::create(at.join("big")).unwrap();
    for piece in 0..80_u64 {
        use std::os::unix::fs::FileExt;
        big.write_all_at(&[7; 3000], piece * 21_000).unwrap();
    }
    big.sync_all().unwrap();
    std::os::unix::fs::symlink("short", at.join("short-link")).unwrap();
    std::os::unix::fs::symlink("l".repeat(300), at.join("long-link")).unwrap();
    std::fs::hard_link(at.join("big"), at.join("big-too")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        at.join("null"),
        rustix::fs::FileType::CharacterDevice,
        rustix::fs::Mode::from_bits_retain(0o600),
        rustix::fs::makedev(1, 3),
    )
    .unwrap();
    attributes(at);
}

/// Attributes in the inode, in a block that two inodes share, and, where possible, in a separate
/// inode.
fn attributes(at: &Path) {
    use rustix::fs::{XattrFlags, setxattr};
    for name in ["one", "two"] {
        let path = at.join(name);
        std::fs::write(&path, name).unwrap();
        let value = vec![b'v'; 600];
        setxattr(&path, "user.block", &value, XattrFlags::empty()).unwrap();
    }
    setxattr(at.join("one"), "user.small", b"s", XattrFlags::empty()).unwrap();
    // Not every image has room for a value of this size.
    let _ = setxattr(
        at.join("two"),
        "user.large",
        &vec![b'w'; 20_000],
        XattrFlags::empty(),
    );
}
