//! Receiving a stream that [`FileSystem::send`] or `btrfs send` wrote.
//!
//! # How it works
//! `reader` reads command after command, each bounded and with its checksum verified, perhaps in a
//! thread of its own (`ahead`). A [`Sink`] executes them: on an open image (`image`), or in a
//! directory of this machine (`directory`). The stream's paths have no `..`, and no symbolic link is
//! followed, so no command leads out of the subvolume.
//!
//! The last command marks the subvolume as received and makes it read-only; a directory gets its
//! name. A stream that ends early leaves a partial subvolume without that mark.
//!
//! # Resuming
//! A receive records positions in its stream (`record`): the number of whole commands, and a digest
//! of their headers, which contain the checksums of the commands. There are two of them:
//!
//! - The *checkpoint* `c`: all effects of the commands up to `c` are durable. `run` makes one after
//!   some bytes or seconds, before some changes of names (`epoch`), and at an orderly end.
//! - The *names* `m >= c`: the last command that changed names. It is recorded after each such
//!   command, and need not be durable.
//!
//! A file system whose journal or transactions keep the order of its metadata has, after a crash,
//! the names and the record of one moment: the names are those after `m`, or after the next command
//! that changes names, because each such command is followed by its record. This holds for an image
//! of btrfs, for one of ext4 with a journal, and for a directory on ext4 with a journal, XFS or
//! btrfs. After `kill -9` alone it holds for a directory on any file system.
//!
//! A resumed receive reads the stream from its start:
//!
//! 1. Up to `c` it skips all commands, and compares the digest.
//! 2. Up to `m` it skips changes of names and executes the others. `epoch` shows why that is right.
//! 3. After `m` it executes everything. If the earlier receive was killed, the first change of
//!    names may have been executed. If its result exists, an inode that it created is removed and
//!    created again, and a rename or removal is skipped. After an orderly end it was not executed.
//!
//! After a crash during these steps, a resume repeats them: `c` and `m` never decrease.

mod ahead;
mod content;
#[cfg(all(target_os = "linux", not(sapwood_portable)))]
mod directory;
#[cfg(not(all(target_os = "linux", not(sapwood_portable))))]
#[path = "no_directory.rs"]
mod directory;
mod epoch;
mod error;
mod image;
mod left_out;
#[cfg(feature = "fuse")]
mod noticed;
mod parent;
mod reader;
mod record;
mod run;
#[cfg(test)]
mod tests;

use std::io::Read;
use std::path::{Path, PathBuf};

use sapwood_btrfs_format::stream::{Command, attribute as attr, command as cmd, command_name};

use crate::fs::FileSystem;
use crate::image::Mounted;
use crate::progress::{OnProgress, Stop};
use crate::seal::Seal;
use crate::vfs::{SharedBytes, Timestamp};
use ahead::Ahead;
#[cfg(feature = "fuse")]
pub(crate) use directory::receive_mounted;
use epoch::InodeId;
pub use error::ReceiveError;
use error::Result;
use image::ImageSink;
pub use left_out::{LeftOut, LeftOutKind};
#[cfg(feature = "fuse")]
pub(crate) use noticed::{Receiving, Touched};
pub use reader::read_stream;
use record::{Mark, Position, is_reserved};
use run::{receive_commands, receive_into};

/// `fallocate` modes of the stream.
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 16;

/// How a stream is received.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ReceiveOptions {
    /// Ends the receive early.
    pub stop: Stop,
    /// Continue an earlier receive of the same stream, however it ended. Complete subvolumes of the
    /// stream are skipped, and missing ones are made.
    pub resume: bool,
    /// Bytes of the stream after which the received part becomes durable, so that a receive that is
    /// killed loses at most their work. A part that took some seconds becomes durable earlier.
    pub checkpoint: u64,
    /// A directory of this machine that takes the place of `/` for the directory of [`receive`]: no
    /// symbolic link and no `..` on the way leads out of it.
    pub chroot: Option<PathBuf>,
    /// Compressed extents of the stream are expanded and written as plain data. Without this an
    /// image of btrfs stores them as they come, and does not check that they can be expanded.
    pub expand: bool,
    /// The seal of the stream. Each chunk is verified before its commands are executed.
    pub seal: Option<Seal>,
}

impl Default for ReceiveOptions {
    fn default() -> Self {
        Self {
            stop: Stop::new(),
            resume: false,
            checkpoint: 64 << 20,
            chroot: None,
            expand: false,
            seal: None,
        }
    }
}

/// The result of a receive.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReceiveReport {
    /// Names of the subvolumes.
    pub subvolumes: Vec<Vec<u8>>,
    /// Commands.
    pub commands: u64,
    /// Bytes of content.
    pub content: u64,
    /// Attributes that a directory of this machine cannot hold, by kind.
    pub left_out: Vec<LeftOut>,
}

