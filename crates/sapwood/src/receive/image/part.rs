//! The partial subvolume of an image, and its record.
//!
//! # How it works
//! The record of a partial subvolume is an extended attribute of its top. Every operation on an
//! image is whole after a crash, and a crash loses only the newest operations, so the record and the
//! names belong together:
//!
//! - A subvolume is made with a temporary name, gets its record, and then its name.
//! - A change of names is followed by its record. A checkpoint is recorded after the image was made
//!   durable.
//! - Completing a subvolume removes the record from it. Until the subvolume is marked as received,
//!   a symbolic link with the temporary name contains the record.
//!
//! ext4 has no snapshots and no received UUIDs. There a subvolume is a directory, which begins as a
//! copy of its parent's directory, and `records` marks it as received.

use super::super::error::{ReceiveError, Result, at};
use super::super::record::{Mark, PART_PREFIX, Position, Record, State};
use super::super::{Names, NamesDigest, NewSubvolume, Resumed};
use super::{Current, ImageSink};
use crate::image::Mounted;
use crate::tree::HeldInode;
use crate::vfs::{self, Credentials, NewInode, RenameMode, SetXattrMode};

/// Extended attribute of a subvolume that is received in part: its [`Record`].
pub(super) const RECORD: &[u8] = b"user.sapwood.part";

/// The name of a subvolume before it has its record, and of the record before the subvolume is
/// marked as received.
pub(in super::super) fn temporary(uuid: [u8; 16]) -> Vec<u8> {
    format!("{PART_PREFIX}{}", uuid::Uuid::from_bytes(uuid)).into_bytes()
}

impl<'a> ImageSink<'a> {
    /// The state of the current subvolume, whose names are those after `names`.
    pub(super) fn running(&self, names: Mark) -> State {
        let checkpoint = self.current.as_ref().map(|one| one.checkpoint.clone());
        State::Running {
            checkpoint: checkpoint.unwrap_or_default(),
            names,
        }
    }

    /// The record of the current subvolume.
    fn record(&self, state: State) -> Option<Record> {
        let current = self.current.as_ref()?;
        Some(Record {
            uuid: current.uuid,
            transid: current.transid,
            state,
            mode: 0,
            keeps_owners: true,
            mount: String::new(),
            name: current.name.clone(),
        })
    }

    pub(super) fn store(&self, state: State) -> Result<()> {
        let (Some(current), Some(record)) = (&self.current, self.record(state)) else {
            return Ok(());
        };
        let (ino, value) = (current.root.ino(), record.to_bytes());
        let stored = self.fs.setxattr(ino, RECORD, &value, SetXattrMode::Any);
        stored.map_err(at("record the state of", &current.name))
    }

    /// The record of a partial subvolume.
    fn find_record(&self, node: &HeldInode<'_>, uuid: [u8; 16]) -> Option<Record> {
        let bytes = match self.fs.getxattr(node.ino(), RECORD) {
            Ok(bytes) => bytes,
            Err(_) => {
                let link = self.dir.child(&temporary(uuid)).ok()?;
                self.fs.readlink(link.ino()).ok()?
            }
        };
        Record::parse(&bytes)
    }

    /// Removes what a receive that was killed left under the temporary name.
    fn remove_temporary(&self, uuid: [u8; 16]) -> vfs::Result<()> {
        let name = temporary(uuid);
        let dir = self.dir.ino();
        let node = match self.dir.child(&name) {
            Err(vfs::Error::NotFound) => return Ok(()),
            node => node?,
        };
        match self.fs.subvolumes() {
            _ if !node.is_dir() => self.fs.unlink(dir, &name),
            Some(subvolumes) => {
                drop(node);
                subvolumes.delete_subvolume(dir, &name)
            }
            None => {
                drop(node);
                self.remove_tree(&name)
            }
        }
    }

