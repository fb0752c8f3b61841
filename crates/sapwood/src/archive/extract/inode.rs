//! An inode of an entry: making it, its content, its attributes.

use super::super::entry::{Attributes, Entries, EntryKind};
use super::super::error::Result;
use super::super::gate::{Final, new_inode};
use super::{Extraction, failed};
use crate::acls;
use crate::tree::HeldInode;
use crate::vfs::{self, Content, Credentials, Error, FileKind, NewInode, SetAttr, WriteMode};

impl<'a> Extraction<'a> {
    /// Makes an inode that is neither a directory nor a hard link, with its content. True if it
    /// also has its times.
    pub(super) fn make(
        &mut self,
        kind: &EntryKind,
        name: &[u8],
        attributes: &Attributes,
        named: &[u8],
        size: u64,
        content: &mut dyn Entries,
    ) -> Result<(HeldInode<'a>, bool)> {
        let what = match kind {
            EntryKind::Symlink(target) => NewInode::Symlink(target),
            EntryKind::Special(kind, rdev) => new_inode(*kind, *rdev, b""),
            _ => NewInode::Regular,
        };
        let (who, perm) = self.credentials(attributes);
        let perm = match kind {
            EntryKind::Symlink(_) => 0o777,
            _ => perm & 0o1777,
        };
        // Read first: no small file is made if the archive ends within its content.
        let first = match what {
            NewInode::Regular if size > 0 => Some(content.read(&mut self.piece)?),
            _ => None,
        };
        if let Some(piece) = first.filter(|(at, count)| *at == 0 && *count as u64 == size)
            && let Some(node) = self.filled(&who, name, perm, attributes, piece.1, named)?
        {
            return Ok((node, true));
        }
        let made = self.create(&who, name, what, perm);
        let node = made.map_err(failed(named))?;
        if size > 0 && what == NewInode::Regular {
            let written = self.content(&node, size, first, named, content);
            if let Err(error) = written {
                // The error that is reported is the first one.
                let _ = self.gate.remove(self.top(), &node, name);
                return Err(error);
            }
        }
        Ok((node, false))
    }

    /// Makes a file whose content is the first bytes of the piece that was read, if that can be
    /// done at once.
    fn filled(
        &mut self,
        who: &Credentials,
        name: &[u8],
        perm: u32,
        attributes: &Attributes,
        count: usize,
        named: &[u8],
    ) -> Result<Option<HeldInode<'a>>> {
        let data = self.piece.get(..count).unwrap_or_default();
        let small = count as u64 <= self.into.fs.most_filled();
        if !small || data.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        // The piece is this function's for as long as the file system may change.
        let piece = std::mem::take(&mut self.piece);
        let content = Content {
            data: piece.get(..count).unwrap_or_default(),
            atime: attributes.atime.unwrap_or(attributes.mtime),
            mtime: attributes.mtime,
        };
        let made = self.create_filled(who, name, perm, &content);
        self.piece = piece;
        made.map_err(failed(named))
    }

    /// Writes the content of a file. Zeros become holes. `first`: the piece that was read already.
    pub(super) fn content(
        &mut self,
        node: &HeldInode<'a>,
        size: u64,
        first: Option<(u64, usize)>,
        named: &[u8],
        content: &mut dyn Entries,
    ) -> Result<()> {
        let (fs, ino) = (self.into.fs, node.ino());
        let mut end = 0;
        let mut next = first;
        loop {
            let (at, count) = match next.take() {
                Some(piece) => piece,
                None => content.read(&mut self.piece)?,
            };
            let data = self.piece.get(..count).unwrap_or_default();
            if data.is_empty() {
                break;
            }
            if data.iter().any(|byte| *byte != 0) {
                let written = fs.write(ino, at, data, WriteMode::default());
                end = written.map_err(failed(named))?;
            }
        }
        let size = content.cut().map_or(size, |cut| cut.min(size));
        if end < size {
            let changes = SetAttr {
                size: Some(size),
                ..SetAttr::default()
            };
            fs.setattr(ino, &changes).map_err(failed(named))?;
        }
        Ok(())
    }

    /// The owner and umask with which an inode is made, and the mode to ask for.
    pub(super) fn credentials(&self, attributes: &Attributes) -> (Credentials, u32) {
        let owner = Credentials {
            uid: attributes.uid,
            gid: attributes.gid,
            umask: 0,
            keep_setgid: true,
        };
        let Some(client) = self.into.client else {
            return (owner, attributes.perm);
        };
        let gives = client.creates_for_others();
        if self.is_exact(attributes) || (client.restores_owners() && !gives) {
            // Other users have no rights before the inode has its owner, its ACLs and its mode.
            let who = if gives {
                owner
            } else {
                client.process.credentials(0)
            };
            return (who, acls::private(attributes.perm));
        }
        if gives {
            (owner, attributes.perm)
        } else {
            let who = client.process.credentials(client.umask);
            (who, attributes.perm & 0o777)
        }
    }

    /// Whether an inode of these attributes has no other ACLs, also none that its directory gives.
    fn is_exact(&self, attributes: &Attributes) -> bool {
        self.into.building.is_some() || self.is_copy() || acls::has_any(&attributes.xattrs)
    }

    /// Gives a file that already has its times the rest of its attributes.
    pub(super) fn finish_filled(
        &self,
        node: &HeldInode<'a>,
        attributes: &Attributes,
        named: &[u8],
    ) -> vfs::Result<()> {
        let now = node.attr();
        let has = (now.uid, now.gid, now.perm);
        let wants = (attributes.uid, attributes.gid, attributes.perm);
        let more = self.into.client.is_some() || has != wants || !attributes.xattrs.is_empty();
        let exact = || {
            if self.is_exact(attributes) {
                self.gate.remove_other_acls(node, &attributes.xattrs)
            } else {
                Ok(false)
            }
        };
        if more || exact()? {
            self.finish(node, attributes, named, false)
        } else {
            Ok(())
        }
    }

    /// Gives an inode its attributes. An attribute that a client has no right to set is left out,
    /// which is an error unless the entries are a copy. `found`: the inode is a directory that
    /// existed before.
    pub(super) fn finish(
        &self,
        node: &HeldInode<'a>,
        attributes: &Attributes,
        named: &[u8],
        found: bool,
    ) -> vfs::Result<()> {
        let now = node.attr();
        let (uid, gid, perm) = match self.into.client {
            None => (attributes.uid, attributes.gid, Some(attributes.perm)),
            Some(client) => client.attributes(now, attributes, found),
        };
        let last = Final {
            owner: (
                (uid != now.uid).then_some(uid),
                (gid != now.gid).then_some(gid),
            ),
            perm: perm.filter(|_| now.kind != FileKind::Symlink),
            atime: attributes.atime.or(Some(attributes.mtime)),
            mtime: Some(attributes.mtime),
            xattrs: &attributes.xattrs,
        };
        if self.is_exact(attributes) {
            self.gate.remove_other_acls(node, &attributes.xattrs)?;
        }
        let mut lacking = Ok(());
        let finished = self
            .gate
            .finish(node.ino(), &last, &mut |name, error| match error {
                // An attribute of another kind of system means nothing here.
                Error::NotSupported => {
                    let (named, name) = (crate::shown::name(named), crate::shown::name(name));
                    log::warn!("{named}: the attribute {name} is left out");
                    Ok(())
                }
                // A client may lack the right to set it. A copy skips it silently.
                Error::NotPermitted if self.is_copy() => Ok(()),
                Error::NotPermitted => {
                    lacking = Err(error);
                    Ok(())
                }
                error => Err(error),
            });
        finished.and(lacking)
    }
}
