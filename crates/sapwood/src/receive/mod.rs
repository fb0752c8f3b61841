//! Receiving a stream that [`FileSystem::send`] or `btrfs send` wrote.
//!
//! # How it works
//! `reader` reads command after command, each bounded and with its checksum verified. `image` executes
//! them on the open image. The stream's paths have no `..`, and no symbolic link is followed, so no
//! command leads out of the subvolume.
//!
//! The last command marks the subvolume as received and makes it read-only. A stream that ends
//! early leaves a writable subvolume without that mark, and nothing else.

mod error;
mod image;
mod reader;
#[cfg(test)]
mod tests;

use std::io::Read;
use std::path::Path;

use sapwood_btrfs_format::stream::{Command, attribute as attr, command as cmd, command_name};

use crate::fs::FileSystem;
use crate::progress::{OnProgress, Progress, Stop};
use crate::vfs::Timestamp;
pub use error::ReceiveError;
use error::Result;
use image::ImageSink;
use reader::Commands;
pub use reader::read_stream;

/// How a stream is received.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ReceiveOptions {
    /// Ends the receive early.
    pub stop: Stop,
}

/// What was received.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReceiveReport {
    /// Names of the subvolumes.
    pub subvolumes: Vec<Vec<u8>>,
    /// Commands.
    pub commands: u64,
    /// Bytes of content.
    pub content: u64,
}

/// A subvolume that a stream begins.
struct NewSubvolume<'a> {
    name: &'a [u8],
    uuid: [u8; 16],
    transid: u64,
    /// UUID and transaction of the snapshot that it is the difference from.
    parent: Option<([u8; 16], u64)>,
}

/// A piece of a file that is shared with another one.
struct CloneRange<'a> {
    path: &'a [u8],
    offset: u64,
    len: u64,
    source: [u8; 16],
    source_path: &'a [u8],
    source_offset: u64,
}

fn timestamp(command: &Command<'_>, attribute: u16) -> Result<Timestamp> {
    let (sec, nsec) = command.time(attribute)?;
    Ok(Timestamp { sec, nsec })
}

impl FileSystem {
    /// Makes the subvolumes of a stream in the directory `dir`. Owners and devices are kept.
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
    /// The stream is damaged or ends early; its parent is missing; a name exists; the image is
    /// full.
    pub fn receive(
        &self,
        dir: impl AsRef<Path>,
        reader: impl Read,
        options: &ReceiveOptions,
        progress: &mut OnProgress<'_>,
    ) -> crate::Result<ReceiveReport> {
        let mut sink = ImageSink::new(self, dir.as_ref())?;
        Ok(receive(&mut sink, reader, options, progress)?)
    }
}

fn receive(
    sink: &mut ImageSink<'_>,
    reader: impl Read,
    options: &ReceiveOptions,
    progress: &mut OnProgress<'_>,
) -> Result<ReceiveReport> {
    let mut report = ReceiveReport::default();
    let mut commands = Commands::new(reader);
    let mut inside = false;
    while let Some(command) = commands.next()? {
        if options.stop.is_stopped() {
            return Err(ReceiveError::Stopped);
        }
        let wrong = |place| ReceiveError::Order {
            command: command_name(command.number),
            place,
        };
        match command.number {
            cmd::SUBVOL | cmd::SNAPSHOT => {
                if inside {
                    return Err(wrong("inside a subvolume"));
                }
                inside = true;
                let new = new_subvolume(&command)?;
                sink.begin(&new)?;
                report.subvolumes.push(new.name.to_vec());
            }
            _ if !inside => return Err(wrong("before the subvolume")),
            cmd::END => {
                sink.finish()?;
                inside = false;
            }
            _ => {
                let content = sink.apply(&command)?;
                report.content = report.content.saturating_add(content);
                if content > 0 {
                    progress(Progress::Bytes(report.content));
                } else {
                    progress(Progress::Done {
                        phase: "received",
                        done: report.commands,
                    });
                }
            }
        }
        report.commands += 1;
    }
    Ok(report)
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
