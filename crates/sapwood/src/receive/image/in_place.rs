//! A directory of an ext4 image that becomes the state of a stream itself.
//!
//! # How it works
//! The commands run in a [transaction](crate::FileSystem::transaction), on the files of the parent.
//! The directory has to be that parent:
//!
//! - either its state has the UUID that a send gives it: the image is a copy of the sender's parent;
//! - or an extended attribute of the directory ([`RECEIVED_STATE`]) has the UUID, and a digest of
//!   everything in the directory at that time, which is still the same.
//!
//! The attribute is set after the last command. It is not part of the digest, and of no stream.
//!
//! The blocks that a transaction overwrites have to fit into the journal, and new blocks do not. So a
//! write to blocks of a file first gives them back, and then gets others. The allocator uses no block
//! again that was given back before the next commit, and there is none before the end, unless the
//! image is full.

use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use sapwood_btrfs_format::stream::{Command, attribute as attr, command as cmd};
use sapwood_ext4::Ext4;

use super::super::content::expanded;
use super::super::epoch::InodeId;
use super::super::error::{ReceiveError, Result, at};
use super::super::left_out::LeftOut;
use super::super::record::Position;
use super::super::run::receive_into;
use super::super::{NewSubvolume, ReceiveOptions, ReceiveReport, Resumed, Sink};
use super::{Current, ImageSink};
use crate::fs::FileSystem;
use crate::image::Mounted;
use crate::progress::{OnProgress, Stop};
use crate::send::{self, RECEIVED_STATE, SendError};
use crate::tree::HeldInode;
use crate::vfs::{self, AllocMode, SetAttr, SetTime, SetXattrMode};

/// The value of the attribute: this, the UUID of the state, and the digest.
const MAGIC: &[u8; 8] = b"sapwood1";

/// UUID of a state.
type StateId = [u8; 16];

struct InPlaceSink<'a> {
    files: ImageSink<'a>,
    ext4: &'a Ext4,
    /// The directory.
    path: Vec<u8>,
    /// The state at the end of the last stream.
    state: Option<StateId>,
    block: u64,
    stop: Stop,
}

/// Receives streams in the directory itself, in a transaction.
pub(in super::super) fn receive_in_place(
    (fs, dir): (&FileSystem, &Path),
    reader: impl Read,
    options: &ReceiveOptions,
    progress: &mut OnProgress<'_>,
) -> Result<ReceiveReport> {
    let Mounted::Ext4(ext4) = fs.engine() else {
        return Err(ReceiveError::InPlaceFormat(fs.image_path().to_owned()));
    };
    let mut sink = InPlaceSink {
        files: ImageSink::new(fs, dir, options)?,
        ext4,
        path: dir.as_os_str().as_bytes().to_vec(),
        state: None,
        block: ext4.block_size(),
        stop: options.stop.clone(),
    };
    let report = receive_into(&mut sink, reader, options, progress)?;
    sink.record()?;
    Ok(report)
}

fn failed(error: SendError) -> ReceiveError {
    match error {
        SendError::Stopped => ReceiveError::Stopped,
        error => ReceiveError::State(Box::new(error)),
    }
}

