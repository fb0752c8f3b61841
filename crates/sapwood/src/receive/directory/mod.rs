//! A directory of this machine as the place of received subvolumes.
//!
//! # How it works
//! A subvolume `monday` is received in the directory `monday.part`, which gets its name when it is
//! complete and durable. The difference from a parent begins with a copy of the parent's directory,
//! which a record of an earlier receive names. The copy shares the content of files where the file
//! system can.
//!
//! What is durable, in this order (`records` has the files):
//!
//! 1. For a difference, a record that the copy of the parent begins.
//! 2. The directory, with the copy, then the record of its first position.
//! 3. At each checkpoint: all effects of the commands, then the record.
//! 4. At the end: the whole content with its modes, then the record of the complete directory, then
//!    its name. The receive returns after that.
//!
//! In a mount of a btrfs by Sapwood the directory is a subvolume, if the caller may make one there.
//! Its parent is a snapshot, and it is marked as received before it gets its name.
//!
//! Between two checkpoints nothing is made durable. After a power cut a file system that keeps the
//! order of its metadata is resumed like after `kill -9`. On any other one `mount` in the record
//! shows that the directory was mounted anew, and the part is refused.
//!
//! Any user can receive. Attributes that the caller has no right to set, or that the file system
//! does not have, are left out and reported. A device, fifo, socket or symbolic link that cannot be
//! made becomes an empty file, so that later commands and streams find its name.

mod confined;
#[cfg(feature = "fuse")]
mod daemon;
mod mounted;
mod node;
mod parent;
mod records;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, RenameFlags, ResolveFlags};
use rustix::io::Errno;
use sapwood_btrfs_format::stream::{Command, attribute as attr, command as cmd};

use super::epoch::InodeId;
use super::error::{ReceiveError, Result};
use super::left_out::{LeftOut, LeftOutKind, Omissions};
use super::record::{Mark, Position, Record, State};
use super::run::{nanoseconds, receive_into};
use super::{
    Names, NamesDigest, NewSubvolume, OnProgress, ReceiveOptions, ReceiveReport, Resumed, Sink,
};
use crate::host::by_descriptor;
use crate::progress::Stop;
use crate::vfs::SharedBytes;
use confined::{Confined, set_mode};
#[cfg(feature = "fuse")]
pub(crate) use daemon::receive_mounted;
use node::Tree;
use records::{NamesMark, Records};

/// Suffix of the name of a directory that is received in part.
const PART: &[u8] = b".part";

/// The directory that is being received.
struct Current {
    record: Record,
    tree: Tree,
    /// `None`: the file system does not store its times.
    names: Option<NamesMark>,
}

/// Receives a stream into a directory of this machine.
pub(super) fn receive(
    dir: &Path,
    reader: impl Read,
    options: &ReceiveOptions,
    progress: &mut OnProgress<'_>,
) -> Result<ReceiveReport> {
    #[cfg(feature = "fuse")]
    if options.chroot.is_none()
        && let Some(socket) = daemon::connect(dir)
    {
        return daemon::receive(&socket, reader, options, progress);
    }
    let mut sink = DirectorySink::new(dir, options)?;
    receive_into(&mut sink, reader, options, progress)
}

/// See the module.
pub(super) struct DirectorySink {
    /// For errors.
    path: PathBuf,
    /// For functions that take no descriptor.
    place: PathBuf,
    dir: OwnedFd,
    current: Option<Current>,
    /// Complete directories, from which commands clone content.
    sources: HashMap<[u8; 16], Confined>,
    omissions: Omissions,
    /// A received subvolume is a subvolume of a mount.
    subvolumes: bool,
    stop: Stop,
}

