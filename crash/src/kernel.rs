//! [`Kernel`]: mounts a crash image with the kernel, and runs the tool that checks such images.
//!
//! The kernel replays the log (or journal) with code that is independent of ours; its tree must
//! equal ours. This needs root and a loop device. Only one image at a time: two images of one file
//! system cannot be mounted at once.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sapwood_block::MemoryDevice;
use sapwood_testing::machine::{self, Need};
use sapwood_testing::oracle::KernelMount;
use sapwood_testing::scratch;
use sapwood_vfs::{FileKind, Ino, Timestamp};
use tempfile::TempDir;

use crate::engine::Engine;
use crate::tree::{Node, Owner, Times, Tree};

/// A mount point and files for images, which are mounted one after another.
#[derive(Debug)]
pub struct Kernel {
    engine: Engine,
    dir: TempDir,
}

impl Kernel {
    /// A kernel that can mount images of the engine, as a mount of `image` shows.
    ///
    /// # Errors
    /// What is missing on this machine.
    pub fn new(engine: Engine, image: &MemoryDevice) -> Result<Self, String> {
        if let Some(why) = machine::missing(&[Need::Kernel(engine.kind())]) {
            return Err(why);
        }
        let kernel = Self {
            engine,
            dir: scratch::directory(),
        };
        kernel.recover(image)?;
        Ok(kernel)
    }

    /// The engine whose images it mounts.
    #[must_use]
    pub fn engine(&self) -> Engine {
        self.engine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Mounts a copy of the image, reads everything, and unmounts.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn recover(&self, image: &MemoryDevice) -> Result<Tree, String> {
        let began = Timestamp::now();
        let file = self.path("image");
        image.save(&file).map_err(|error| error.to_string())?;
        self.read(&file, began)
    }

    /// Mounts an image, reads everything, and unmounts.
    fn read(&self, file: &Path, began: Timestamp) -> Result<Tree, String> {
        let mount = KernelMount::at(file, "noatime", &self.path("mnt"))?;
        let tree = read_tree(mount.path());
        mount.unmount()?;
        Ok(Tree {
            recovered: Some(began),
            ..tree?
        })
    }

    /// Checks the image with the engine's other tool.
    ///
    /// # Errors
    /// The findings of the tool.
    pub fn check(&self, image: &MemoryDevice) -> Result<(), String> {
        let file = self.path("checked");
        image.save(&file).map_err(|error| error.to_string())?;
        self.engine.tool_check(&file)
    }

    /// The same for the result of the last [`recover`](Self::recover).
    ///
    /// # Errors
    /// The findings of the tool.
    pub fn check_recovered(&self) -> Result<(), String> {
        self.engine.tool_check(&self.path("image"))
    }

    /// Recovers a copy of the image with the engine's other tool, and reads the result through the
    /// kernel; `None` if the tool cannot recover.
    ///
    /// # Errors
    /// The error or the findings.
    pub fn recover_by_tool(&self, image: &MemoryDevice) -> Result<Option<Tree>, String> {
        let began = Timestamp::now();
        let file = self.path("repaired");
        image.save(&file).map_err(|error| error.to_string())?;
        let Some(recovered) = self.engine.tool_recovery(&file) else {
            return Ok(None);
        };
        recovered?;
        self.engine.tool_check(&file)?;
        self.read(&file, began).map(Some)
    }
}

/// Inode numbers repeat in other subvolumes; the device number distinguishes them.
fn number(meta: &fs::Metadata) -> Ino {
    Ino(meta.ino() ^ (meta.dev() << 40))
}

fn read_tree(top: &Path) -> Result<Tree, String> {
    let meta = fs::symlink_metadata(top).map_err(|error| error.to_string())?;
    let mut tree = Tree {
        root: number(&meta),
        nodes: BTreeMap::new(),
        nameless: BTreeMap::new(),
        recovered: None,
    };
    let mut open = vec![top.to_owned()];
    while let Some(path) = open.pop() {
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        let meta = fs::symlink_metadata(&path).map_err(failed)?;
        let ino = number(&meta);
        if tree.nodes.contains_key(&ino) {
            continue;
        }
        let mut node = node(&path, &meta).map_err(failed)?;
        if node.kind == FileKind::Directory {
            let mut entries = BTreeMap::new();
            for entry in fs::read_dir(&path).map_err(failed)? {
                let entry = entry.map_err(failed)?;
                let meta = entry.path().symlink_metadata().map_err(failed)?;
                entries.insert(entry.file_name().as_bytes().to_vec(), number(&meta));
                open.push(entry.path());
            }
            node.entries = Arc::new(entries);
        }
        tree.nodes.insert(ino, node);
    }
    Ok(tree)
}

fn node(path: &Path, meta: &fs::Metadata) -> std::io::Result<Node> {
    let kind = match meta.file_type() {
        kind if kind.is_file() => FileKind::Regular,
        kind if kind.is_dir() => FileKind::Directory,
        kind if kind.is_symlink() => FileKind::Symlink,
        kind if kind.is_char_device() => FileKind::CharDevice,
        kind if kind.is_block_device() => FileKind::BlockDevice,
        kind if kind.is_fifo() => FileKind::Fifo,
        _ => FileKind::Socket,
    };
    let mut content = Vec::new();
    match kind {
        FileKind::Regular => {
            File::open(path)?.read_to_end(&mut content)?;
        }
        FileKind::Symlink => content = fs::read_link(path)?.into_os_string().as_bytes().to_vec(),
        _ => {}
    }
    let time = |sec, nsec: i64| Timestamp {
        sec,
        nsec: nsec as u32,
    };
    let times = Times {
        atime: time(meta.atime(), meta.atime_nsec()),
        mtime: time(meta.mtime(), meta.mtime_nsec()),
        ctime: time(meta.ctime(), meta.ctime_nsec()),
        btime: meta.created()?.into(),
    };
    Ok(Node {
        kind,
        owner: Owner {
            perm: meta.mode() & 0o7777,
            uid: meta.uid(),
            gid: meta.gid(),
            rdev: meta.rdev(),
        },
        nlink: meta.nlink() as u32,
        content: content.into(),
        xattrs: Arc::new(xattrs(path)?),
        entries: Arc::default(),
        times: Some(times),
    })
}

fn xattrs(path: &Path) -> std::io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut list = vec![0; 64 << 10];
    let len = rustix::fs::llistxattr(path, &mut list)?;
    let mut all = BTreeMap::new();
    for name in list[..len]
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
    {
        let mut value = vec![0; 64 << 10];
        let len = rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value)?;
        value.truncate(len);
        all.insert(name.to_vec(), value);
    }
    Ok(all)
}
