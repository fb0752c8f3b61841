//! Images, and their mounts by the kernel.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Why images cannot be mounted here.
pub(crate) fn missing() -> bool {
    !rustix::process::geteuid().is_root()
        || !Path::new("/dev/loop-control").exists()
        || Command::new("mke2fs").arg("-V").output().is_err()
}

/// Runs a program to its end; its output is in the panic if it fails.
pub(crate) fn run(program: &str, args: &[&str], path: &Path) -> String {
    let output = Command::new(program).args(args).arg(path).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{program} {args:?}: {}\n{text}\n{errors}",
        output.status
    );
    text
}

/// A new image of a format.
pub(crate) fn make(path: &Path, size: u64, args: &str) {
    std::fs::File::create(path).unwrap().set_len(size).unwrap();
    let mut all = vec!["-q", "-F"];
    all.extend(args.split_whitespace());
    run("mke2fs", &all, path);
}

/// `e2fsck` finds nothing.
pub(crate) fn clean(path: &Path) {
    run("e2fsck", &["-fn"], path);
}

/// A mounted image; unmounted when dropped.
pub(crate) struct Mounted(PathBuf);

impl Mounted {
    pub(crate) fn new(image: &Path, at: &Path, options: &str) -> Self {
        std::fs::create_dir_all(at).unwrap();
        let image = image.to_str().unwrap();
        let options = format!("loop{options}");
        run("mount", &["-t", "ext4", "-o", &options, image], at);
        Mounted(at.to_owned())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let done = sapwood_testing::unmount(&self.0);
        // A second panic while one unwinds would end the other tests.
        assert!(done.is_ok() || std::thread::panicking(), "{done:?}");
    }
}
