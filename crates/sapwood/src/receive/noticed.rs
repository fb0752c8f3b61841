//! A [`Sink`] that reports which names and inodes it changes, for a mount whose kernel caches them.

use std::collections::HashSet;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use sapwood_btrfs_format::stream::{Command, attribute as attr, command as cmd};

use super::epoch::InodeId;
use super::error::{ReceiveError, Result};
use super::image::{ImageSink, temporary};
use super::left_out::LeftOut;
use super::record::Position;
use super::{NewSubvolume, Resumed, Sink};
use crate::tree::split_last;
use crate::vfs::{Ino, SharedBytes};

/// A change that the kernel's caches do not see.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Touched<'a> {
    /// A name in a directory was made or removed.
    Name(Ino, &'a [u8]),
    /// The attributes or the content of an inode have changed.
    Inode(Ino),
}

/// Longest wait for another receive of the same subvolume. Mostly its client was killed, and it is
/// about to end.
const WAIT: Duration = Duration::from_secs(60);

/// The subvolumes that the receives of a mount work on, by UUID: one receive for each.
#[derive(Debug, Default)]
pub(crate) struct Receiving {
    claimed: Mutex<HashSet<[u8; 16]>>,
    released: Condvar,
}

/// A subvolume on which no other receive works.
struct Claim<'a> {
    receiving: &'a Receiving,
    uuid: [u8; 16],
}

impl Receiving {
    /// Waits until no other receive works on a subvolume.
    fn claim(&self, uuid: [u8; 16]) -> Result<Claim<'_>> {
        let mut claimed = self.claimed.lock();
        let taken = |claimed: &mut HashSet<[u8; 16]>| claimed.contains(&uuid);
        let waited = self.released.wait_while_for(&mut claimed, taken, WAIT);
        if waited.timed_out() && claimed.contains(&uuid) {
            return Err(ReceiveError::Busy(uuid));
        }
        claimed.insert(uuid);
        Ok(Claim {
            receiving: self,
            uuid,
        })
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.receiving.claimed.lock().remove(&self.uuid);
        self.receiving.released.notify_all();
    }
}

/// An image that receives subvolumes while it is mounted.
pub(super) struct NoticedSink<'a> {
    inner: ImageSink<'a>,
    receiving: &'a Receiving,
    claim: Option<Claim<'a>>,
    /// The directory that receives the subvolumes.
    dir: Ino,
    name: Vec<u8>,
    noticed: &'a dyn Fn(Touched<'_>),
    /// Changed, and not yet reported, because the next command mostly changes the same inode.
    last: Option<Ino>,
}

impl<'a> NoticedSink<'a> {
    pub(super) fn new(
        inner: ImageSink<'a>,
        dir: Ino,
        receiving: &'a Receiving,
        noticed: &'a dyn Fn(Touched<'_>),
    ) -> Self {
        Self {
            inner,
            receiving,
            claim: None,
            dir,
            name: Vec::new(),
            noticed,
            last: None,
        }
    }

    /// Begins to work on a subvolume.
    fn enter(&mut self, new: &NewSubvolume<'_>) -> Result<()> {
        self.name = new.name.to_vec();
        if self
            .claim
            .as_ref()
            .is_none_or(|claim| claim.uuid != new.uuid)
        {
            self.claim = None;
            self.claim = Some(self.receiving.claim(new.uuid)?);
        }
        Ok(())
    }

    /// Reports the inode whose change was not reported yet.
    fn report(&mut self) {
        if let Some(ino) = self.last.take() {
            (self.noticed)(Touched::Inode(ino));
        }
    }

    fn changed(&mut self, ino: Ino) {
        if self.last != Some(ino) {
            self.report();
            self.last = Some(ino);
        }
    }

    /// Reports the name of a path, if its directory exists.
    fn name_changed(&mut self, path: &[u8]) {
        let (dir, name) = split_last(path);
        if let Ok((_, dir)) = self.inner.identify(dir) {
            (self.noticed)(Touched::Name(Ino(dir), name));
        }
    }

    /// The subvolume has another name, or other attributes.
    fn top_changed(&mut self) {
        self.report();
        let noticed = self.noticed;
        noticed(Touched::Name(self.dir, &self.name));
        if let Some(claim) = &self.claim {
            noticed(Touched::Name(self.dir, &temporary(claim.uuid)));
        }
    }
}

impl Drop for NoticedSink<'_> {
    fn drop(&mut self) {
        self.report();
    }
}

impl Sink for NoticedSink<'_> {
    fn begin(&mut self, new: &NewSubvolume<'_>, position: &Position) -> Result<()> {
        self.enter(new)?;
        let begun = self.inner.begin(new, position);
        self.top_changed();
        begun
    }

    fn resume(&mut self, new: &NewSubvolume<'_>) -> Result<Resumed> {
        self.enter(new)?;
        self.inner.resume(new)
    }

    fn proceed(&mut self) -> Result<()> {
        self.inner.proceed()
    }

    fn apply(&mut self, command: &Command<'_>, owner: Option<&SharedBytes>) -> Result<u64> {
        let path = command.path(attr::PATH).unwrap_or_default();
        // Another name of an inode that loses one shows its number of links.
        let lost = match command.number {
            cmd::UNLINK => self.inner.identify(path).ok(),
            cmd::RENAME => {
                let to = command.path(attr::PATH_TO).unwrap_or_default();
                self.inner.identify(to).ok()
            }
            _ => None,
        };
        if let Some((_, ino)) = lost {
            self.changed(Ino(ino));
        }
        let done = self.inner.apply(command, owner);
        match command.number {
            cmd::MKFILE
            | cmd::MKDIR
            | cmd::MKNOD
            | cmd::MKFIFO
            | cmd::MKSOCK
            | cmd::SYMLINK
            | cmd::UNLINK
            | cmd::RMDIR => self.name_changed(path),
            cmd::RENAME | cmd::LINK => {
                self.report();
                self.name_changed(path);
                let other = match command.number {
                    cmd::RENAME => command.path(attr::PATH_TO),
                    _ => command.path(attr::PATH_LINK),
                };
                // The number of links of the inode has changed, or it is elsewhere.
                let other = other.unwrap_or_default();
                self.name_changed(other);
                if let Ok((_, ino)) = self.inner.identify(other) {
                    self.changed(Ino(ino));
                }
            }
            _ => {
                if let Ok((_, ino)) = self.inner.identify(path) {
                    self.changed(Ino(ino));
                }
            }
        }
        done
    }

    fn exists(&mut self, path: &[u8]) -> Result<bool> {
        self.inner.exists(path)
    }

    fn identify(&mut self, path: &[u8]) -> Result<InodeId> {
        self.inner.identify(path)
    }

    fn remove(&mut self, path: &[u8]) -> Result<()> {
        let removed = self.inner.remove(path);
        self.name_changed(path);
        removed
    }

    fn names_changed(&mut self, position: &Position) -> Result<()> {
        self.inner.names_changed(position)
    }

    fn checkpoint(&mut self, position: &Position) -> Result<()> {
        self.report();
        self.inner.checkpoint(position)
    }

    fn interrupt(&mut self, position: &Position, doubtful: bool) -> Result<()> {
        self.report();
        self.inner.interrupt(position, doubtful)
    }

    fn finish(&mut self, position: &Position) -> Result<()> {
        let finished = self.inner.finish(position);
        self.top_changed();
        finished
    }

    fn left_out(&mut self) -> Vec<LeftOut> {
        self.inner.left_out()
    }
}
