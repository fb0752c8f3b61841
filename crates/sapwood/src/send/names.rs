//! Commands that turn the names of the parent into the names of the snapshot.
//!
//! # How it works
//! 1. Names of files that only the parent has are removed, unless the file keeps no other name.
//! 2. Moved directories and files go to their new names. If that name is taken, does not exist yet,
//!    or is below the directory itself, they go to a temporary name in the top directory.
//! 3. Deleted directories, which are empty now, are removed, the deepest first.
//! 4. New directories are made, the topmost first. Inodes with a temporary name get their new one.
//!    New files and hard links follow.
//!
//! After step 3 every name of the parent that the snapshot lacks is free, so step 4 meets no name
//! that is taken. When step 4 moves a directory, each of its new ancestors exists or has a
//! temporary name, so no move closes a cycle.

use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;

use sapwood_btrfs_format::stream::command as cmd;

use super::error::{Result, SendError};
use super::full::inode_of;
use super::places::{Place, Places, Side, Single};
use super::source::{Source, Tree};
use super::{Sender, contradiction};
use crate::vfs::LinkName;

/// The attribute that new files of a directory inherit.
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// The state of the receiver's directories.
#[derive(Default)]
struct Receiver {
    /// Whether new files of a directory inherit an ACL.
    default_acls: HashMap<u64, bool>,
}

impl<S: Source, W: Write> Sender<'_, '_, S, W> {
    /// Gives all inodes their new names.
    pub(super) fn change_names(&mut self, old: &Arc<S::Tree>) -> Result<Places<S::Tree>> {
        let mut places = Places::new(&self.source, old)?;
        let mut receiver = Receiver::default();
        self.free_top(&places)?;
        self.remove_files(&places)?;
        self.move_away(&mut places)?;
        self.remove_directories(&places)?;
        self.create(&mut places, true, &mut receiver)?;
        self.move_in(&mut places, true)?;
        self.create(&mut places, false, &mut receiver)?;
        self.move_in(&mut places, false)?;
        self.add_links(&places)?;
        Ok(places)
    }

    fn check_stop(&self) -> Result<()> {
        if self.options.stop.is_stopped() {
            return Err(SendError::Stopped);
        }
        Ok(())
    }

    /// Whether the top directory of the parent has a default ACL, which files at temporary names
    /// would inherit.
    fn top_has_default_acl(places: &Places<S::Tree>) -> Result<bool> {
        let old = places.tree(Side::Old);
        Ok(has_default_acl(old, old.top())? && !places.created.is_empty())
    }

    /// Removes the default ACL of the top directory until all names are in place.
    fn free_top(&mut self, places: &Places<S::Tree>) -> Result<()> {
        if Self::top_has_default_acl(places)? {
            self.out.remove_xattr(b"", DEFAULT_ACL)?;
        }
        Ok(())
    }

    /// Restores the ACL that [`free_top`](Self::free_top) removed, and the times of the top
    /// directory.
    pub(super) fn restore_top(&mut self, places: &Places<S::Tree>) -> Result<()> {
        let new = places.tree(Side::New);
        let top = new.top();
        if Self::top_has_default_acl(places)? {
            for (name, value) in new.xattrs(top)? {
                if name == DEFAULT_ACL {
                    self.out.set_xattr(b"", &name, &value)?;
                }
            }
        }
        self.out.times(b"", &inode_of(new, top)?)
    }

    fn remove_files(&mut self, places: &Places<S::Tree>) -> Result<()> {
        for (number, _) in places.deleted.iter().filter(|(_, one)| !one.directory) {
            for name in places.tree(Side::Old).names(*number)? {
                self.remove_file(places, &name)?;
            }
        }
        // If a file keeps none of its names, it is renamed from the first one.
        let moved = places.moved.values().filter(|one| !one.directory);
        let moved = moved.flat_map(|one| {
            let carried = usize::from(one.kept.is_none());
            one.removed.iter().skip(carried)
        });
        for name in moved {
            self.remove_file(places, name)?;
        }
        Ok(())
    }

    fn remove_file(&mut self, places: &Places<S::Tree>, name: &LinkName) -> Result<()> {
        self.check_stop()?;
        let path = places.path(Side::Old, name)?;
        self.out.path(cmd::UNLINK, &path)
    }

    fn move_away(&mut self, places: &mut Places<S::Tree>) -> Result<()> {
        let moving = places.moved.iter();
        let moving = moving.filter(|(_, one)| one.directory || one.kept.is_none());
        let mut waiting: Vec<u64> = moving.map(|(number, _)| *number).collect();
        for last in [false, true] {
            let mut later = Vec::new();
            for number in waiting {
                self.check_stop()?;
                if !self.move_one(places, number, last)? {
                    later.push(number);
                }
            }
            waiting = later;
        }
        Ok(())
    }

    /// Moves an inode to its new name, if that is possible now. Otherwise, if `last`, moves it to a
    /// temporary name.
    fn move_one(&mut self, places: &mut Places<S::Tree>, number: u64, last: bool) -> Result<bool> {
        let moved = places.moved.get(&number);
        let ends = moved.and_then(|one| Some((one.removed.first()?, one.added.first()?)));
        let (from, to) = ends.ok_or(contradiction(number, "it moved without a name"))?;
        let (from, to) = (from.clone(), to.clone());
        let directory = moved.is_some_and(|one| one.directory);
        let direct = Self::can_go(places, number, directory, &to)?;
        if !direct && !last {
            return Ok(false);
        }
        let before = places.path(Side::Old, &from)?;
        let (after, place) = if direct {
            (places.path(Side::New, &to)?, Place::New)
        } else {
            let name = temporary_name(places, number)?;
            (name.clone(), Place::Temporary(name))
        };
        self.out.rename(&before, &after)?;
        places.set_place(number, place);
        Ok(true)
    }