    /// Whether a directory is the complete subvolume of a stream.
    fn is_complete(&self, node: &HeldInode<'_>, new: &NewSubvolume<'_>) -> vfs::Result<bool> {
        let Mounted::Btrfs(btrfs) = self.image else {
            let found = self.complete_one(new.uuid)?;
            return Ok(found.is_some_and(|(record, dir)| {
                record.transid == new.transid && dir.ino() == node.ino()
            }));
        };
        let subvolumes = self.fs.subvolumes().ok_or(vfs::Error::NotSupported)?;
        for one in subvolumes.list()? {
            if !one.read_only || one.received_uuid != new.uuid {
                continue;
            }
            let tree = btrfs.file_tree(one.id)?;
            if tree.identity().stransid == new.transid && tree.ino(tree.top()) == node.ino() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Makes a subvolume with its record.
    pub(super) fn make(&mut self, new: &NewSubvolume<'_>, position: &Position) -> Result<()> {
        let failed = |error| at("create", new.name)(error);
        let (fs, dir) = (self.fs, self.dir.ino());
        if self.dir.child(new.name).is_ok() {
            return Err(failed(vfs::Error::Exists));
        }
        self.remove_temporary(new.uuid).map_err(failed)?;
        let name = temporary(new.uuid);
        let made = match (fs.subvolumes(), new.parent) {
            (None, Some((uuid, _))) => {
                let made = self.copy_parent(new, uuid, &name)?;
                return self.begin_part(made, new, position);
            }
            (None, None) => fs.create(&Credentials::ROOT, dir, &name, NewInode::Directory, 0o755),
            (Some(subvolumes), None) => subvolumes.create_subvolume(dir, &name),
            (Some(subvolumes), Some((uuid, transid))) => {
                let parent = self.subvolume(uuid, transid);
                match parent {
                    Ok(None) => return Err(ReceiveError::NoParent(uuid)),
                    Ok(Some(parent)) => self
                        .hold(parent)
                        .and_then(|parent| subvolumes.snapshot(parent.ino(), dir, &name, false)),
                    Err(error) => Err(error),
                }
            }
        };
        let made = HeldInode::new(fs, made.map_err(failed)?);
        self.begin_part(made, new, position)
    }

    /// Gives a subvolume with the temporary name its record and its name.
    fn begin_part(
        &mut self,
        root: HeldInode<'a>,
        new: &NewSubvolume<'_>,
        position: &Position,
    ) -> Result<()> {
        self.current = Some(Current {
            root,
            uuid: new.uuid,
            transid: new.transid,
            name: new.name.to_vec(),
            checkpoint: position.mark(),
            interrupted: false,
        });
        self.store(self.running(position.mark()))?;
        let (dir, name) = (self.dir.ino(), temporary(new.uuid));
        let mode = RenameMode::NoReplace;
        let renamed = self.fs.rename(dir, &name, dir, new.name, mode);
        renamed.map_err(at("create", new.name))
    }

    /// Finds the result of an earlier receive.
    pub(super) fn find_part(&mut self, new: &NewSubvolume<'_>) -> Result<Resumed> {
        let failed = |error| at("continue", new.name)(error);
        let node = match self.dir.child(new.name) {
            Err(vfs::Error::NotFound) => return Ok(Resumed::No),
            node => node.map_err(failed)?,
        };
        if self.is_complete(&node, new).map_err(failed)? {
            self.remove_temporary(new.uuid).map_err(failed)?;
            return Ok(Resumed::Complete);
        }
        let shown = || crate::archive::path(new.name);
        let record = self.find_record(&node, new.uuid);
        let record = record.ok_or_else(|| ReceiveError::NoPosition(shown()))?;
        if (record.uuid, record.transid) != (new.uuid, new.transid) {
            return Err(ReceiveError::OtherPart(shown()));
        }
        let interrupted = matches!(record.state, State::Interrupted { .. });
        let (checkpoint, names, doubtful) = match record.state {
            State::Running { checkpoint, names } => (checkpoint, names, true),
            State::Interrupted { mark, doubtful } => (mark.clone(), mark, doubtful),
            _ => return Err(ReceiveError::NoPosition(shown())),
        };
        self.current = Some(Current {
            root: node,
            uuid: new.uuid,
            transid: new.transid,
            name: new.name.to_vec(),
            checkpoint: checkpoint.clone(),
            interrupted,
        });
        let names = Names {
            commands: names.commands,
            digest: NamesDigest::Whole(names.digest),
            doubtful,
        };
        Ok(Resumed::At { checkpoint, names })
    }

    /// Marks the subvolume as received, which makes it read-only.
    pub(super) fn complete(&mut self, position: &Position) -> Result<()> {
        let state = self.running(position.mark());
        let (Some(current), Some(record)) = (&self.current, self.record(state)) else {
            return Ok(());
        };
        let (fs, dir, ino) = (self.fs, self.dir.ino(), current.root.ino());
        let (name, bytes) = (temporary(current.uuid), record.to_bytes());
        let link = NewInode::Symlink(&bytes);
        let complete = || -> vfs::Result<()> {
            match fs.create(&Credentials::ROOT, dir, &name, link, 0o777) {
                Ok(made) => drop(HeldInode::new(fs, made)),
                // A receive was killed here.
                Err(vfs::Error::Exists) => {}
                Err(error) => return Err(error),
            }
            match fs.removexattr(ino, RECORD) {
                Ok(()) | Err(vfs::Error::NoAttribute) => {}
                Err(error) => return Err(error),
            }
            match fs.subvolumes() {
                Some(subvolumes) => subvolumes.set_received(ino, current.uuid, current.transid)?,
                None => self.record_complete(&record)?,
            }
            fs.unlink(dir, &name)?;
            fs.sync()
        };
        complete().map_err(at("complete", b""))?;
        self.current = None;
        Ok(())
    }
}
