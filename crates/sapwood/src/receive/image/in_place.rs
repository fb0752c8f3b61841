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
//! The attribute is set after the last command. It is not part of the digest, and of no stream. It
//! also has the UUIDs of earlier states, so that a repeated chain of streams is known as received.
//!
//! The digest has no content of files with times of a running clock. Their inodes prove their
//! content only if the image was unmounted, so any other image is refused.
//!
//! A file that has a name outside of the directory is not changed; the stream fails.
//!
//! The blocks that a transaction overwrites have to fit into the journal, and new blocks do not. So a
//! write to blocks of a file first gives them back, and then gets others. The allocator uses no block
//! again that was given back before the next commit, and there is none before the end, unless the
//! image is full.

use std::cell::OnceCell;
use std::collections::HashSet;
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
use crate::progress::OnProgress;
use crate::send::{self, RECEIVED_STATE, SendError};
use crate::tree::HeldInode;
use crate::vfs::{self, AllocMode, SetAttr, SetTime, SetXattrMode, SharedBytes};

/// The value of the attribute: this, the UUID of the state, the digest, and the UUIDs of earlier
/// states, the last one first.
const MAGIC: &[u8; 8] = b"sapwood1";

/// Most earlier states that are recorded.
const EARLIER: usize = 15;

/// UUID of a state.
type StateId = [u8; 16];

/// The record of the directory.
#[derive(Clone)]
struct Recorded {
    state: StateId,
    /// The directory did not change since.
    same: bool,
    /// States before, the last one first.
    earlier: Vec<StateId>,
}

impl Recorded {
    /// Whether the stream of a subvolume was received in the directory.
    fn has(&self, new: &NewSubvolume<'_>) -> bool {
        // A stream from the present state may lead back to an earlier one.
        let follows = new.parent.is_none_or(|(parent, _)| parent == self.state);
        self.same && (self.state == new.uuid || !follows && self.earlier.contains(&new.uuid))
    }
}