    fn can_go(
        places: &Places<S::Tree>,
        number: u64,
        directory: bool,
        to: &LinkName,
    ) -> Result<bool> {
        if places.created.contains_key(&to.dir) {
            return Ok(false);
        }
        let old = places.tree(Side::Old);
        let found = old.find(to.dir, &to.name)?;
        let taken = found.is_some_and(|found| !places.is_freed(found, to));
        if taken || !directory {
            return Ok(!taken);
        }
        Ok(!places.is_below(to.dir, number)?)
    }

    fn remove_directories(&mut self, places: &Places<S::Tree>) -> Result<()> {
        let directories = places.deleted.iter().filter(|(_, one)| one.directory);
        let mut by_depth = Vec::new();
        for (number, _) in directories {
            by_depth.push((places.depth(Side::Old, *number)?, *number));
        }
        by_depth.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        for (_, number) in by_depth {
            self.check_stop()?;
            for name in places.tree(Side::Old).names(number)? {
                let path = places.path(Side::Old, &name)?;
                self.out.path(cmd::RMDIR, &path)?;
            }
        }
        Ok(())
    }

    /// Creates the new directories, or the new files.
    fn create(
        &mut self,
        places: &mut Places<S::Tree>,
        directories: bool,
        receiver: &mut Receiver,
    ) -> Result<()> {
        let new = places.created.iter();
        let new = new.filter(|(_, one)| one.directory == directories);
        let mut order: Vec<(usize, u64)> = new.map(|(number, _)| (0, *number)).collect();
        if directories {
            for (depth, number) in &mut order {
                *depth = places.depth(Side::New, *number)?;
            }
            order.sort_unstable();
        }
        for (_, number) in order {
            self.check_stop()?;
            let names = places.tree(Side::New).names(number)?;
            let Some(name) = names.into_iter().next() else {
                continue;
            };
            let path = places.path(Side::New, &name)?;
            let inode = inode_of(places.tree(Side::New), number)?;
            let target = self.target(number, &inode, &path)?;
            if inherits_acl(places, name.dir, receiver)? {
                let aside = temporary_name(places, number)?;
                self.out.create(number, &inode, &aside, &target)?;
                self.out.rename(&aside, &path)?;
            } else {
                self.out.create(number, &inode, &path, &target)?;
            }
        }
        Ok(())
    }

    /// Gives directories, or files, with a temporary name their new one.
    fn move_in(&mut self, places: &mut Places<S::Tree>, directories: bool) -> Result<()> {
        let waiting = places.moved.iter().filter_map(|(number, one)| {
            let Place::Temporary(name) = &one.place else {
                return None;
            };
            let to = one.added.first()?.clone();
            (one.directory == directories).then(|| (*number, name.clone(), to))
        });
        for (number, name, to) in waiting.collect::<Vec<_>>() {
            self.check_stop()?;
            if directories && places.is_below(to.dir, number)? {
                return Err(contradiction(number, "a directory below itself"));
            }
            let path = places.path(Side::New, &to)?;
            self.out.rename(&name, &path)?;
            places.set_place(number, Place::New);
        }
        Ok(())
    }

    /// Adds the names of files after the first.
    fn add_links(&mut self, places: &Places<S::Tree>) -> Result<()> {
        let linked = |one: &Single| one.linked && !one.directory;
        for (number, _) in places.created.iter().filter(|(_, one)| linked(one)) {
            let names = places.tree(Side::New).names(*number)?;
            if let Some((existing, further)) = names.split_first() {
                self.link(places, existing, further)?;
            }
        }
        let moved = places.moved.values().filter(|one| !one.directory);
        let moved = moved.map(|one| match &one.kept {
            Some(kept) => (Some(kept), Some(one.added.as_slice())),
            None => (one.added.first(), one.added.get(1..)),
        });
        for (existing, further) in moved {
            if let Some(existing) = existing {
                self.link(places, existing, further.unwrap_or_default())?;
            }
        }
        Ok(())
    }

    fn link(
        &mut self,
        places: &Places<S::Tree>,
        existing: &LinkName,
        further: &[LinkName],
    ) -> Result<()> {
        for name in further {
            self.check_stop()?;
            let existing = places.path(Side::New, existing)?;
            let path = places.path(Side::New, name)?;
            self.out.link(&path, &existing)?;
        }
        Ok(())
    }
}

fn has_default_acl(tree: &impl Tree, dir: u64) -> Result<bool> {
    let xattrs = tree.xattrs(dir)?;
    Ok(xattrs.iter().any(|(name, _)| name == DEFAULT_ACL))
}

/// Whether a new file in a directory of the new snapshot inherits an ACL at the receiver.
fn inherits_acl(places: &Places<impl Tree>, dir: u64, receiver: &mut Receiver) -> Result<bool> {
    let old = places.tree(Side::Old);
    if places.created.contains_key(&dir) || dir == old.top() {
        return Ok(false);
    }
    if let Some(known) = receiver.default_acls.get(&dir) {
        return Ok(*known);
    }
    let found = has_default_acl(old, dir)?;
    receiver.default_acls.insert(dir, found);
    Ok(found)
}

/// A name for an inode that neither snapshot has in its top directory.
fn temporary_name(places: &Places<impl Tree>, number: u64) -> Result<Vec<u8>> {
    let (old, new) = (places.tree(Side::Old), places.tree(Side::New));
    for attempt in 0_u64.. {
        let name = format!("o{number}-{attempt}").into_bytes();
        let taken = old.find(old.top(), &name)?.is_some() || new.find(new.top(), &name)?.is_some();
        if !taken {
            return Ok(name);
        }
    }
    Err(contradiction(number, "no name is free"))
}