impl DirectorySink {
    pub(super) fn new(path: &Path, options: &ReceiveOptions) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = match &options.chroot {
            None => rustix::fs::openat(CWD, path, flags, Mode::empty()),
            Some(chroot) => {
                let root = rustix::fs::openat(CWD, chroot, flags, Mode::empty());
                let root = root.map_err(|error| host("receive into", chroot, error))?;
                let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
                rustix::fs::openat2(&root, path, flags, Mode::empty(), inside)
            }
        };
        let shown = options.chroot.as_ref().map_or_else(
            || path.to_owned(),
            |chroot| chroot.join(path.strip_prefix("/").unwrap_or(path)),
        );
        let dir = match opened {
            Err(Errno::NOTDIR) => return Err(ReceiveError::NotDirectory(shown)),
            dir => dir.map_err(|error| host("receive into", &shown, error))?,
        };
        // Another walk of the path could end elsewhere.
        let place = options
            .chroot
            .as_ref()
            .map_or_else(|| path.to_owned(), |_| by_descriptor(&dir));
        Ok(Self {
            path: shown,
            place,
            subvolumes: mounted::has_subvolumes(&dir),
            dir,
            current: None,
            sources: HashMap::new(),
            omissions: Omissions::default(),
            stop: options.stop.clone(),
        })
    }

    fn below(&self, name: &[u8]) -> PathBuf {
        self.place.join(OsStr::from_bytes(name))
    }

    fn shown(&self, name: &[u8]) -> PathBuf {
        self.path.join(OsStr::from_bytes(name))
    }

    fn store(&self, record: &Record, modes: Option<&[u8]>) -> Result<()> {
        let stored = Records(&self.dir).store(record, modes);
        stored.map_err(|error| host("record the state of", &self.shown(&record.name), error))
    }

    /// Makes everything durable.
    fn sync(&self, name: &[u8]) -> Result<()> {
        let synced = mounted::sync(&self.dir);
        synced.map_err(|error| host("write back", &self.shown(name), error))
    }

    /// Stores the first record of a subvolume.
    fn begin_record(&self, record: &Record) -> Result<()> {
        let stored = Records(&self.dir).begin(record);
        let name = &record.name;
        stored.map_err(|error| host("record the state of", &self.shown(name), error))?;
        self.order(name)
    }

    /// Makes everything durable, unless the file system keeps the order of its metadata anyway.
    fn order(&self, name: &[u8]) -> Result<()> {
        if Records(&self.dir).is_ordered() {
            return Ok(());
        }
        self.sync(name)
    }

    /// Makes the part durable, and then records its state.
    fn record_state(&mut self, state: State) -> Result<()> {
        let Some(mut current) = self.current.take() else {
            return Ok(());
        };
        current.record.state = state;
        current.record.mount = Records(&self.dir).mount();
        current.record.keeps_owners = current.tree.keeps_owners();
        let modes = current.tree.changed_modes();
        let stored = self.store(&current.record, modes.as_deref());
        if stored.is_ok() {
            current.tree.modes_stored();
        }
        self.current = Some(current);
        stored
    }

    /// The file for the positions of the last change of names. `None`: the file system does not
    /// store its times.
    fn names_mark(&self, record: &Record, mark: &Mark) -> Result<Option<NamesMark>> {
        let failed = |error| host("record the state of", &self.shown(&record.name), error);
        let made = Records(&self.dir).make_names_mark(record.uuid);
        let names = made.map_err(failed)?;
        let works = || -> rustix::io::Result<bool> {
            names.set(1, 999_999_999)?;
            let kept = names.get(0)? == Some((1, 999_999_999));
            names.set(mark.commands, 0)?;
            Ok(kept)
        };
        if works().unwrap_or(false) {
            return Ok(Some(names));
        }
        // Without the file, a receive that is killed is known to have no position.
        let removed = Records(&self.dir).remove_names_mark(record.uuid);
        removed.map_err(failed)?;
        Ok(None)
    }

    fn record(&self, uuid: [u8; 16]) -> Result<Option<Record>> {
        let found = Records(&self.dir).find(uuid);
        found.map_err(|error| host("read the records of", &self.path, error))
    }

    fn open(&self, name: &[u8]) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&self.dir, OsStr::from_bytes(name), flags, Mode::empty())
    }

    fn has(&self, name: &[u8]) -> bool {
        let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::statat(&self.dir, OsStr::from_bytes(name), flags).is_ok()
    }

    /// The complete directory of a subvolume.
    fn complete(&self, uuid: [u8; 16]) -> Result<Option<(Record, OwnedFd)>> {
        let record = self.record(uuid)?;
        let Some(record) = record.filter(|record| record.state == State::Complete) else {
            return Ok(None);
        };
        match self.open(&record.name) {
            Ok(dir) => Ok(Some((record, dir))),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(error) => Err(host("open", &self.shown(&record.name), error)),
        }
    }

    /// Gives the directory its mode and its name.
    fn complete_part(&mut self, current: &mut Current) -> Result<()> {
        let Current { record, tree, .. } = current;
        let shown = self.shown(&record.name);
        let failed = |error: Errno| host("complete", &shown, error);
        tree.close().map_err(failed)?;
        if let Err(error) = tree.open_to_others(record.mode) {
            let kind = LeftOutKind::Mode;
            self.omissions.add(kind, || shown.clone(), Some(error));
        }
        // The contents become durable first, because only a complete directory may have the name.
        let complete = Record {
            state: State::Complete,
            mount: String::new(),
            ..record.clone()
        };
        self.store(&complete, None)?;
        self.order(&record.name)?;
        self.name_complete(&record.name, (record.uuid, record.transid))
    }

    /// Gives a complete directory its name.
    fn name_complete(&self, name: &[u8], (uuid, transid): ([u8; 16], u64)) -> Result<()> {
        let part = part_of(name);
        if self.subvolumes {
            let marked = mounted::set_received(&self.below(&part), uuid, transid);
            marked.map_err(|error| host("complete", &self.shown(name), error))?;
        }
        let (from, to) = (OsStr::from_bytes(&part), OsStr::from_bytes(name));
        let flags = RenameFlags::NOREPLACE;
        let renamed = match rustix::fs::renameat_with(&self.dir, from, &self.dir, to, flags) {
            // The file system does not support the flag.
            Err(Errno::INVAL) if !self.has(name) => {
                rustix::fs::renameat(&self.dir, from, &self.dir, to)
            }
            renamed => renamed,
        };
        let failed = |error: io::Error| host("complete", &self.shown(name), error);
        renamed.map_err(|error| failed(error.into()))?;
        let removed = Records(&self.dir).remove_marks(uuid);
        removed.map_err(failed)?;
        self.sync(name)
    }

    /// The last change of names after a checkpoint of a receive that was killed; `None`: there was
    /// none.
    fn last_names(&self, record: &Record, checkpoint: &Mark) -> Result<Option<Names>> {
        let records = Records(&self.dir);
        let shown = self.shown(&part_of(&record.name));
        let same = !record.mount.is_empty() && record.mount == records.mount();
        let mark = records.find_names_mark(record.uuid);
        let mark = mark.map_err(|error| host("open", &shown, error))?;
        let (true, Some(mark)) = (same || records.is_ordered(), mark) else {
            return Err(ReceiveError::NoPosition(shown));
        };
        let found = mark.get(checkpoint.commands);
        let found = found.map_err(|error| host("open", &shown, error))?;
        Ok(found.map(|(commands, nanoseconds)| Names {
            commands,
            digest: NamesDigest::Nanoseconds(nanoseconds),
            doubtful: true,
        }))
    }

    fn remove_part(&self, part: &[u8]) -> io::Result<()> {
        if self.subvolumes && mounted::delete_subvolume(&self.place, part).is_ok() {
            return Ok(());
        }
        std::fs::remove_dir_all(self.below(part))
    }

    fn clone_range(&mut self, command: &Command<'_>) -> Result<u64> {
        let uuid = command.uuid(attr::CLONE_UUID)?;
        let own = self.current.as_ref().map(|current| current.record.uuid);
        if own != Some(uuid) && !self.sources.contains_key(&uuid) {
            let (_, dir) = self
                .complete(uuid)?
                .ok_or(ReceiveError::NoCloneSource(uuid))?;
            self.sources.insert(uuid, Confined::new(dir));
        }
        let Some(current) = &mut self.current else {
            return Ok(0);
        };
        let source = self.sources.get_mut(&uuid).filter(|_| own != Some(uuid));
        current.tree.clone_range(command, source)
    }
}