impl InPlaceSink<'_> {
    fn path(&self) -> &[u8] {
        &self.path
    }

    fn digest(&self) -> Result<[u8; 16]> {
        send::content_digest(self.ext4, self.path(), &self.stop).map_err(failed)
    }

    /// The recorded state of the directory, and whether the directory did not change since.
    fn recorded(&self) -> Result<Option<(StateId, bool)>> {
        let found = self.files.fs.getxattr(self.files.dir.ino(), RECEIVED_STATE);
        let value = match found {
            Err(vfs::Error::NoAttribute) => return Ok(None),
            value => value.map_err(at("read the state of", b""))?,
        };
        let parts = value.strip_prefix(MAGIC).and_then(|rest| {
            let (state, digest) = rest.split_first_chunk::<16>()?;
            Some((*state, <[u8; 16]>::try_from(digest).ok()?))
        });
        match parts {
            Some((state, digest)) => Ok(Some((state, self.digest()? == digest))),
            None => Ok(None),
        }
    }

    /// Whether the directory is in a state. The error of another state if it was and was changed.
    fn is(&self, state: StateId) -> Result<bool> {
        if let Some(now) = self.state {
            return Ok(now == state);
        }
        match self.recorded()? {
            Some((recorded, same)) if recorded == state => Ok(same),
            _ => {
                let now = send::state_uuid(self.ext4, self.path(), &self.stop);
                Ok(now.map_err(failed)? == state)
            }
        }
    }

    fn check_state(&self, new: &NewSubvolume<'_>) -> Result<()> {
        let (parent, _) = new.parent.ok_or(ReceiveError::NoDifference)?;
        if parent == new.uuid {
            return Err(ReceiveError::SameIdentity(parent));
        }
        if self.is(parent)? {
            return Ok(());
        }
        let recorded = match self.state {
            None => self.recorded()?,
            Some(_) => None,
        };
        Err(match recorded {
            Some((state, true)) if state == new.uuid => ReceiveError::AlreadyReceived(state),
            recorded => ReceiveError::OtherState {
                parent,
                changed: recorded.is_some_and(|(state, same)| state == parent && !same),
            },
        })
    }

    /// Records the state of the directory.
    fn record(&mut self) -> Result<()> {
        let Some(state) = self.state else {
            return Ok(());
        };
        let (fs, ino) = (self.files.fs, self.files.dir.ino());
        // Content that is not written yet has no blocks.
        fs.sync().map_err(at("write back", b""))?;
        let value = [&MAGIC[..], &state, &self.digest()?].concat();
        let stored = fs.getattr(ino).and_then(|attr| {
            fs.setxattr(ino, RECEIVED_STATE, &value, SetXattrMode::Any)?;
            let times = SetAttr {
                atime: Some(SetTime::To(attr.atime)),
                mtime: Some(SetTime::To(attr.mtime)),
                ctime: Some(attr.ctime),
                ..SetAttr::default()
            };
            fs.setattr(ino, &times)
        });
        stored.map(drop).map_err(at("record the state of", b""))
    }

    fn write(&mut self, path: &[u8], offset: u64, data: &[u8]) -> Result<u64> {
        let end = offset.saturating_add(data.len() as u64);
        let moved = self.files.find(path).and_then(|ino| {
            let size = self.files.fs.getattr(ino)?.size;
            let first = offset.next_multiple_of(self.block);
            // The rest of the last block of a file is no content.
            let last = if end < size {
                end - end % self.block
            } else {
                size
            };
            if first < last {
                let mode = AllocMode::PunchHole;
                self.files.fs.fallocate(ino, first, last - first, mode)?;
            }
            Ok(())
        });
        moved.map_err(at("write", path))?;
        self.files.write(path, offset, data)
    }
}

impl Sink for InPlaceSink<'_> {
    fn begin(&mut self, new: &NewSubvolume<'_>, position: &Position) -> Result<()> {
        self.check_state(new)?;
        let root = HeldInode::new(
            self.files.fs,
            self.files
                .fs
                .reference(self.files.dir.ino())
                .map_err(at("find", b""))?,
        );
        self.files.current = Some(Current {
            root,
            uuid: new.uuid,
            transid: new.transid,
            name: new.name.to_vec(),
            checkpoint: position.mark(),
            interrupted: false,
        });
        Ok(())
    }

    fn resume(&mut self, new: &NewSubvolume<'_>) -> Result<Resumed> {
        let recorded = match self.state {
            None => self.recorded()?,
            Some(_) => None,
        };
        if recorded == Some((new.uuid, true)) {
            return Ok(Resumed::Complete);
        }
        Ok(Resumed::No)
    }

    fn proceed(&mut self) -> Result<()> {
        Ok(())
    }

    fn apply(&mut self, command: &Command<'_>) -> Result<u64> {
        match command.number {
            cmd::WRITE => {
                let path = command.path(attr::PATH)?;
                let offset = command.u64(attr::FILE_OFFSET)?;
                self.write(path, offset, command.get(attr::DATA)?)
            }
            cmd::ENCODED_WRITE => {
                let (offset, data) = expanded(command)?;
                self.write(command.path(attr::PATH)?, offset, &data)
            }
            _ => self.files.apply(command),
        }
    }

    fn exists(&mut self, path: &[u8]) -> Result<bool> {
        self.files.exists(path)
    }

    fn identify(&mut self, path: &[u8]) -> Result<InodeId> {
        self.files.identify(path)
    }

    fn remove(&mut self, path: &[u8]) -> Result<()> {
        self.files.remove(path)
    }

    // The transaction is all or nothing, so there is nothing to record or to make durable.

    fn names_changed(&mut self, _position: &Position) -> Result<()> {
        Ok(())
    }

    fn checkpoint(&mut self, _position: &Position) -> Result<()> {
        Ok(())
    }

    fn interrupt(&mut self, _position: &Position, _doubtful: bool) -> Result<()> {
        Ok(())
    }

    fn finish(&mut self, _position: &Position) -> Result<()> {
        self.files.last = None;
        self.state = self.files.current.take().map(|current| current.uuid);
        Ok(())
    }

    fn left_out(&mut self) -> Vec<LeftOut> {
        Vec::new()
    }
}
