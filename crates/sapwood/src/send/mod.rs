//! Sending a btrfs snapshot, or the state of an ext4 image, as a stream of commands, which
//! `btrfs receive` of any system and [`FileSystem::receive`] turn into the same tree again.
//!
//! # How it works
//! A [`Source`](source::Source) reads the tree, and the parent that the receiver has. There is one
//! for each format: `btrfs` and `ext4`. Without a parent the tree is walked depth first (`full`).
//! With a parent the differences of the two trees are walked twice:
//!
//! 1. `names` moves, removes and creates names until all are as in the tree. Each command uses the
//!    paths that exist after the previous commands (`places`).
//! 2. `content` sends data, attributes and times of each changed inode at its new path, in the
//!    order of inode numbers. Times come last, because every other command changes them.
//!
//! The stream depends on the two trees alone.

mod btrfs;
mod content;
mod error;
mod ext4;
mod full;
#[cfg(feature = "fuse")]
mod mounted;
#[cfg(not(feature = "fuse"))]
#[path = "no_mounted.rs"]
mod mounted;
mod names;
mod output;
mod places;
mod source;

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sapwood_btrfs_format::stream::{VERSION, attribute as attr, command as cmd};

use crate::fs::FileSystem;
use crate::image::Mounted;
use crate::progress::{OnProgress, Progress, Stop};
use crate::vfs::Parts;
use btrfs::Snapshots;
use error::Result;
pub use error::SendError;
use ext4::States;
pub(crate) use ext4::{RECEIVED_STATE, content_digest, linked_outside, state_uuid};
pub use mounted::send;
#[cfg(feature = "fuse")]
pub(crate) use mounted::{MountedSnapshot, send_mounted};
use output::Output;
use source::Source;

/// Longest name of a file, in bytes.
const NAME_MAX: usize = 255;

/// The form and the extent of a stream.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SendOptions {
    /// Send the changes since this snapshot, or this directory of an ext4 image.
    pub parent: Option<PathBuf>,
    /// The image of the parent, if it is another one: an older state of an ext4 image, or any ext4
    /// image. Without [`parent`](Self::parent), its root.
    pub parent_image: Option<FileSystem>,
    /// Name of the sent subvolume. By default the last name of the path; for the root of an ext4
    /// image, the name of the image's file without its extension.
    pub name: Option<OsString>,
    /// Compare the bytes of all files of ext4 images. Otherwise a file whose inode did not change
    /// since the older state has the same content.
    pub content: bool,
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
            parent_image: None,
            name: None,
            content: false,
            clone_sources: Vec::new(),
            version: 1,
            compressed: false,
            data: true,
            stop: Stop::new(),
        }
    }
}

impl SendOptions {
    /// Checks that the options fit each other.
    fn check(&self) -> Result<()> {
        if !(1..=VERSION).contains(&self.version) {
            return Err(SendError::Version(self.version));
        }
        if self.compressed && self.version < 2 {
            return Err(SendError::Compressed);
        }
        Ok(())
    }

