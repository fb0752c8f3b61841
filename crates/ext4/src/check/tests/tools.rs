//! Shared parts of the tests: images, filled by the kernel or `debugfs`, and their check.

use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use sapwood_block::{Device, MemoryDevice};
use tempfile::TempDir;

use crate::check::{CheckError, CheckOptions, Report, check};
use crate::oracles;

/// Checks what is on a device.
pub(super) fn report(device: &Arc<MemoryDevice>) -> Result<Report, CheckError> {
    let device: Arc<dyn Device> = Arc::clone(device) as Arc<dyn Device>;
    check(&device, &CheckOptions::default(), &mut |_| {
        ControlFlow::Continue(())
    })
}

/// The lines of a report.
pub(super) fn lines(report: &Report) -> String {
    let findings = report.findings.iter();
    let lines: Vec<String> = findings
        .map(|finding| format!("{}: {finding}", finding.code()))
        .collect();
    lines.join("\n")
}

/// Asserts that there are no findings.
pub(super) fn assert_clean(device: &Arc<MemoryDevice>, what: &str) -> Report {
    let report = report(device).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(report.findings.is_empty(), "{what}:\n{}", lines(&report));
    report
}

/// An image in a file, for the tools.
pub(super) struct Saved {
    pub(super) dir: TempDir,
}

impl Saved {
    pub(super) fn new(device: &MemoryDevice) -> Self {
        let dir = tempfile::Builder::new().prefix("sapwood-check-").tempdir();
        let dir = dir.unwrap();
        device.save(dir.path().join("image")).unwrap();
        Self { dir }
    }

    pub(super) fn path(&self) -> std::path::PathBuf {
        self.dir.path().join("image")
    }

    /// Whether `e2fsck -fn` finds nothing, and its output.
    pub(super) fn e2fsck(&self) -> (bool, String) {
        let output = Command::new("e2fsck").arg("-fn").arg(self.path()).output();
        let output = output.unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code() == Some(0), text)
    }

    /// Runs `debugfs` commands, one per line, on the image.
    pub(super) fn debugfs(&self, commands: &str) {
        let file = self.dir.path().join("commands");
        std::fs::write(&file, commands).unwrap();
        let output = Command::new("debugfs")
            .args(["-w", "-f"])
            .arg(&file)
            .arg(self.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    pub(super) fn load(&self) -> Arc<MemoryDevice> {
        Arc::new(MemoryDevice::load(self.path()).unwrap())
    }
}

fn run(program: &str, args: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(args).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// Lets the kernel mount the image and `body` change it. Returns the result.
///
/// # Errors
/// The kernel cannot mount the image, because not every kernel has every feature. Any other failure
/// of mount(8) panics.
pub(super) fn with_kernel(
    device: &MemoryDevice,
    body: impl FnOnce(&Path),
) -> Result<Arc<MemoryDevice>, String> {
    struct Mounted(String);
    impl Drop for Mounted {
        fn drop(&mut self) {
            oracles::unmount(Path::new(&self.0));
        }
    }
    let saved = Saved::new(device);
    let at = saved.dir.path().join("mnt");
    std::fs::create_dir(&at).unwrap();
    let (image, at) = (saved.path(), at.to_str().unwrap().to_owned());
    let image = image.to_str().unwrap();
    if let Err(why) = run("mount", &["-t", "ext4", "-o", "loop", image, &at]) {
        assert!(why.contains("wrong fs type"), "mount: {why}");
        return Err(why);
    }
    let mounted = Mounted(at);
    body(Path::new(&mounted.0));
    drop(mounted);
    Ok(saved.load())
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