/// The name of the directory of a subvolume that is received in part.
pub(super) fn part_of(name: &[u8]) -> Vec<u8> {
    [name, PART].concat()
}

/// An error of this machine.
pub(super) fn host(action: &str, path: &Path, error: impl Into<io::Error>) -> ReceiveError {
    ReceiveError::Host {
        action: action.to_owned(),
        path: path.to_owned(),
        source: error.into(),
    }
}

impl Sink for DirectorySink {
    fn begin(&mut self, new: &NewSubvolume<'_>, position: &Position) -> Result<()> {
        let part = part_of(new.name);
        if self.has(new.name) {
            return Err(host("create", &self.shown(new.name), Errno::EXIST));
        }
        if self.has(&part) {
            return Err(ReceiveError::Part(self.shown(&part)));
        }
        if new.parent.is_some_and(|(uuid, _)| uuid == new.uuid) {
            return Err(ReceiveError::SameIdentity(new.uuid));
        }
        let mut record = Record {
            uuid: new.uuid,
            transid: new.transid,
            state: State::Starting,
            mode: 0o755,
            keeps_owners: true,
            mount: String::new(),
            name: new.name.to_vec(),
        };
        let failed = |error| host("create", &self.shown(&part), error);
        if let Some((uuid, _)) = new.parent {
            let (parent, dir) = self.parent(uuid)?.ok_or(ReceiveError::NoParent(uuid))?;
            let shown = self.shown(&parent);
            let stat = rustix::fs::fstat(&dir).map_err(|error| host("open", &shown, error))?;
            record.mode = stat.st_mode & 0o7777;
            self.begin_record(&record)?;
            if let Err(error) = self.copy_parent((&parent, &dir), &part) {
                // The first error is the one to return.
                let _ = self.remove_part(&part);
                return Err(error);
            }
        } else {
            let made = if self.subvolumes {
                mounted::create_subvolume(&self.place, &part)
            } else {
                let name = OsStr::from_bytes(&part);
                let made = rustix::fs::mkdirat(&self.dir, name, Mode::from_raw_mode(0o700));
                made.map_err(io::Error::from)
            };
            made.map_err(|error| host("create", &self.shown(&part), error))?;
        }
        let top = self.open(&part).map_err(failed)?;
        set_mode(&top, 0o700).map_err(failed)?;
        let mut confined = Confined::new(top);
        if new.parent.is_some() {
            confined.open_all().map_err(failed)?;
        }
        let mut tree = Tree::new(confined);
        if new.parent.is_none() {
            tree.remove_inherited(b"");
        }
        let mark = position.mark();
        let names = self.names_mark(&record, &mark)?;
        record.mount = Records(&self.dir).mount();
        record.state = State::Running {
            checkpoint: mark.clone(),
            names: mark,
        };
        let begun = new.parent.is_none().then(|| self.begin_record(&record));
        self.current = Some(Current {
            record,
            tree,
            names,
        });
        // The copy of a parent becomes durable first.
        begun.unwrap_or_else(|| self.checkpoint(position))
    }

