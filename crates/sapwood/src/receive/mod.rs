//! Receiving a stream that [`FileSystem::send`] or `btrfs send` wrote.
//!
//! # How it works
//! `reader` reads command after command, each bounded and with its checksum verified. A [`Sink`]
//! executes them: on an open image (`image`), or in a directory of this machine (`directory`). The
//! stream's paths have no `..`, and no symbolic link is followed, so no command leads out of the
//! subvolume.
//!
//! The last command marks the subvolume as received and makes it read-only; a directory gets its
//! name. A stream that ends early leaves a partial subvolume without that mark.
//!
//! A receive that is stopped records its position (`record`): the number of whole commands, and a
//! digest of their headers, which contain the checksums of the commands. A resumed receive reads
//! the same number of commands and compares the digest. The command after them may have been
//! executed in whole or in part. It is executed again, after its possible results are removed.

mod confined;
mod content;
mod directory;
mod error;
mod image;
mod left_out;
mod node;
mod reader;
mod record;
mod records;
#[cfg(test)]
mod tests;

use std::io::Read;
use std::path::Path;

use sapwood_btrfs_format::stream::{Command, attribute as attr, command as cmd, command_name};

use crate::fs::FileSystem;
use crate::progress::{OnProgress, Progress, Stop};
use crate::vfs::Timestamp;
use directory::DirectorySink;
pub use error::ReceiveError;
use error::Result;
use image::ImageSink;
pub use left_out::{LeftOut, LeftOutKind};
use reader::Commands;
pub use reader::read_stream;
use record::Position;

/// `fallocate` modes of the stream.
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 16;

/// How a stream is received.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ReceiveOptions {
    /// Ends the receive early.
    pub stop: Stop,
    /// Continue an earlier receive of the same stream. Complete subvolumes of the stream are
    /// skipped, and missing ones are made.
    pub resume: bool,
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
    /// A part: this number of whole commands, with this digest, was executed.
    At { commands: u64, digest: String },
}

