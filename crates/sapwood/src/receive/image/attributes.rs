//! Setting the attributes of received files.
//!
//! Consecutive commands mostly set owner, permission bits and times of one file. They are one change
//! of the image.

use sapwood_btrfs_format::stream::{Command, attribute as attr, command as cmd};

use super::super::error::{Result, at};
use super::super::timestamp;
use super::{ImageSink, part};
use crate::send::RECEIVED_STATE;
use crate::tree::HeldInode;
use crate::vfs::{self, SetAttr, SetTime, SetXattrMode};

/// Attributes of a file that are not set yet.
pub(super) struct Unset<'a> {
    path: Vec<u8>,
    file: HeldInode<'a>,
    changes: SetAttr,
}

impl<'a> ImageSink<'a> {
    /// The attributes that a command sets, except the length.
    fn changes(command: &Command<'_>) -> Result<SetAttr> {
        let mut changes = SetAttr::default();
        match command.number {
            cmd::CHMOD => changes.perm = Some(command.u32(attr::MODE)? & 0o7777),
            cmd::CHOWN => {
                changes.uid = Some(command.u32(attr::UID)?);
                changes.gid = Some(command.u32(attr::GID)?);
            }
            _ => {
                changes.atime = Some(SetTime::To(timestamp(command, attr::ATIME)?));
                changes.mtime = Some(SetTime::To(timestamp(command, attr::MTIME)?));
                changes.ctime = Some(timestamp(command, attr::CTIME)?);
                if command.find(attr::OTIME).is_some() {
                    changes.btime = Some(timestamp(command, attr::OTIME)?);
                }
            }
        }
        Ok(changes)
    }

    /// Remembers the attributes that a command sets.
    pub(super) fn attributes(&mut self, command: &Command<'_>) -> Result<()> {
        let path = command.path(attr::PATH)?;
        let new = Self::changes(command)?;
        // The time of a change that follows is its own.
        let joins = |unset: &Unset<'_>| unset.path == path && unset.changes.ctime.is_none();
        if !self.unset.as_ref().is_some_and(joins) {
            self.set_attributes()?;
        }
        if let Some(unset) = &mut self.unset {
            let old = &mut unset.changes;
            old.perm = new.perm.or(old.perm);
            old.uid = new.uid.or(old.uid);
            old.gid = new.gid.or(old.gid);
            (old.atime, old.mtime) = (new.atime, new.mtime);
            (old.ctime, old.btime) = (new.ctime, new.btime);
        } else {
            let found = self.find(path).and_then(|ino| self.hold(ino));
            self.unset = Some(Unset {
                path: path.to_vec(),
                file: found.map_err(at("set attributes of", path))?,
                changes: new,
            });
        }
        if self.opened.is_none() {
            // The kernel of a mount is told about each command.
            self.set_attributes()?;
        }
        Ok(())
    }

    /// Sets the attributes that are not set yet. After an error they are still not set.
    pub(super) fn set_attributes(&mut self) -> Result<()> {
        if let Some(unset) = &self.unset {
            let set = self.fs.setattr(unset.file.ino(), &unset.changes);
            set.map_err(at("set attributes of", &unset.path))?;
        }
        self.unset = None;
        Ok(())
    }

    pub(super) fn truncate(&mut self, command: &Command<'_>) -> Result<()> {
        let path = command.path(attr::PATH)?;
        let changes = SetAttr {
            size: Some(command.u64(attr::SIZE)?),
            ..SetAttr::default()
        };
        let done = self
            .find(path)
            .and_then(|ino| self.fs.setattr(ino, &changes).map(drop));
        done.map_err(at("truncate", path))
    }

    pub(super) fn xattr(&mut self, command: &Command<'_>) -> Result<()> {
        let path = command.path(attr::PATH)?;
        let name = command.get(attr::XATTR_NAME)?;
        if path.is_empty() && [part::RECORD, RECEIVED_STATE].contains(&name) {
            // The record of the sender's own receive.
            return Ok(());
        }
        if command.number == cmd::SET_XATTR {
            let value = command.get(attr::XATTR_DATA)?;
            let mode = SetXattrMode::Any;
            let done = self
                .find(path)
                .and_then(|ino| self.fs.setxattr(ino, name, value, mode));
            return done.map_err(at("set an attribute of", path));
        }
        let done = self
            .find(path)
            .and_then(|ino| self.fs.removexattr(ino, name));
        match done {
            // A default ACL or a capability may be gone already.
            Err(vfs::Error::NoAttribute) => Ok(()),
            done => done.map_err(at("remove an attribute of", path)),
        }
    }
}
