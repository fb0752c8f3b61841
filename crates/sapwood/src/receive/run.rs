//! The execution of the commands of streams, and its continuation after an earlier receive.

use std::io::Read;
use std::time::Instant;

use sapwood_btrfs_format::stream::{Command, attribute as attr, command as cmd, command_name};

use super::epoch::{Epoch, changes_names};
use super::error::Result;
use super::reader::{CommandSource, Commands, OneCommand};
use super::record::{Mark, Position};
use super::{
    Names, NamesDigest, ReceiveError, ReceiveOptions, ReceiveReport, Resumed, Sink, new_subvolume,
};
use crate::progress::{OnProgress, Progress};
use crate::seal::Verified;

/// The nanoseconds that record a digest.
pub(super) fn nanoseconds(digest: u32) -> u32 {
    digest % 1_000_000_000
}

/// The position of a receive in its stream.
enum Place {
    /// Before a subvolume.
    Between,
    /// In a subvolume that exists completely.
    Passing,
    /// In the part of a subvolume whose effects are durable.
    Skipping { checkpoint: Mark, names: Names },
    /// After the checkpoint, where names were changed and other effects may be missing.
    Repeating { names: Names },
    /// In a subvolume. `doubtful`: the next change of names may have been executed.
    Inside { doubtful: bool },
}

/// Executes the commands of streams.
struct Receive<'r, 's> {
    sink: &'s mut dyn Sink,
    options: &'r ReceiveOptions,
    place: Place,
    /// Name and UUID of the current subvolume.
    name: Vec<u8>,
    uuid: [u8; 16],
    /// Of the current subvolume.
    position: Position,
    epoch: Epoch,
    report: ReceiveReport,
}

/// Executes the commands of a stream.
pub(super) fn receive_into(
    sink: &mut dyn Sink,
    reader: impl Read,
    options: &ReceiveOptions,
    progress: &mut OnProgress<'_>,
) -> Result<ReceiveReport> {
    match &options.seal {
        Some(seal) => {
            let mut commands = Commands::new(Verified::new(seal, reader));
            receive_commands(sink, &mut commands, options, progress)
        }
        None => receive_commands(sink, &mut Commands::new(reader), options, progress),
    }
}

/// Executes commands, whose seal is verified.
pub(super) fn receive_commands(
    sink: &mut dyn Sink,
    commands: &mut dyn CommandSource,
    options: &ReceiveOptions,
    progress: &mut OnProgress<'_>,
) -> Result<ReceiveReport> {
    let mut receive = Receive {
        sink,
        options,
        place: Place::Between,
        name: Vec::new(),
        uuid: [0; 16],
        position: Position::default(),
        epoch: Epoch::new(options.checkpoint),
        report: ReceiveReport::default(),
    };
    let received = receive.run(commands, progress);
    if received.is_err()
        && let Place::Inside { doubtful } = receive.place
        // The first error is the one to return.
        && let Err(error) = receive.sink.interrupt(&receive.position, doubtful)
    {
        log::warn!("the received part is not durable: {error}");
    }
    received?;
    receive.report.left_out = receive.sink.left_out();
    Ok(receive.report)
}

