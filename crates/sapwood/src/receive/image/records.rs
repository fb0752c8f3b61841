//! The records of complete subvolumes in a directory of an image without snapshots.
//!
//! They are the files that a receive into the mounted directory makes and reads, too: see
//! `directory/records`.

use uuid::Uuid;

use super::super::NewSubvolume;
use super::super::error::{ReceiveError, Result, at};
use super::super::record::{DIRECTORY, RECORD_MAX, Record, State};
use super::{ImageSink, part};
use crate::copy::Place;
use crate::tree::{self, HeldInode};
use crate::vfs::{self, Credentials, FileKind, NewInode, RenameMode, WriteMode};

impl<'a> ImageSink<'a> {
    /// The directory of records, if there is one. Its files direct what is copied, so it has to be
    /// of root or of the user who can replace the received directories, too.
    fn records(&self) -> vfs::Result<Option<HeldInode<'a>>> {
        let records = match self.dir.child(DIRECTORY.as_bytes()) {
            Err(vfs::Error::NotFound) => return Ok(None),
            records => records?,
        };
        if !records.is_dir() {
            return Err(vfs::Error::NotDirectory);
        }
        let attr = records.attr();
        let trusted = [0, self.dir.attr().uid].contains(&attr.uid);
        if !trusted || attr.perm & 0o022 != 0 {
            return Err(vfs::Error::AccessDenied);
        }
        Ok(Some(records))
    }

    /// The record of a complete subvolume, and its directory.
    pub(super) fn complete_one(
        &self,
        uuid: [u8; 16],
    ) -> vfs::Result<Option<(Record, HeldInode<'a>)>> {
        let Some(records) = self.records()? else {
            return Ok(None);
        };
        let name = Uuid::from_bytes(uuid).to_string();
        let file = match records.child(name.as_bytes()) {
            Err(vfs::Error::NotFound) => return Ok(None),
            file => file?,
        };
        if file.attr().kind != FileKind::Regular {
            return Ok(None);
        }
        let mut bytes = vec![0; RECORD_MAX];
        let count = self.fs.read(file.ino(), 0, &mut bytes)?;
        bytes.truncate(count);
        let record = Record::parse(&bytes);
        let complete = |record: &Record| record.uuid == uuid && record.state == State::Complete;
        let Some(record) = record.filter(complete) else {
            return Ok(None);
        };
        let dir = match self.dir.child(&record.name) {
            Err(vfs::Error::NotFound) => return Ok(None),
            dir => dir?,
        };
        // A later receive in part may have the name.
        let partial = match self.fs.getxattr(dir.ino(), part::RECORD) {
            Err(vfs::Error::NoAttribute) => false,
            found => found.map(|_| true)?,
        };
        Ok((dir.is_dir() && !partial).then_some((record, dir)))
    }

    /// Records a subvolume as complete. Everything else of it is durable before the record.
    pub(super) fn record_complete(&self, record: &Record) -> vfs::Result<()> {
        let (fs, root) = (self.fs, Credentials::ROOT);
        let dir = DIRECTORY.as_bytes();
        let records = match self.records()? {
            Some(records) => records,
            None => {
                let made = fs.create(&root, self.dir.ino(), dir, NewInode::Directory, 0o755)?;
                HeldInode::new(fs, made)
            }
        };
        let record = Record {
            state: State::Complete,
            ..record.clone()
        };
        let name = Uuid::from_bytes(record.uuid).to_string();
        let new = format!("{name}.new");
        match fs.unlink(records.ino(), new.as_bytes()) {
            Ok(()) | Err(vfs::Error::NotFound) => {}
            Err(error) => return Err(error),
        }
        let made = fs.create(
            &root,
            records.ino(),
            new.as_bytes(),
            NewInode::Regular,
            0o644,
        )?;
        let made = HeldInode::new(fs, made);
        fs.write(made.ino(), 0, &record.to_bytes(), WriteMode::default())?;
        fs.sync()?;
        let (from, to) = (new.as_bytes(), name.as_bytes());
        fs.rename(records.ino(), from, records.ino(), to, RenameMode::Replace)
    }

    /// Copies the directory of the parent to `name`, in place of a snapshot.
    pub(super) fn copy_parent(
        &self,
        new: &NewSubvolume<'_>,
        parent: [u8; 16],
        name: &[u8],
    ) -> Result<HeldInode<'a>> {
        use std::os::unix::ffi::OsStrExt;

        if parent == new.uuid {
            return Err(ReceiveError::SameIdentity(parent));
        }
        let found = self.complete_one(parent);
        let found = found.map_err(at("read the records of", DIRECTORY.as_bytes()))?;
        let (record, _) = found.ok_or(ReceiveError::NoParent(parent))?;
        // A mount that the daemon receives into has snapshots.
        let (owner, dir) = self.opened.as_ref().ok_or(ReceiveError::NoParent(parent))?;
        let path = |name: &[u8]| dir.join(std::ffi::OsStr::from_bytes(name));
        let (from, to) = (
            Place::image(owner, path(&record.name)),
            Place::image(owner, path(name)),
        );
        let copied = super::super::parent::copy(from, &to, &path(&record.name), &self.stop);
        // Only a durable copy gets a record of a position in the stream.
        let copied = copied.and_then(|()| {
            let durable = self.fs.sync().and_then(|()| self.dir.child(name));
            durable.map_err(at("create", new.name))
        });
        if copied.is_err()
            && let Err(error) = self.remove_tree(name)
        {
            log::warn!("the copy of the parent stays in part: {error}");
        }
        copied
    }

    /// Removes a directory of the place with everything in it.
    pub(super) fn remove_tree(&self, name: &[u8]) -> vfs::Result<()> {
        let top = match self.dir.child(name) {
            Err(vfs::Error::NotFound) => return Ok(()),
            top => top?,
        };
        let removed = tree::remove_all(&self.dir, top, name, &mut |_| Ok(()));
        removed.map_err(|(_, error)| error)
    }
}