/// The subvolume that a stream creates.
struct NewSubvolume<'a> {
    name: &'a [u8],
    uuid: [u8; 16],
    transid: u64,
    /// UUID and transaction of the parent snapshot, if the stream is a difference.
    parent: Option<([u8; 16], u64)>,
}

/// A range of a file whose extents another file shares.
struct CloneRange<'a> {
    path: &'a [u8],
    offset: u64,
    len: u64,
    source: [u8; 16],
    source_path: &'a [u8],
    source_offset: u64,
}

/// The result of an earlier receive of the same subvolume.
enum Resumed {
    /// Nothing.
    No,
    /// The whole subvolume.
    Complete,
    /// A part; see the module.
    At { checkpoint: Mark, names: Names },
}

/// The last command that changed names.
#[derive(Debug)]
struct Names {
    commands: u64,
    digest: NamesDigest,
    /// The next change of names may have been executed: the receive was killed.
    doubtful: bool,
}

/// The digest of the commands up to a change of names, as far as it is recorded.
#[derive(Debug)]
enum NamesDigest {
    Whole(String),
    /// [`Position::short_digest`], as the nanoseconds of a time.
    Nanoseconds(u32),
}

/// The destination of received subvolumes.
trait Sink {
    /// Creates the subvolume of a stream, and records the position after this command.
    fn begin(&mut self, new: &NewSubvolume<'_>, position: &Position) -> Result<()>;
    /// Finds the result of an earlier receive of a subvolume. A partial one becomes the current
    /// subvolume.
    fn resume(&mut self, new: &NewSubvolume<'_>) -> Result<Resumed>;
    /// The part that was found is of this stream, and will change.
    fn proceed(&mut self) -> Result<()>;
    /// Executes a command on the subvolume. `owner` is the buffer of its attributes, if that may be
    /// kept. Returns the bytes of content.
    fn apply(&mut self, command: &Command<'_>, owner: Option<&SharedBytes>) -> Result<u64>;
    /// Whether a path of the subvolume exists.
    fn exists(&mut self, path: &[u8]) -> Result<bool>;
    /// The identity of the inode at a path.
    fn identify(&mut self, path: &[u8]) -> Result<InodeId>;
    /// Removes a file or an empty directory.
    fn remove(&mut self, path: &[u8]) -> Result<()>;
    /// Records that the last command at the position changed names.
    fn names_changed(&mut self, position: &Position) -> Result<()>;
    /// Makes the partial subvolume durable, and then records the position as its checkpoint.
    fn checkpoint(&mut self, position: &Position) -> Result<()>;
    /// Makes a checkpoint, and makes the record durable, too. The receive ends. `doubtful`: the next
    /// change of names may have been executed.
    fn interrupt(&mut self, position: &Position, doubtful: bool) -> Result<()>;
    /// Completes the subvolume, after the last command but one.
    fn finish(&mut self, position: &Position) -> Result<()>;
    /// Attributes that could not be kept until now.
    fn left_out(&mut self) -> Vec<LeftOut>;
}

fn timestamp(command: &Command<'_>, attribute: u16) -> Result<Timestamp> {
    let (sec, nsec) = command.time(attribute)?;
    Ok(Timestamp { sec, nsec })
}

impl FileSystem {
    /// Creates the subvolumes of a stream in the directory `dir`. Owners and devices are kept.
    ///
    /// ```no_run
    /// let fs = sapwood::open("backup.img")?;
    /// let stream = std::fs::File::open("monday.stream")?;
    /// let options = sapwood::ReceiveOptions::default();
    /// fs.receive("/", std::io::BufReader::new(stream), &options, &mut |_| {})?;
    /// fs.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The stream is damaged or ends early; its parent is missing; a name exists; the image is full.
    /// With [`resume`](ReceiveOptions::resume): the stream is another one, or the
    /// subvolume has no record of an earlier receive.
    pub fn receive(
        &self,
        dir: impl AsRef<Path>,
        reader: impl Read,
        options: &ReceiveOptions,
        progress: &mut OnProgress<'_>,
    ) -> crate::Result<ReceiveReport> {
        let mut sink = ImageSink::new(self, dir.as_ref(), options)?;
        Ok(receive_into(&mut sink, reader, options, progress)?)
    }

    /// Like [`receive`](Self::receive), with the stream read ahead by a thread. After an error the
    /// thread ends with the next bytes of the stream, and not before.
    ///
    /// # Errors
    /// The errors of [`receive`](Self::receive); no thread can be started.
    #[doc(hidden)]
    pub fn receive_ahead(
        &self,
        dir: impl AsRef<Path>,
        reader: impl Read + Send + 'static,
        options: &ReceiveOptions,
        progress: &mut OnProgress<'_>,
    ) -> crate::Result<ReceiveReport> {
        let mut sink = ImageSink::new(self, dir.as_ref(), options)?;
        let mut commands = Ahead::of(reader, options.seal.clone())?;
        let commands = &mut commands;
        Ok(receive_commands(&mut sink, commands, options, progress)?)
    }

    /// Makes the changes of a stream in the directory `dir` of an ext4 image itself, all or none: a
    /// [`transaction`](Self::transaction). An empty path is the root. The directory is in the state
    /// that was the parent when the stream was sent: it is a copy of that image, or received that
    /// state in place, and did not change since. Access times may have changed. The image records
    /// its new state, so that the next difference follows.
    ///
    /// Overwritten blocks get new places, so the changed content needs free space. With
    /// [`resume`](ReceiveOptions::resume), a stream that was received already changes nothing.
    ///
    /// ```no_run
    /// let mut fs = sapwood::open("machine.img")?;
    /// let stream = std::fs::File::open("update.stream")?;
    /// let options = sapwood::ReceiveOptions::default();
    /// fs.receive_in_place("", std::io::BufReader::new(stream), &options, &mut |_| {})?;
    /// fs.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`receive`](Self::receive) and of [`transaction`](Self::transaction); the image
    /// is no ext4, or [was not unmounted](Self::was_unmounted) before it was opened; the stream is
    /// not a difference, or the directory is in another state; a file to change has a hard link
    /// outside of the directory.
    pub fn receive_in_place(
        &mut self,
        dir: impl AsRef<Path>,
        reader: impl Read,
        options: &ReceiveOptions,
        progress: &mut OnProgress<'_>,
    ) -> crate::Result<ReceiveReport> {
        if !matches!(self.engine(), Mounted::Ext4(_)) {
            return Err(ReceiveError::InPlaceFormat(self.image_path().to_owned()).into());
        }
        if !self.was_unmounted() {
            return Err(ReceiveError::NotUnmounted(self.image_path().to_owned()).into());
        }
        let dir = dir.as_ref();
        self.transaction_without_atime(|tx| {
            Ok(image::receive_in_place(
                (tx, dir),
                reader,
                options,
                progress,
            )?)
        })
    }
}

/// Creates the subvolumes of a stream as directories in a directory of this machine, on any file
/// system and as any user. In a mount of a btrfs by Sapwood they are subvolumes, which the daemon
/// of the mount makes, for its owner and root. Attributes that the file system does not have, or
/// that the caller has no right to set, are left out and listed in the report. Only Linux has the
/// system calls for it.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let image = dir.path().join("disk.img");
/// sapwood::ImageBuilder::btrfs().size(128 << 20).write_to(&image)?;
/// let fs = sapwood::open(&image)?;
/// fs.write("/note", "text")?;
/// fs.snapshot_read_only("/", "/monday")?;
/// let mut stream = Vec::new();
/// fs.send("/monday", &mut stream, &sapwood::SendOptions::default(), &mut |_| {})?;
///
/// let options = sapwood::ReceiveOptions::default();
/// sapwood::receive(dir.path(), &*stream, &options, &mut |_| {})?;
/// assert_eq!(std::fs::read_to_string(dir.path().join("monday/note"))?, "text");
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The errors of [`FileSystem::receive`]; the directory of the parent cannot be copied; the host is
/// not Linux.
pub fn receive(
    dir: impl AsRef<Path>,
    reader: impl Read,
    options: &ReceiveOptions,
    progress: &mut OnProgress<'_>,
) -> crate::Result<ReceiveReport> {
    Ok(directory::receive(dir.as_ref(), reader, options, progress)?)
}

fn new_subvolume<'a>(command: &Command<'a>) -> Result<NewSubvolume<'a>> {
    let parent = match command.number {
        cmd::SNAPSHOT => Some((
            command.uuid(attr::CLONE_UUID)?,
            command.u64(attr::CLONE_CTRANSID)?,
        )),
        _ => None,
    };
    let name = command.path(attr::PATH)?;
    if name.is_empty() || name.contains(&b'/') {
        return Err(ReceiveError::Order {
            command: command_name(command.number),
            place: "for a path of several names",
        });
    }
    if is_reserved(name) {
        return Err(ReceiveError::ReservedName(crate::archive::path(name)));
    }
    Ok(NewSubvolume {
        name,
        uuid: command.uuid(attr::UUID)?,
        transid: command.u64(attr::CTRANSID)?,
        parent,
    })
}