    fn resume(&mut self, new: &NewSubvolume<'_>) -> Result<Resumed> {
        let part = part_of(new.name);
        let record = self.record(new.uuid)?;
        let same = |record: &Record| record.name == new.name && record.transid == new.transid;
        let Some(record) = record.filter(same) else {
            // A receive was killed between the creation of the directory and its record. Only an
            // empty directory is removed.
            let flags = rustix::fs::AtFlags::REMOVEDIR;
            let _ = rustix::fs::unlinkat(&self.dir, OsStr::from_bytes(&part), flags);
            return if self.has(&part) || self.has(new.name) {
                Err(ReceiveError::OtherPart(self.shown(new.name)))
            } else {
                Ok(Resumed::No)
            };
        };
        let found = match &record.state {
            State::Complete if self.has(new.name) => return Ok(Resumed::Complete),
            // Only the name is missing.
            State::Complete if self.has(&part) => {
                self.name_complete(new.name, (new.uuid, new.transid))?;
                return Ok(Resumed::Complete);
            }
            State::Starting if self.has(&part) => {
                let shown = self.shown(&part);
                let removed = self.remove_part(&part);
                removed.map_err(|error| host("remove", &shown, error))?;
                return Ok(Resumed::No);
            }
            State::Interrupted { mark, doubtful } if self.has(&part) => {
                (mark.clone(), None, *doubtful)
            }
            State::Running { checkpoint, .. } if self.has(&part) => {
                let names = self.last_names(&record, checkpoint)?;
                (checkpoint.clone(), names, true)
            }
            _ if self.has(&part) => return Err(ReceiveError::NoPosition(self.shown(&part))),
            _ => return Ok(Resumed::No),
        };
        let (checkpoint, names, doubtful) = found;
        let shown = self.shown(&part);
        let failed = |error: io::Error| host("open", &shown, error);
        let top = self.open(&part).map_err(|error| failed(error.into()))?;
        let mut confined = Confined::new(top);
        let modes = Records(&self.dir).modes(new.uuid).map_err(failed)?;
        let added = confined.add_modes(&modes);
        added.map_err(|error| failed(error.into()))?;
        let mut tree = Tree::new(confined);
        if !record.keeps_owners {
            tree.owner_was_refused();
        }
        self.current = Some(Current {
            record,
            tree,
            names: None,
        });
        let names = names.unwrap_or_else(|| Names {
            commands: checkpoint.commands,
            digest: NamesDigest::Whole(checkpoint.digest.clone()),
            doubtful,
        });
        Ok(Resumed::At { checkpoint, names })
    }

