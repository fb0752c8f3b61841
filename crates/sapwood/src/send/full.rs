//! A snapshot without a parent.

use std::collections::HashMap;
use std::io::Write;

use super::error::{Result, SendError};
use super::source::{Source, Tree};
use super::{Sender, contradiction};
use crate::tree::join;
use crate::vfs::{FileKind, LinkName, NamedInode, StoredInode};

/// A directory that the walk is in.
struct Level {
    number: u64,
    inode: StoredInode,
    /// Bytes of the path to it.
    path: usize,
    /// Names that were read and not sent yet.
    names: std::vec::IntoIter<NamedInode>,
}

/// The inode of a number that a name leads to.
pub(super) fn inode_of(tree: &impl Tree, number: u64) -> Result<StoredInode> {
    let found = tree.inode(number)?;
    found.ok_or(contradiction(
        number,
        "a name leads to it, and it does not exist",
    ))
}

impl<S: Source, W: Write> Sender<'_, '_, S, W> {
    /// Sends everything, depth first. Attributes of a directory follow its content, because its
    /// content changes its times.
    pub(super) fn full(&mut self) -> Result<()> {
        let top = self.new.top();
        let mut path = Vec::new();
        let mut firsts: HashMap<u64, (Vec<u8>, u32)> = HashMap::new();
        let mut open = vec![self.level(top, inode_of(&*self.new, top)?, 0)?];
        while let Some(level) = open.last_mut() {
            path.truncate(level.path);
            let Some(entry) = level.names.next() else {
                let (number, inode) = (level.number, level.inode);
                self.created(number, &inode, &path)?;
                open.pop();
                continue;
            };
            if self.options.stop.is_stopped() {
                return Err(SendError::Stopped);
            }
            let dir = level.number;
            let inode = inode_of(&*self.new, entry.number)?;
            path = join(&path, &entry.name);
            self.step();
            if inode.kind == FileKind::Directory {
                self.check_only_name(dir, &entry)?;
                self.out.create(entry.number, &inode, &path, b"")?;
                open.push(self.level(entry.number, inode, path.len())?);
                continue;
            }
            if let Some((first, left)) = firsts.get_mut(&entry.number) {
                self.out.link(&path, first)?;
                *left = left.saturating_sub(1);
                if *left == 0 {
                    firsts.remove(&entry.number);
                }
                continue;
            }
            if inode.nlink > 1 {
                firsts.insert(entry.number, (path.clone(), inode.nlink - 1));
            }
            let target = self.target(entry.number, &inode, &path)?;
            self.out.create(entry.number, &inode, &path, &target)?;
            self.created(entry.number, &inode, &path)?;
        }
        Ok(())
    }

    fn level(&self, number: u64, inode: StoredInode, path: usize) -> Result<Level> {
        Ok(Level {
            number,
            inode,
            path,
            names: self.new.entries(number)?.into_iter(),
        })
    }

    /// Refuses a directory with several names, so that the walk enters each once.
    fn check_only_name(&self, dir: u64, entry: &NamedInode) -> Result<()> {
        let name = LinkName {
            dir,
            name: entry.name.clone(),
        };
        if self.new.names(entry.number)? == [name] {
            Ok(())
        } else {
            Err(contradiction(
                entry.number,
                "a directory with several names",
            ))
        }
    }
}
