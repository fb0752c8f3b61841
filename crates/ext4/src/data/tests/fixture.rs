//! Images of `mke2fs` with a few empty files in them.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use sapwood_block::{Device, MemoryDevice};
use tempfile::TempDir;

use crate::inode::Inode;
use crate::oracles::{TOOLS, left_out};
use crate::{Error, Ext4, Options, Result, data, dir};

/// Files in each image.
pub(super) const FILES: [&str; 3] = ["a", "b", "c"];

/// An image made by `mke2fs`, in memory.
pub(super) struct MemoryImage {
    place: TempDir,
    pub(super) device: MemoryDevice,
}

impl MemoryImage {
    /// An image of `size` (as `mke2fs` understands it); `None` where the tools are missing.
    pub(super) fn new(options: &[&str], size: &str) -> Option<Self> {
        if left_out(TOOLS) {
            return None;
        }
        let place = TempDir::new().unwrap();
        let files = place.path().join("files");
        fs::create_dir(&files).unwrap();
        for name in FILES {
            fs::write(files.join(name), b"").unwrap();
        }
        let path = place.path().join("image");
        let made = Command::new("mke2fs")
            .args(["-q", "-F", "-E", "lazy_itable_init=0"])
            .args(options)
            .arg("-d")
            .args([&files, &path])
            .arg(size)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&made.stderr).into_owned();
        assert!(made.status.success(), "mke2fs {options:?}: {said}");
        let device = MemoryDevice::load(&path).unwrap();
        Some(Self { place, device })
    }

    /// Asserts that `e2fsck` finds no error.
    pub(super) fn check(&self, device: &MemoryDevice) {
        let path = self.path("checked");
        device.save(&path).unwrap();
        let checked = Command::new("e2fsck")
            .args(["-f", "-n"])
            .arg(&path)
            .output();
        let checked = checked.unwrap();
        let said = String::from_utf8_lossy(&checked.stdout).into_owned();
        assert!(checked.status.success(), "e2fsck: {said}");
    }

    /// The output of `debugfs` for the image that was checked last.
    pub(super) fn debugfs(&self, request: &str) -> String {
        let path = self.path("checked");
        let answer = Command::new("debugfs")
            .args(["-R", request])
            .arg(&path)
            .output();
        String::from_utf8_lossy(&answer.unwrap().stdout).into_owned()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }
}

/// A mount whose threads work by request only.
pub(super) fn quiet() -> Options {
    Options {
        background: false,
        ..Options::default()
    }
}

/// Opens a device.
pub(super) fn open(device: Arc<dyn Device>, options: &Options) -> Ext4 {
    Ext4::open(device, options.clone()).unwrap()
}

/// The file among the [`FILES`].
pub(super) fn file(fs: &Ext4, name: &str) -> Arc<Inode> {
    let root = fs.engine.inodes.get(&fs.engine, 2).unwrap();
    let found = dir::find(&fs.engine, &root, name.as_bytes()).unwrap();
    let ino = found.expect("a file that is in the image").ino;
    fs.engine.inodes.get(&fs.engine, ino).unwrap()
}

/// Writes as an operation does.
pub(super) fn write(fs: &Ext4, inode: &Arc<Inode>, offset: u64, bytes: &[u8]) -> Result<()> {
    let _io = inode.io.write();
    data::write(&fs.engine, inode, offset, bytes.into(), false)
}

/// All of a file.
pub(super) fn content(fs: &Ext4, inode: &Arc<Inode>) -> Vec<u8> {
    let _io = inode.io.read();
    // Longer than the file, so that its end is found.
    let mut bytes = vec![0xee; inode.size() as usize + 100];
    let len = data::read(&fs.engine, inode, 0, &mut bytes).unwrap();
    bytes.truncate(len);
    bytes
}

/// Whether an operation failed with this error of the trait.
pub(super) fn is_vfs<T>(result: &Result<T>, wanted: &sapwood_vfs::Error) -> bool {
    matches!(result, Err(Error::Vfs(error)) if std::mem::discriminant(error) == std::mem::discriminant(wanted))
}