    fn proceed(&mut self) -> Result<()> {
        let Some(mut current) = self.current.take() else {
            return Ok(());
        };
        match current.record.state.clone() {
            // Its names have to be recorded from now on.
            State::Interrupted { mark, .. } => {
                current.names = self.names_mark(&current.record, &mark)?;
                let names = mark.clone();
                let checkpoint = mark;
                self.current = Some(current);
                self.record_state(State::Running { checkpoint, names })?;
                self.order(b"")
            }
            _ => {
                let found = Records(&self.dir).find_names_mark(current.record.uuid);
                current.names = found.ok().flatten();
                self.current = Some(current);
                Ok(())
            }
        }
    }

    fn apply(&mut self, command: &Command<'_>, _: Option<&SharedBytes>) -> Result<u64> {
        if command.number == cmd::CLONE {
            return self.clone_range(command);
        }
        let Some(Current { record, tree, .. }) = &mut self.current else {
            return Ok(0);
        };
        // The top is closed to others until it is complete.
        if command.number == cmd::CHMOD && command.path(attr::PATH)?.is_empty() {
            record.mode = tree.permitted(command, &mut self.omissions, &record.name)?;
            return Ok(0);
        }
        tree.apply(command, &mut self.omissions, &record.name)
    }

    fn exists(&mut self, path: &[u8]) -> Result<bool> {
        let tree = self.current.as_mut().map(|current| &mut current.tree);
        tree.map_or(Ok(false), |tree| tree.exists(path))
    }

    fn identify(&mut self, path: &[u8]) -> Result<InodeId> {
        let tree = self.current.as_mut().map(|current| &mut current.tree);
        tree.map_or(Ok((0, 0)), |tree| tree.identify(path))
    }

    fn remove(&mut self, path: &[u8]) -> Result<()> {
        let tree = self.current.as_mut().map(|current| &mut current.tree);
        tree.map_or(Ok(()), |tree| tree.remove(path))
    }

    fn names_changed(&mut self, position: &Position) -> Result<()> {
        let Some(Current { record, names, .. }) = &self.current else {
            return Ok(());
        };
        let Some(names) = names else {
            return Ok(());
        };
        let set = names.set(position.commands, nanoseconds(position.short_digest()));
        set.map_err(|error| host("record the state of", &self.shown(&record.name), error))
    }

    fn checkpoint(&mut self, position: &Position) -> Result<()> {
        let mark = position.mark();
        let names = mark.clone();
        let checkpoint = mark;
        self.record_state(State::Running { checkpoint, names })
    }

    fn finish(&mut self, _position: &Position) -> Result<()> {
        self.sources.clear();
        let Some(mut current) = self.current.take() else {
            return Ok(());
        };
        let completed = self.complete_part(&mut current);
        if completed.is_err() {
            self.current = Some(current);
        }
        completed
    }

    fn interrupt(&mut self, position: &Position, doubtful: bool) -> Result<()> {
        self.sources.clear();
        let mark = position.mark();
        self.record_state(State::Interrupted { mark, doubtful })?;
        match self.current.take() {
            Some(current) => self.sync(&current.record.name),
            None => Ok(()),
        }
    }

    fn left_out(&mut self) -> Vec<LeftOut> {
        std::mem::take(&mut self.omissions).into_report()
    }
}