impl Receive<'_, '_> {
    fn run(
        &mut self,
        commands: &mut dyn CommandSource,
        progress: &mut OnProgress<'_>,
    ) -> Result<()> {
        while let Some(one) = commands.next()? {
            if self.options.stop.is_stopped() {
                return Err(ReceiveError::Stopped);
            }
            let content = self.command(&one)?;
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
    fn command(&mut self, one: &OneCommand<'_>) -> Result<u64> {
        let command = &one.command;
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
        if begins {
            self.begin(one)?;
        } else if command.number == cmd::END {
            self.end()?;
        } else {
            let content = self.inner(one)?;
            self.reach()?;
            return Ok(content);
        }
        self.reach()?;
        Ok(0)
    }

    fn begin(&mut self, one: &OneCommand<'_>) -> Result<()> {
        let new = new_subvolume(&one.command)?;
        let resumed = if self.options.resume {
            self.sink.resume(&new)?
        } else {
            Resumed::No
        };
        self.position = Position::default();
        self.position.add(&one.header, one.len);
        self.epoch = Epoch::new(self.options.checkpoint);
        self.name = new.name.to_vec();
        self.uuid = new.uuid;
        self.place = match resumed {
            Resumed::No => {
                self.sink.begin(&new, &self.position)?;
                Place::Inside { doubtful: false }
            }
            Resumed::Complete => Place::Passing,
            Resumed::At { checkpoint, names } => Place::Skipping { checkpoint, names },
        };
        self.report.subvolumes.push(new.name.to_vec());
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        match self.place {
            Place::Skipping { .. } | Place::Repeating { .. } => {
                return Err(ReceiveError::OtherStream(self.name.clone()));
            }
            Place::Inside { .. } => self.sink.finish(&self.position)?,
            Place::Between | Place::Passing => {}
        }
        self.place = Place::Between;
        Ok(())
    }

    /// Executes or skips a command in a subvolume, and advances the position.
    fn inner(&mut self, one: &OneCommand<'_>) -> Result<u64> {
        let command = &one.command;
        let names = changes_names(command);
        let content = match self.place {
            Place::Between | Place::Passing | Place::Skipping { .. } => 0,
            Place::Repeating { .. } if names => 0,
            Place::Repeating { .. } => self.set(one)?,
            Place::Inside { doubtful } if names => {
                if self.epoch.is_affected(command)? {
                    self.checkpoint()?;
                }
                let done = doubtful && self.is_done(command)?;
                // A command that fails was not executed.
                self.place = Place::Inside { doubtful: false };
                if !done {
                    self.sink.apply(command, one.owner)?;
                }
                self.position.add(&one.header, one.len);
                self.sink.names_changed(&self.position)?;
                return Ok(0);
            }
            Place::Inside { .. } => {
                let sink = &mut *self.sink;
                let identify = |path: &[u8]| sink.identify(path);
                if self.epoch.overwrites_source(command, identify)? {
                    self.checkpoint()?;
                    // The second one makes the record of the first durable before the new bytes,
                    // because a file system may write data before older changes of metadata.
                    self.checkpoint()?;
                }
                self.set(one)?
            }
        };
        self.position.add(&one.header, one.len);
        Ok(content)
    }

    /// Executes a command that has the same effect when it is repeated.
    fn set(&mut self, one: &OneCommand<'_>) -> Result<u64> {
        let command = &one.command;
        let content = self.sink.apply(command, one.owner)?;
        let sink = &mut *self.sink;
        self.epoch
            .add(command, self.uuid, |path| sink.identify(path))?;
        Ok(content)
    }

    fn checkpoint(&mut self) -> Result<()> {
        let since = Instant::now();
        self.sink.checkpoint(&self.position)?;
        self.epoch.restart(self.position.bytes, since);
        Ok(())
    }

    /// Enters the next part of the subvolume, if the position is where an earlier receive was;
    /// makes a checkpoint that is due.
    fn reach(&mut self) -> Result<()> {
        let other = || ReceiveError::OtherStream(self.name.clone());
        if let Place::Skipping { checkpoint, .. } = &self.place
            && self.position.commands >= checkpoint.commands
        {
            if self.position.mark() != *checkpoint {
                return Err(other());
            }
            self.sink.proceed()?;
            let place = std::mem::replace(&mut self.place, Place::Between);
            if let Place::Skipping { names, .. } = place {
                self.place = Place::Repeating { names };
            }
            self.epoch.restart(self.position.bytes, Instant::now());
        }
        if let Place::Repeating { names } = &self.place
            && self.position.commands >= names.commands
        {
            let same = match &names.digest {
                NamesDigest::Whole(digest) => self.position.mark().digest == *digest,
                NamesDigest::Nanoseconds(found) => {
                    nanoseconds(self.position.short_digest()) == *found
                }
            };
            let doubtful = names.doubtful;
            if !same {
                return Err(other());
            }
            self.place = Place::Inside { doubtful };
        }
        if matches!(self.place, Place::Inside { .. })
            && self
                .epoch
                .is_due(self.position.commands, self.position.bytes)
        {
            self.checkpoint()?;
        }
        Ok(())
    }

    /// Whether a change of names that may have been executed has to be skipped. An inode that it
    /// may have created is removed first, so that it can be created again.
    fn is_done(&mut self, command: &Command<'_>) -> Result<bool> {
        let path = command.path(attr::PATH)?;
        match command.number {
            cmd::RENAME => {
                let to = command.path(attr::PATH_TO)?;
                Ok(!self.sink.exists(path)? && self.sink.exists(to)?)
            }
            cmd::UNLINK | cmd::RMDIR => Ok(!self.sink.exists(path)?),
            _ => {
                if self.sink.exists(path)? {
                    self.sink.remove(path)?;
                }
                Ok(false)
            }
        }
    }
}