    /// The name of the sent subvolume, if it was chosen.
    fn checked_name(&self) -> Result<Option<OsString>> {
        let Some(name) = &self.name else {
            return Ok(None);
        };
        let bytes = name.as_bytes();
        let single = !matches!(bytes, b"" | b"." | b"..") && bytes.len() <= NAME_MAX;
        if !single || bytes.contains(&b'/') || bytes.contains(&0) {
            return Err(SendError::Name(name.clone()));
        }
        Ok(Some(name.clone()))
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
struct Sender<'p, 'q, S: Source, W> {
    source: S,
    new: Arc<S::Tree>,
    old: Option<Arc<S::Tree>>,
    out: Output<W>,
    options: &'p SendOptions,
    progress: &'p mut OnProgress<'q>,
    buffer: Vec<u8>,
    inodes: u64,
    content: u64,
    /// The file at hand has a hash tree.
    verifies: bool,
    /// Files with hash trees.
    sealed: u64,
}

/// The error of an inode that contradicts its directories.
fn contradiction(number: u64, why: &'static str) -> SendError {
    SendError::Names { number, why }
}

impl FileSystem {
    /// Writes the read-only snapshot at `snapshot`, or its difference from another one, as a stream
    /// for [`receive`](Self::receive) or `btrfs receive`. The same snapshots give the same bytes.
    ///
    /// In an ext4 image, which is open for reading only, `snapshot` is any directory; an empty path
    /// is the root. An inode is the same in two images with the same UUID if number, generation,
    /// creation time and type agree. Other inodes are matched by path. A file with the same inode,
    /// equal to the byte, has the same content if a running clock set its change time, because a
    /// write changes that time. The content of other files is compared block by block.
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
    /// A path is not a read-only subvolume, or in ext4 not a directory; an ext4 image is open for
    /// writing; two states of ext4 have the same identity and different content; a value is too long
    /// for the stream; the stream cannot be written; the image cannot be read.
    pub fn send(
        &self,
        snapshot: impl AsRef<Path>,
        writer: impl Write,
        options: &SendOptions,
        progress: &mut OnProgress<'_>,
    ) -> crate::Result<SendReport> {
        options.check()?;
        let path = snapshot.as_ref();
        let name = name_of(self, path, options)?;
        let report = match self.engine() {
            Mounted::Btrfs(btrfs) => {
                let source = Snapshots::find(btrfs, path, options)?;
                send_tree(source, &name, writer, options, progress)?
            }
            Mounted::Ext4(_) => {
                let source = States::find(self, path, options)?;
                send_tree(source, &name, writer, options, progress)?
            }
            Mounted::Rescued(..) => {
                return Err(SendError::Damaged(self.image_path().to_owned()).into());
            }
        };
        Ok(report)
    }
}

/// The name of the sent subvolume.
fn name_of(fs: &FileSystem, path: &Path, options: &SendOptions) -> Result<OsString> {
    if let Some(name) = options.checked_name()? {
        return Ok(name);
    }
    let own = path.file_name();
    let stem = || match fs.engine() {
        Mounted::Ext4(_) => fs.image_path().file_stem(),
        _ => None,
    };
    Ok(own.or_else(stem).unwrap_or("snapshot".as_ref()).to_owned())
}

/// Sends the trees of a source.
fn send_tree<S: Source>(
    source: S,
    name: &OsString,
    writer: impl Write,
    options: &SendOptions,
    progress: &mut OnProgress<'_>,
) -> Result<SendReport> {
    let mut sender = Sender {
        new: Arc::clone(source.new_tree()),
        old: source.old_tree().cloned(),
        source,
        out: Output::new(writer, options.version)?,
        options,
        progress,
        buffer: Vec::new(),
        inodes: 0,
        content: 0,
        verifies: false,
        sealed: 0,
    };
    sender.begin(name.as_bytes())?;
    match sender.old.clone() {
        None => sender.full()?,
        Some(old) => sender.incremental(&old)?,
    }
    sender.source.check_unchanged()?;
    sender.out.end()?;
    if sender.sealed > 0 {
        let count = sender.sealed;
        log::warn!("{count} files with hash trees of fs-verity were sent without them");
    }
    Ok(SendReport {
        inodes: sender.inodes,
        content: sender.content,
        size: sender.out.bytes,
    })
}

impl<S: Source, W: Write> Sender<'_, '_, S, W> {
    /// The first command: the subvolume, or the snapshot of the parent that becomes it.
    fn begin(&mut self, name: &[u8]) -> Result<()> {
        let (uuid, transid) = self.source.identity(&self.new);
        let parent = self.old.as_deref();
        let parent = parent.map(|tree| self.source.identity(tree));
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
    fn incremental(&mut self, old: &Arc<S::Tree>) -> Result<()> {
        let places = self.change_names(old)?;
        for found in self.source.changes()? {
            let found = found?;
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