struct InPlaceSink<'a> {
    files: ImageSink<'a>,
    ext4: &'a Ext4,
    /// The directory.
    path: Vec<u8>,
    /// The record before the first stream.
    recorded: OnceCell<Option<Recorded>>,
    /// Inodes in the directory that have a name outside of it.
    outside: Option<HashSet<u64>>,
    /// The state at the end of the last stream.
    state: Option<StateId>,
    /// States at the ends of streams before, the last one first.
    passed: Vec<StateId>,
    block: u64,
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
        recorded: OnceCell::new(),
        outside: None,
        state: None,
        passed: Vec::new(),
        block: ext4.block_size(),
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
    fn digest(&self) -> Result<[u8; 16]> {
        send::content_digest(self.ext4, &self.path, &self.files.stop).map_err(failed)
    }

    /// The record of the directory before the first stream.
    fn recorded(&self) -> Result<Option<&Recorded>> {
        let found = match self.recorded.get() {
            Some(found) => found,
            None => {
                let read = self.read_record()?;
                self.recorded.get_or_init(|| read)
            }
        };
        Ok(found.as_ref())
    }

    fn read_record(&self) -> Result<Option<Recorded>> {
        let found = self.files.fs.getxattr(self.files.dir.ino(), RECEIVED_STATE);
        let value = match found {
            Err(vfs::Error::NoAttribute) => return Ok(None),
            value => value.map_err(at("read the state of", b""))?,
        };
        let parts = value.strip_prefix(MAGIC).and_then(|rest| {
            let (state, rest) = rest.split_first_chunk::<16>()?;
            let (digest, rest) = rest.split_first_chunk::<16>()?;
            let (earlier, []) = rest.as_chunks::<16>() else {
                return None;
            };
            Some((*state, *digest, earlier.to_vec()))
        });
        let Some((state, digest, earlier)) = parts else {
            return Ok(None);
        };
        Ok(Some(Recorded {
            state,
            same: self.digest()? == digest,
            earlier,
        }))
    }

    /// Whether the directory is in a state. The error of another state if it was and was changed.
    fn is(&self, state: StateId) -> Result<bool> {
        if let Some(now) = self.state {
            return Ok(now == state);
        }
        match self.recorded()? {
            Some(recorded) if recorded.state == state => Ok(recorded.same),
            _ => {
                let now = send::state_uuid(self.ext4, &self.path, &self.files.stop);
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
            Some(one) if one.same && one.state == new.uuid => {
                ReceiveError::AlreadyReceived(one.state)
            }
            recorded => ReceiveError::OtherState {
                parent,
                changed: recorded.is_some_and(|one| one.state == parent && !one.same),
            },
        })
    }

    /// Records the state of the directory.
    fn record(&mut self) -> Result<()> {
        let Some(state) = self.state else {
            return Ok(());
        };
        let mut earlier = self.passed.clone();
        if let Some(Some(before)) = self.recorded.get()
            && before.same
        {
            earlier.push(before.state);
            earlier.extend_from_slice(&before.earlier);
        }
        earlier.truncate(EARLIER);
        let (fs, ino) = (self.files.fs, self.files.dir.ino());
        // Content that is not written yet has no blocks.
        fs.sync().map_err(at("write back", b""))?;
        let value = [&MAGIC[..], &state, &self.digest()?, earlier.as_flattened()].concat();
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

    /// Finds the inodes with a name outside of the directory. Streams do not change which ones.
    fn find_outside(&mut self) -> Result<()> {
        if self.outside.is_none() && self.files.dir.ino() != self.files.fs.root() {
            let found = send::linked_outside(self.ext4, &self.path, &self.files.stop);
            self.outside = Some(found.map_err(failed)?);
        }
        Ok(())
    }

    /// Refuses to change a file that has a name outside of the directory.
    fn check_links(&mut self, command: &Command<'_>) -> Result<()> {
        let changes = matches!(
            command.number,
            cmd::WRITE
                | cmd::ENCODED_WRITE
                | cmd::CLONE
                | cmd::FALLOCATE
                | cmd::TRUNCATE
                | cmd::CHMOD
                | cmd::CHOWN
                | cmd::UTIMES
                | cmd::SET_XATTR
                | cmd::REMOVE_XATTR
        );
        let Some(outside) = self.outside.as_ref().filter(|all| !all.is_empty()) else {
            return Ok(());
        };
        if !changes {
            return Ok(());
        }
        let path = command.path(attr::PATH)?;
        match self.files.find(path) {
            Ok(ino) if outside.contains(&ino.0) => {
                Err(ReceiveError::LinkedOutside(crate::archive::path(path)))
            }
            // The command itself fails.
            _ => Ok(()),
        }
    }

    fn write(&mut self, path: &[u8], offset: u64, data: &[u8]) -> Result<u64> {
        let moved = self.files.find(path).and_then(|ino| {
            let size = self.files.fs.getattr(ino)?.size;
            let end = offset.checked_add(data.len() as u64);
            let end = end.ok_or(vfs::Error::FileTooLarge)?;
            let first = offset.checked_next_multiple_of(self.block);
            let first = first.ok_or(vfs::Error::FileTooLarge)?;
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
        self.files.write(path, offset, data, None)
    }
}

impl Sink for InPlaceSink<'_> {
    fn begin(&mut self, new: &NewSubvolume<'_>, position: &Position) -> Result<()> {
        self.check_state(new)?;
        self.find_outside()?;
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
        if recorded.is_some_and(|one| one.has(new)) {
            return Ok(Resumed::Complete);
        }
        Ok(Resumed::No)
    }

    fn proceed(&mut self) -> Result<()> {
        Ok(())
    }

    fn apply(&mut self, command: &Command<'_>, owner: Option<&SharedBytes>) -> Result<u64> {
        self.check_links(command)?;
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
            _ => self.files.apply(command, owner),
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
        self.files.set_attributes()?;
        self.files.forget();
        let state = self.files.current.take().map(|current| current.uuid);
        if let Some(before) = std::mem::replace(&mut self.state, state) {
            self.passed.insert(0, before);
            self.passed.truncate(EARLIER);
        }
        Ok(())
    }

    fn left_out(&mut self) -> Vec<LeftOut> {
        Vec::new()
    }
}
