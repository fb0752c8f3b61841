//! [`step`]: the effect of one call on a tree; inodes are known by number.
//!
//! It has only the operations of [`Race`](crate::race::Race). A failed call is explained if one
//! cause of its error is there; a call without such a cause must have succeeded.

use std::collections::BTreeMap;
use std::sync::Arc;

use sapwood_testing::op::{Op, attribute};
use sapwood_testing::tree::{Owner, Tree, TreeInode, TreeName};
use sapwood_vfs::{Error, FileKind, Ino};

use crate::orders::Call;

/// The tree after a call, if the result of the call fits the tree before it.
#[must_use]
pub fn step(state: &Tree, call: &Call, opened: &BTreeMap<String, Ino>) -> Option<Tree> {
    let mut next = Next {
        tree: state.clone(),
        opened,
    };
    let causes = next.causes(call)?;
    match &call.result {
        Err(error) => causes.contains(error).then_some(next.tree),
        Ok(_) if !causes.is_empty() => None,
        Ok(new) => {
            next.change(call, *new)?;
            Some(next.tree)
        }
    }
}

struct Next<'a> {
    tree: Tree,
    opened: &'a BTreeMap<String, Ino>,
}

impl Next<'_> {
    fn place(&self, path: &str) -> Option<TreeName> {
        let (dir, name) = path.rsplit_once('/').unwrap_or((".", path));
        Some((*self.opened.get(dir)?, name.as_bytes().to_vec()))
    }

    fn find(&self, (dir, name): &TreeName) -> Option<Ino> {
        self.tree.find(*dir, name)
    }

    fn is_dir(&self, ino: Ino) -> bool {
        let node = self.tree.nodes.get(&ino);
        node.is_some_and(|node| node.kind == FileKind::Directory)
    }

    fn is_full(&self, ino: Ino) -> bool {
        let node = self.tree.nodes.get(&ino);
        node.is_some_and(|node| !node.entries.is_empty())
    }

    /// True if a directory is another one or somewhere below it.
    fn is_within(&self, dir: Ino, above: Ino) -> bool {
        let mut at = dir;
        for _ in 0..=self.tree.nodes.len() {
            if at == above {
                return true;
            }
            let mut nodes = self.tree.nodes.iter();
            let parent = nodes.find(|(_, node)| node.entries.values().any(|child| *child == at));
            let Some((parent, _)) = parent else {
                return false;
            };
            at = *parent;
        }
        false
    }

    /// Errors that a call may return; empty if it must succeed.
    fn causes(&self, call: &Call) -> Option<Vec<Error>> {
        let mut causes = Vec::new();
        let mut if_so = |is: bool, error: Error| causes.extend(is.then_some(error));
        let gone = |place: &TreeName| !self.tree.nodes.contains_key(&place.0);
        match &call.op {
            Op::Create { at, .. }
            | Op::Filled { at, .. }
            | Op::Mkdir { at, .. }
            | Op::Symlink { at, .. } => {
                let at = self.place(at)?;
                if_so(gone(&at), Error::NotFound);
                if_so(self.find(&at).is_some(), Error::Exists);
            }
            Op::Link { to, .. } => {
                let (to, Some(ino)) = (self.place(to)?, call.target) else {
                    return Some(vec![Error::Stale]);
                };
                if_so(gone(&to), Error::NotFound);
                if_so(!self.tree.nodes.contains_key(&ino), Error::NotFound);
                if_so(self.find(&to).is_some(), Error::Exists);
                if_so(self.is_dir(ino), Error::NotPermitted);
            }
            Op::Unlink { at } | Op::Rmdir { at } => {
                let dirs = matches!(call.op, Op::Rmdir { .. });
                match self.find(&self.place(at)?) {
                    None => if_so(true, Error::NotFound),
                    Some(ino) if dirs => {
                        if_so(!self.is_dir(ino), Error::NotDirectory);
                        if_so(self.is_full(ino), Error::NotEmpty);
                    }
                    Some(ino) => if_so(self.is_dir(ino), Error::IsDirectory),
                }
            }
            Op::Rename { from, to, .. } => {
                let (from, to) = (self.place(from)?, self.place(to)?);
                if_so(gone(&from) || gone(&to), Error::NotFound);
                let (Some(moved), old) = (self.find(&from), self.find(&to)) else {
                    causes.push(Error::NotFound);
                    return Some(causes);
                };
                if_so(
                    self.is_dir(moved) && self.is_within(to.0, moved),
                    Error::Invalid,
                );
                if let Some(old) = old.filter(|old| *old != moved) {
                    let (dir, over) = (self.is_dir(moved), self.is_dir(old));
                    if_so(dir && !over, Error::NotDirectory);
                    if_so(!dir && over, Error::IsDirectory);
                    if_so(over && self.is_full(old), Error::NotEmpty);
                }
            }
            Op::Exchange { a, b } => {
                let (a, b) = (self.place(a)?, self.place(b)?);
                let (Some(one), Some(other)) = (self.find(&a), self.find(&b)) else {
                    return Some(vec![Error::NotFound]);
                };
                let into = |ino, to: &TreeName| self.is_dir(ino) && self.is_within(to.0, ino);
                if_so(into(one, &b) || into(other, &a), Error::Invalid);
            }
            Op::RemoveXattr { name, .. } => {
                let key = attribute(name).into_bytes();
                let node = self.tree.node(call.target?)?;
                if_so(!node.xattrs.contains_key(&key), Error::NoAttribute);
            }
            _ if call.target.is_none() => if_so(true, Error::Stale),
            _ => {}
        }
        Some(causes)
    }

    fn change(&mut self, call: &Call, new: Option<Ino>) -> Option<()> {
        match &call.op {
            Op::Create { at, perm, .. } => self.create(at, new?, FileKind::Regular, *perm, b""),
            Op::Filled {
                at,
                len,
                fill,
                perm,
                ..
            } => {
                let content = fill.bytes(0, *len);
                self.create(at, new?, FileKind::Regular, *perm, &content)
            }
            Op::Mkdir { at, perm, .. } => self.create(at, new?, FileKind::Directory, *perm, b""),
            Op::Symlink { target, at, .. } => {
                let target = target.as_bytes();
                self.create(at, new?, FileKind::Symlink, 0o777, target)
            }
            Op::Link { to, .. } => self.enter(&self.place(to)?, call.target?),
            Op::Unlink { at } | Op::Rmdir { at } => self.leave(&self.place(at)?),
            Op::Rename { from, to, .. } => {
                let (from, to) = (self.place(from)?, self.place(to)?);
                let moved = self.find(&from)?;
                match self.find(&to) {
                    // Both are names of one inode: the rename does nothing.
                    Some(old) if old == moved => return Some(()),
                    Some(_) => self.leave(&to)?,
                    None => {}
                }
                self.unname(&from)?;
                self.name(&to, moved)
            }
            Op::Exchange { a, b } => {
                let (a, b) = (self.place(a)?, self.place(b)?);
                let (one, other) = (self.find(&a)?, self.find(&b)?);
                self.name(&a, other)?;
                self.name(&b, one)
            }
            _ => self.write(call),
        }
    }

    fn node(&mut self, ino: Ino) -> Option<&mut TreeInode> {
        match self.tree.nodes.get_mut(&ino) {
            Some(node) => Some(node),
            None => self.tree.nameless.get_mut(&ino),
        }
    }

    fn create(
        &mut self,
        at: &str,
        ino: Ino,
        kind: FileKind,
        perm: u32,
        content: &[u8],
    ) -> Option<()> {
        if self.tree.nodes.contains_key(&ino) {
            return None;
        }
        self.tree.nameless.remove(&ino);
        let owner = Owner {
            perm,
            ..Owner::default()
        };
        let mut node = TreeInode::new(ino.0, kind, owner);
        node.set_content(content.to_vec());
        self.tree.nodes.insert(ino, node);
        self.name(&self.place(at)?, ino)
    }

    /// Sets a name without a change of link counts.
    fn name(&mut self, (dir, name): &TreeName, ino: Ino) -> Option<()> {
        let dir = self.tree.nodes.get_mut(dir)?;
        Arc::make_mut(&mut dir.entries).insert(name.clone(), ino);
        Some(())
    }

    fn unname(&mut self, (dir, name): &TreeName) -> Option<Ino> {
        let dir = self.tree.nodes.get_mut(dir)?;
        Arc::make_mut(&mut dir.entries).remove(name)
    }

    /// Adds a name to an inode.
    fn enter(&mut self, place: &TreeName, ino: Ino) -> Option<()> {
        self.tree.nodes.get_mut(&ino)?.nlink += 1;
        self.name(place, ino)
    }

    /// Removes a name, and the inode with its last name.
    fn leave(&mut self, place: &TreeName) -> Option<()> {
        let ino = self.unname(place)?;
        let node = self.tree.nodes.get_mut(&ino)?;
        if node.kind == FileKind::Directory || node.nlink <= 1 {
            let mut node = self.tree.nodes.remove(&ino)?;
            node.nlink = 0;
            self.tree.nameless.insert(ino, node);
        } else {
            node.nlink -= 1;
        }
        Some(())
    }

    fn write(&mut self, call: &Call) -> Option<()> {
        let node = self.node(call.target?)?;
        let size = node.content.len() as u64;
        let mut put = |offset: u64, data: &[u8]| {
            let mut content = node.content.to_vec();
            let end = offset as usize + data.len();
            content.resize(content.len().max(end), 0);
            content[offset as usize..end].copy_from_slice(data);
            node.set_content(content);
        };
        match &call.op {
            Op::Write {
                offset, len, fill, ..
            } => put(*offset, &fill.bytes(*offset, *len)),
            Op::Append { len, fill, .. } => put(size, &fill.bytes(0, *len)),
            Op::Truncate { size, .. } => {
                let mut content = node.content.to_vec();
                content.resize(*size as usize, 0);
                node.set_content(content);
            }
            Op::Chmod { perm, .. } => node.owner.perm = *perm,
            Op::SetXattr {
                name, len, fill, ..
            } => {
                let name = attribute(name).into_bytes();
                Arc::make_mut(&mut node.xattrs).insert(name, fill.bytes(0, *len));
            }
            Op::RemoveXattr { name, .. } => {
                let name = attribute(name).into_bytes();
                Arc::make_mut(&mut node.xattrs).remove(&name);
            }
            _ => return None,
        }
        Some(())
    }
}
