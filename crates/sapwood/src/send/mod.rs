//! Sending a btrfs snapshot as a stream of commands, which `btrfs receive` of any system and
//! [`FileSystem::receive`] turn into the same snapshot again.
//!
//! # How it works
//! Without a parent the tree is walked depth first (`full`). With a parent the
//! [difference](sapwood_btrfs::compare) of the two trees is walked twice:
//!
//! 1. `names` moves, removes and creates names until all are as in the snapshot. Each command uses
//!    the paths that exist after the previous commands (`places`).
//! 2. `content` sends data, attributes and times of each changed inode at its new path, in the order
//!    of inode numbers. Times come last, because every other command changes them. Data that the
//!    receiver has already is shared (`clones`).
//!
//! The stream depends on the two snapshots alone.

mod clones;
mod content;
mod error;
mod full;
mod names;
mod output;
mod places;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sapwood_btrfs::compare::{Difference, FileTree, Parts};
use sapwood_btrfs_format::stream::{VERSION, attribute as attr, command as cmd};

use crate::fs::FileSystem;
use crate::image::Mounted;
use crate::progress::{OnProgress, Progress, Stop};
use crate::tree;
use crate::vfs::{self, Subvolumes as _};
use clones::Clones;
pub use error::SendError;
use error::{Result, at};
use output::Output;

/// The form and the extent of a stream.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SendOptions {
    /// Send the changes since this snapshot of the same image.
    pub parent: Option<PathBuf>,
    /// Read-only snapshots of the same image that the receiver has, too. Sent files share extents
    /// with them, and with the parent.
    pub clone_sources: Vec<PathBuf>,
    /// Version of the stream: 1, which every receiver knows, or 2, with large writes, holes and
    /// preallocation.
    pub version: u32,
    /// Send compressed extents as they are stored, which needs version 2.
    pub compressed: bool,
    /// Send the content of files. Otherwise the stream only names the changed ranges.
    pub data: bool,
    /// Ends the send early.
    pub stop: Stop,
}

impl Default for SendOptions {
    fn default() -> Self {
        Self {
            parent: None,
            clone_sources: Vec::new(),
            version: 1,
            compressed: false,
            data: true,
            stop: Stop::new(),
        }
    }
}

/// Counters of a send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendReport {
    /// Inodes that were sent.
    pub inodes: u64,
    /// Bytes of content.
    pub content: u64,
    /// Bytes of the stream.
    pub size: u64,
}

/// The state of a send.
struct Sender<'a, 'p, 'q, W> {
    fs: &'a dyn vfs::FileSystem,
    new: Arc<FileTree>,
    old: Option<Arc<FileTree>>,
    out: Output<W>,
    options: &'p SendOptions,
    progress: &'p mut OnProgress<'q>,
    clones: Clones,
    buffer: Vec<u8>,
    inodes: u64,
    content: u64,
}

/// The error of an inode that contradicts its directories.
fn contradiction(number: u64, why: &'static str) -> SendError {
    SendError::Names { number, why }
}

impl FileSystem {
    /// Writes the read-only snapshot at `snapshot`, or its difference from another one, as a stream
    /// for [`receive`](Self::receive) or `btrfs receive`. The same snapshots give the same bytes.
    ///
    /// ```no_run
    /// let fs = sapwood::Options::new().read_only(true).open("disk.img")?;
    /// let mut options = sapwood::SendOptions::default();
    /// options.parent = Some("monday".into());
    /// let stream = std::fs::File::create("tuesday.stream")?;
    /// fs.send("tuesday", stream, &options, &mut |_| {})?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The image is no btrfs; a path is not a read-only subvolume; the stream cannot be written;
    /// the image cannot be read.
    pub fn send(
        &self,
        snapshot: impl AsRef<Path>,
        writer: impl Write,
        options: &SendOptions,
        progress: &mut OnProgress<'_>,
    ) -> crate::Result<SendReport> {
        if !(1..=VERSION).contains(&options.version) {
            return Err(SendError::Version(options.version).into());
        }
        if options.compressed && options.version < 2 {
            return Err(SendError::Compressed.into());
        }
        let path = snapshot.as_ref();
        let new = snapshot_at(self, path)?;
        let old = options.parent.as_ref();
        let old = old.map(|parent| snapshot_at(self, parent)).transpose()?;
        let old = old.map(Arc::new);
        let mut sources: Vec<_> = old.iter().cloned().collect();
        for source in &options.clone_sources {
            sources.push(Arc::new(snapshot_at(self, source)?));
        }
        let mut sender = Sender {
            fs: &**self.engine(),
            new: Arc::new(new),
            old,
            clones: Clones::new(sources),
            out: Output::new(writer, options.version)?,
            options,
            progress,
            buffer: Vec::new(),
            inodes: 0,
            content: 0,
        };
        sender.begin(path)?;
        match sender.old.clone() {
            None => sender.full()?,
            Some(old) => sender.incremental(&old)?,
        }
        sender.out.end()?;
        Ok(SendReport {
            inodes: sender.inodes,
            content: sender.content,
            size: sender.out.bytes,
        })
    }
}