/// The destination of received subvolumes.
trait Sink {
    /// Creates the subvolume of a stream.
    fn begin(&mut self, new: &NewSubvolume<'_>) -> Result<()>;
    /// Finds the result of an earlier receive of a subvolume. A partial one becomes the current
    /// subvolume.
    fn resume(&mut self, new: &NewSubvolume<'_>) -> Result<Resumed>;
    /// The found part will change: its recorded position is no longer valid.
    fn proceed(&mut self) -> Result<()>;
    /// Executes a command on the subvolume. Returns the bytes of content.
    fn apply(&mut self, command: &Command<'_>) -> Result<u64>;
    /// Whether a path of the subvolume exists.
    fn exists(&mut self, path: &[u8]) -> Result<bool>;
    /// Removes a file or an empty directory.
    fn remove(&mut self, path: &[u8]) -> Result<()>;
    /// Completes the subvolume.
    fn finish(&mut self) -> Result<()>;
    /// Makes the partial subvolume durable, and then records the position.
    fn interrupt(&mut self, position: &Position) -> Result<()>;
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
    /// # Errors The stream is damaged or ends early; its parent is missing; a name exists; the
    /// image is full. With [`resume`](ReceiveOptions::resume): the stream is another one, or the
    /// earlier receive recorded no position.
    pub fn receive(
        &self,
        dir: impl AsRef<Path>,
        reader: impl Read,
        options: &ReceiveOptions,
        progress: &mut OnProgress<'_>,
    ) -> crate::Result<ReceiveReport> {
        let mut sink = ImageSink::new(self, dir.as_ref())?;
        Ok(receive_into(&mut sink, reader, options, progress)?)
    }
}

/// Creates the subvolumes of a stream as directories in a directory of this machine, on any file
/// system and as any user. Attributes that the file system does not have, or that the caller has no
/// right to set, are left out and listed in the report.
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
/// The errors of [`FileSystem::receive`]; the directory of the parent cannot be copied.
pub fn receive(
    dir: impl AsRef<Path>,
    reader: impl Read,
    options: &ReceiveOptions,
    progress: &mut OnProgress<'_>,
) -> crate::Result<ReceiveReport> {
    let mut sink = DirectorySink::new(dir.as_ref(), &options.stop)?;
    Ok(receive_into(&mut sink, reader, options, progress)?)
}

/// The position of a receive in its stream.
enum Place {
    /// Before a subvolume.
    Between,
    /// In a subvolume that exists completely.
    Passing,
    /// In the part of a subvolume that an earlier receive executed.
    Skipping {
        name: Vec<u8>,
        commands: u64,
        digest: String,
    },
    /// In a subvolume. `doubtful`: the next command may have been executed.
    Inside { doubtful: bool },
}

/// Executes the commands of streams.
struct Receive<'r, 's> {
    sink: &'s mut dyn Sink,
    options: &'r ReceiveOptions,
    place: Place,
    /// Of the current subvolume.
    position: Position,
    report: ReceiveReport,
}

fn receive_into(
    sink: &mut dyn Sink,
    reader: impl Read,
    options: &ReceiveOptions,
    progress: &mut OnProgress<'_>,
) -> Result<ReceiveReport> {
    let mut receive = Receive {
        sink,
        options,
        place: Place::Between,
        position: Position::default(),
        report: ReceiveReport::default(),
    };
    let received = receive.run(reader, progress);
    if received.is_err() && matches!(receive.place, Place::Inside { .. }) {
        // The first error is the one to return.
        if let Err(error) = receive.sink.interrupt(&receive.position) {
            log::warn!("the receive cannot be resumed: {error}");
        }
    }
    received?;
    receive.report.left_out = receive.sink.left_out();
    Ok(receive.report)
}

impl Receive<'_, '_> {
    fn run(&mut self, reader: impl Read, progress: &mut OnProgress<'_>) -> Result<()> {
        let mut commands = Commands::new(reader);
        while let Some((header, command)) = commands.next()? {
            if self.options.stop.is_stopped() {
                return Err(ReceiveError::Stopped);
            }
            let content = self.command(&command)?;
            self.position.add(&header);
            self.end_of_skipped()?;
            self.report.commands += 1;
            self.report.content = self.report.content.saturating_add(content);
            if content > 0 {
                progress(Progress::Bytes(self.report.content));
            } else {
                progress(Progress::Done {
                    phase: "received",
                    done: self.report.commands,
                });
            }
        }
        Ok(())
    }

    /// Executes a command, or skips it. Returns the bytes of content.
    fn command(&mut self, command: &Command<'_>) -> Result<u64> {
        let begins = matches!(command.number, cmd::SUBVOL | cmd::SNAPSHOT);
        let between = matches!(self.place, Place::Between);
        if begins != between {
            return Err(ReceiveError::Order {
                command: command_name(command.number),
                place: if begins {
                    "inside a subvolume"
                } else {
                    "before the subvolume"
                },
            });
        }
        let ends = command.number == cmd::END;
        match self.place {
            Place::Between => self.begin(command)?,
            Place::Passing if ends => self.place = Place::Between,
            Place::Skipping { ref name, .. } if ends => {
                return Err(ReceiveError::OtherStream(name.clone()));
            }
            Place::Passing | Place::Skipping { .. } => {}
            Place::Inside { .. } if ends => {
                self.sink.finish()?;
                self.place = Place::Between;
            }
            Place::Inside { doubtful } => {
                let content = if doubtful && self.is_done(command)? {
                    0
                } else {
                    self.sink.apply(command)?
                };
                self.place = Place::Inside { doubtful: false };
                return Ok(content);
            }
        }
        Ok(0)
    }

    fn begin(&mut self, command: &Command<'_>) -> Result<()> {
        let new = new_subvolume(command)?;
        let resumed = if self.options.resume {
            self.sink.resume(&new)?
        } else {
            Resumed::No
        };
        self.position = Position::default();
        self.place = match resumed {
            Resumed::No => {
                self.sink.begin(&new)?;
                Place::Inside { doubtful: false }
            }
            Resumed::Complete => Place::Passing,
            Resumed::At { commands, digest } => Place::Skipping {
                name: new.name.to_vec(),
                commands,
                digest,
            },
        };
        self.report.subvolumes.push(new.name.to_vec());
        Ok(())
    }

    /// Continues where an earlier receive ended, if this command was its last one.
    fn end_of_skipped(&mut self) -> Result<()> {
        let Place::Skipping {
            name,
            commands,
            digest,
        } = &self.place
        else {
            return Ok(());
        };
        if self.position.commands < *commands {
            return Ok(());
        }
        if self.position.digest() != *digest {
            return Err(ReceiveError::OtherStream(name.clone()));
        }
        self.sink.proceed()?;
        self.place = Place::Inside { doubtful: true };
        Ok(())
    }

    /// Whether a command that may have been executed has to be skipped. An inode that it may have
    /// created is removed first, so that it can be created again. Commands other than creations,
    /// renames and removals have the same effect twice.
    fn is_done(&mut self, command: &Command<'_>) -> Result<bool> {
        let path = || command.path(attr::PATH);
        match command.number {
            cmd::MKFILE
            | cmd::MKDIR
            | cmd::MKFIFO
            | cmd::MKSOCK
            | cmd::MKNOD
            | cmd::SYMLINK
            | cmd::LINK => {
                if self.sink.exists(path()?)? {
                    self.sink.remove(path()?)?;
                }
                Ok(false)
            }
            cmd::RENAME => {
                let to = command.path(attr::PATH_TO)?;
                Ok(!self.sink.exists(path()?)? && self.sink.exists(to)?)
            }
            cmd::UNLINK | cmd::RMDIR => Ok(!self.sink.exists(path()?)?),
            _ => Ok(false),
        }
    }
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
    Ok(NewSubvolume {
        name,
        uuid: command.uuid(attr::UUID)?,
        transid: command.u64(attr::CTRANSID)?,
        parent,
    })
}