/// The tree of the read-only subvolume at a path.
fn snapshot_at(fs: &FileSystem, path: &Path) -> Result<FileTree> {
    use std::os::unix::ffi::OsStrExt;

    let Mounted::Btrfs(btrfs) = fs.engine() else {
        return Err(SendError::NotBtrfs(fs.image_path().to_owned()));
    };
    let path = Path::new("/").join(path);
    let name = path.as_os_str().as_bytes();
    let node = tree::resolve(&**fs.engine(), name, true).map_err(at(name))?;
    let id = btrfs
        .subvolume_at(node.ino())
        .map_err(|error| match error {
            vfs::Error::Invalid => SendError::NotSubvolume(path.clone()),
            error => at(name)(error),
        })?;
    let tree = btrfs.file_tree(id)?;
    if tree.identity().read_only {
        Ok(tree)
    } else {
        Err(SendError::Writable(path))
    }
}

/// The UUID that receivers record for a snapshot, and its transaction.
fn known_as(tree: &FileTree) -> ([u8; 16], u64) {
    let identity = tree.identity();
    let uuid = if identity.received_uuid == [0; 16] {
        identity.uuid
    } else {
        identity.received_uuid
    };
    (uuid, identity.ctransid)
}

impl<W: Write> Sender<'_, '_, '_, W> {
    /// The first command: the subvolume, or the snapshot of the parent that becomes it.
    fn begin(&mut self, path: &Path) -> Result<()> {
        use std::os::unix::ffi::OsStrExt;

        let name = path
            .file_name()
            .map_or(&b"snapshot"[..], OsStrExt::as_bytes);
        let (uuid, transid) = known_as(&self.new);
        let parent = self.old.as_deref().map(known_as);
        let command = match parent {
            None => cmd::SUBVOL,
            Some(_) => cmd::SNAPSHOT,
        };
        self.out.command(command, |out| {
            out.put(attr::PATH, name)
                .put(attr::UUID, &uuid)
                .put_u64(attr::CTRANSID, transid);
            if let Some((uuid, transid)) = parent {
                out.put(attr::CLONE_UUID, &uuid)
                    .put_u64(attr::CLONE_CTRANSID, transid);
            }
        })
    }

    /// Sends the difference from the parent.
    fn incremental(&mut self, old: &Arc<FileTree>) -> Result<()> {
        let places = self.change_names(old)?;
        let mut difference = Difference::new(old, &self.new);
        while let Some(found) = difference.next_inode()? {
            if self.options.stop.is_stopped() {
                return Err(SendError::Stopped);
            }
            let Some(inode) = places.new_inode(found.number)? else {
                continue;
            };
            if found.parts == Parts::default() {
                continue;
            }
            let path = places.new_path(found.number)?;
            self.step();
            match places.survivor(found.number)? {
                Some(before) => {
                    self.changed(found.number, (&before, &inode), found.parts.data, &path)?;
                }
                None => self.created(found.number, &inode, &path)?,
            }
        }
        self.restore_top(&places)
    }

    /// Counts an inode.
    fn step(&mut self) {
        self.inodes += 1;
        (self.progress)(Progress::Done {
            phase: "sent",
            done: self.inodes,
        });
    }
}
