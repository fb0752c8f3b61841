//! Deleted files: inodes and names from earlier contents of blocks.
//!
//! # How it works
//! A deletion clears the inode, the blocks of its map and its directory entry in their places. The
//! journal keeps earlier contents of these blocks until it overwrites them.
//!
//! 1. Every copy of an inode table block in the journal is read. An inode is deleted if a copy has
//!    it in use, and its place does not hold it with the same generation. The newest copy counts.
//! 2. The blocks of all directories, deleted ones included, are looked up in the journal. An entry
//!    there names a deleted inode. If several entries name it, the entry with the nearest age is
//!    used. Names in the free space of a directory, which Linux clears since 5.13, come last.
//! 3. The block bitmaps tell which blocks of a deleted file belong to another file now. A block of
//!    two deleted files has the content of the newer one ([`owners`](super::owners)). A block whose
//!    owner in between left no inode in the journal cannot be told from an unchanged one.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use sapwood_ext4_format::{Inode, InodeFlags, dir_type, special_ino};
use sapwood_vfs::FileKind;

use super::dir::{self, Entry};
use super::files::time;
use super::map::{self, Life, Mapped};
use super::nameless::each_used;
use super::owners::{Identity, Owners};
use super::volume::{Volume, is_in_use};
use super::{Files, Image};
use crate::Tree;
use crate::deleted::{Deleted, Found, NameSource, OnDeleted};

/// Most deleted inodes that are remembered.
const MOST: usize = 1_000_000;
/// Most names that are remembered for an inode number.
const NAMES: usize = 16;
/// Most bytes of a path. The parents of damaged directories may form a cycle.
const PATH_MAX: usize = 4096;
/// Age of a name in free space, which is unknown.
const UNKNOWN_AGE: u32 = u32::MAX;

/// A deleted inode, as the newest copy has it.
struct Gone {
    inode: Inode,
    age: u32,
}

/// A name that an inode had.
struct Name {
    parent: u32,
    name: Vec<u8>,
    kind: u8,
    age: u32,
}

/// The deleted inodes of an image, and what names them.
struct Search<'v> {
    volume: &'v Volume,
    gone: BTreeMap<Identity, Gone>,
    /// Generations of the inodes that are in use now, as far as they were read.
    current: HashMap<u32, Option<u32>>,
    /// By inode number.
    names: HashMap<u32, Vec<Name>>,
    /// Parents and names of directories in use.
    directories: HashMap<u32, (u32, Vec<u8>)>,
}

impl Image {
    /// Calls `each` for the deleted files that the journal knows, until it breaks.
    pub fn deleted(self, each: &mut OnDeleted<'_>) {
        let (found, owners) = Search::new(&self.volume).run();
        let mut files = self.files();
        files.owners = owners;
        let mut all = Vec::new();
        for (file, number, inode) in found {
            all.push((
                file,
                number,
                files.add_deleted(number, inode.clone()),
                inode,
            ));
        }
        let files = Arc::new(files);
        let tree: Arc<dyn Tree> = files.clone();
        for (file, number, ino, inode) in all {
            let readable = || readable(&files, number, &inode);
            let found = Found {
                file,
                tree: &tree,
                ino,
                readable: &readable,
            };
            if each(found).is_break() {
                return;
            }
        }
    }
}

impl<'v> Search<'v> {
    fn new(volume: &'v Volume) -> Self {
        Self {
            volume,
            gone: BTreeMap::new(),
            current: HashMap::new(),
            names: HashMap::new(),
            directories: HashMap::new(),
        }
    }

    /// The deleted files in the order of their paths, with their inodes, and the owners of blocks.
    fn run(mut self) -> (Vec<(Deleted, u32, Inode)>, Owners) {
        self.find_inodes();
        if self.gone.is_empty() {
            return (Vec::new(), Owners::default());
        }
        self.names_in_use();
        self.names_deleted();
        let mut found = Vec::new();
        for ((number, _), gone) in &self.gone {
            let kind = FileKind::from_mode(gone.inode.mode().into());
            let Some(kind @ (FileKind::Regular | FileKind::Symlink)) = kind else {
                continue;
            };
            let (path, name) = self.path(*number, gone);
            let file = Deleted {
                generation: None,
                path,
                name,
                kind,
                size: gone.inode.size(&self.volume.geometry),
                mtime: time(gone.inode.mtime()),
                readable: 0,
            };
            found.push((file, *number, gone.inode.clone()));
        }
        found.sort_by(|(one, ..), (other, ..)| one.path.cmp(&other.path));
        (found, self.owners())
    }

    /// The last owners of the blocks of deleted inodes.
    fn owners(&self) -> Owners {
        let mut order: Vec<(&Identity, &Gone)> = self.gone.iter().collect();
        order.sort_by_key(|(_, gone)| (gone.age, Reverse(gone.inode.ctime().seconds)));
        let mut owners = Owners::default();
        for (identity, gone) in order {
            let rank = owners.add(*identity);
            parts(self.volume, identity.0, &gone.inode, &mut |part| {
                if let Mapped::Data { physical, len } = part {
                    owners.claim(rank, physical, len);
                }
            });
        }
        owners
    }

    /// Reads the inode table blocks in the journal.
    fn find_inodes(&mut self) {
        let volume = self.volume;
        let mut tables: Vec<(u64, u32)> = Vec::new();
        for (group, found) in (0..).zip(&volume.groups) {
            tables.extend(found.table.map(|table| (table, group)));
        }
        tables.sort_unstable();
        let blocks = u64::from(volume.geometry.inode_table_blocks());
        for home in volume.copies.homes() {
            let after = tables.partition_point(|(table, _)| *table <= home);
            let table = after.checked_sub(1).and_then(|at| tables.get(at));
            let Some((table, group)) = table.filter(|(table, _)| home - table < blocks) else {
                continue;
            };
            let first = (home - table) as u32 * volume.geometry.inodes_per_block();
            for (age, bytes) in volume.copies.versions(&*volume.device, home) {
                self.inodes_of(*group, first, age, &bytes);
            }
        }
    }

    /// Reads a copy of a block whose first inode has the index `first` in its group.
    fn inodes_of(&mut self, group: u32, first: u32, age: u32, bytes: &[u8]) {
        let volume = self.volume;
        let size = usize::from(volume.geometry.inode_size());
        for (index, raw) in (first..).zip(bytes.chunks_exact(size)) {
            let number = volume.geometry.ino(group, index);
            let number = number.filter(|ino| *ino >= volume.geometry.first_ino());
            let Some(number) = number.filter(|_| is_in_use(raw) && self.gone.len() < MOST) else {
                continue;
            };
            let Some(inode) = volume.valid(number, raw) else {
                continue;
            };
            let identity = (number, inode.generation());
            let own = inode.flags().contains(InodeFlags::EA_INODE);
            if own || self.gone.contains_key(&identity) {
                continue;
            }
            let now = self.current.entry(number);
            let now = *now.or_insert_with(|| volume.inode(number).map(|now| now.generation()));
            if now != Some(inode.generation()) {
                self.gone.insert(identity, Gone { inode, age });
            }
        }
    }

    fn is_gone(&self, number: u32) -> bool {
        let mut all = self.gone.range((number, 0)..=(number, u32::MAX));
        all.next().is_some()
    }

    fn add_name(&mut self, parent: u32, entry: Entry, age: u32) {
        if entry.ino == parent || !self.is_gone(entry.ino) {
            return;
        }
        let names = self.names.entry(entry.ino).or_default();
        let same = |name: &Name| name.parent == parent && name.name == entry.name;
        if names.len() < NAMES && !names.iter().any(same) {
            names.push(Name {
                parent,
                name: entry.name,
                kind: entry.kind,
                age,
            });
        }
    }

    /// Finds names in the directories that are in use.
    fn names_in_use(&mut self) {
        let volume = self.volume;
        let mut numbers = Vec::new();
        for group in 0..volume.groups.len() as u32 {
            each_used(volume, group, &mut |ino, is_directory| {
                if is_directory {
                    numbers.push(ino);
                }
            });
        }
        for number in numbers {
            let Some(inode) = volume.inode(number).filter(Inode::is_dir) else {
                continue;
            };
            if inode.flags().contains(InodeFlags::INLINE_DATA) {
                self.add_directories(number, dir::list(volume, number, &inode, 0).0.entries);
                continue;
            }
            self.each_block(number, &inode, Life::InUse, &mut |this, block, physical| {
                let (listed, _) = dir::list(volume, number, &inode, block);
                this.add_directories(number, listed.entries);
                this.versions(number, &inode, block, physical);
                let bytes = volume.block(physical).unwrap_or_default();
                for entry in dir::free_space(volume, &inode, &bytes) {
                    this.add_name(number, entry, UNKNOWN_AGE);
                }
            });
        }
    }

    /// Adds the directories among the entries of a directory in use.
    fn add_directories(&mut self, parent: u32, entries: Vec<Entry>) {
        for entry in entries {
            if matches!(entry.kind, dir_type::DIRECTORY | dir_type::UNKNOWN) {
                let place = (parent, entry.name);
                self.directories.entry(entry.ino).or_insert(place);
            }
        }
    }

    /// Finds names in deleted directories.
    fn names_deleted(&mut self) {
        let directories = self.gone.iter().filter(|(_, gone)| gone.inode.is_dir());
        let directories: Vec<(u32, Inode)> = directories
            .map(|((number, _), gone)| (*number, gone.inode.clone()))
            .collect();
        for (number, inode) in directories {
            self.each_block(
                number,
                &inode,
                Life::Deleted,
                &mut |this, block, physical| {
                    this.versions(number, &inode, block, physical);
                    if !this.volume.is_free(physical) {
                        return;
                    }
                    let bytes = this.volume.block(physical).unwrap_or_default();
                    let whole = dir::entries_of(this.volume, (number, &inode), block, &bytes);
                    let old = dir::free_space(this.volume, &inode, &bytes);
                    for entry in whole.into_iter().chain(old) {
                        this.add_name(number, entry, UNKNOWN_AGE);
                    }
                },
            );
        }
    }

    /// Calls `each` for the blocks of a directory: the number in the directory, and the block.
    fn each_block(
        &mut self,
        number: u32,
        inode: &Inode,
        life: Life,
        each: &mut dyn FnMut(&mut Self, u32, u64),
    ) {
        if inode.flags().contains(InodeFlags::INLINE_DATA) {
            return;
        }
        let end = dir::blocks(self.volume, inode);
        let mut at = 0;
        while at < end {
            let step = match map::find(self.volume, (number, inode, life), at) {
                Mapped::Data { physical, len } => {
                    let len = len.min(u64::from(end - at)) as u32;
                    for next in 0..len {
                        each(self, at + next, physical.saturating_add(next.into()));
                    }
                    len
                }
                Mapped::Hole { len } | Mapped::Lost { len, .. } => {
                    u32::try_from(len).unwrap_or(u32::MAX)
                }
            };
            at = at.saturating_add(step.max(1));
        }
    }

    /// Adds the names of a directory's block in the journal.
    fn versions(&mut self, number: u32, inode: &Inode, block: u32, physical: u64) {
        let volume = self.volume;
        for (age, bytes) in volume.copies.versions(&*volume.device, physical) {
            for entry in dir::entries_of(volume, (number, inode), block, &bytes) {
                self.add_name(number, entry, age);
            }
        }
    }

    /// The name of a deleted inode.
    fn name(&self, number: u32, gone: &Gone) -> Option<&Name> {
        let mode = gone.inode.mode();
        let names = self.names.get(&number)?.iter();
        let fitting = names.filter(|name| {
            name.kind == dir_type::UNKNOWN || name.kind == dir_type::from_mode(mode)
        });
        fitting.min_by_key(|name| (name.age.abs_diff(gone.age), name.age))
    }

    /// The path of a deleted inode, as far as it is known.
    fn path(&self, number: u32, gone: &Gone) -> (Vec<u8>, NameSource) {
        let (name, at, source) = match self.name(number, gone) {
            Some(name) => {
                let source = match name.age {
                    UNKNOWN_AGE => NameSource::FreeSpace,
                    _ => NameSource::Directory,
                };
                (name.name.clone(), name.parent, source)
            }
            None => {
                let name = format!("#{number}").into_bytes();
                (name, special_ino::ROOT, NameSource::None)
            }
        };
        let above = |at: u32| {
            let deleted = || {
                let mut all = self.gone.range((at, 0)..=(at, u32::MAX));
                let newest = all.by_ref().min_by_key(|(_, gone)| gone.age);
                let (_, gone) = newest.filter(|(_, gone)| gone.inode.is_dir())?;
                let name = self.name(at, gone)?;
                Some((name.parent, name.name.clone()))
            };
            self.directories.get(&at).cloned().or_else(deleted)
        };
        (path_to(name, at, above), source)
    }
}

/// The path of a name in the directory `at`. `above`: the parent and the name of a directory.
fn path_to(name: Vec<u8>, mut at: u32, above: impl Fn(u32) -> Option<(u32, Vec<u8>)>) -> Vec<u8> {
    let mut bytes = name.len() + 1;
    let mut names = vec![name];
    while at != special_ino::ROOT {
        let fits = |(_, name): &(u32, Vec<u8>)| bytes + name.len() < PATH_MAX;
        let Some((parent, name)) = above(at).filter(fits) else {
            names.push(format!("#{at}").into_bytes());
            break;
        };
        bytes += name.len() + 1;
        names.push(name);
        at = parent;
    }
    let mut path = Vec::new();
    for name in names.iter().rev() {
        path.push(b'/');
        path.extend_from_slice(name);
    }
    path
}

/// Bytes of a deleted file in blocks that no other file has now or had later, and in holes.
fn readable(files: &Files, number: u32, inode: &Inode) -> u64 {
    let volume = &files.volume;
    let mut missing = 0_u64;
    parts(volume, number, inode, &mut |part| {
        missing = missing.saturating_add(match part {
            Mapped::Hole { .. } => 0,
            Mapped::Lost { len, .. } => len,
            Mapped::Data { physical, len } => len - files.unchanged(number, inode, physical, len),
        });
    });
    let size = inode.size(&volume.geometry);
    size.saturating_sub(missing.saturating_mul(volume.block_size() as u64))
}

/// Calls `each` for the parts of a deleted file that are not in the inode itself.
fn parts(volume: &Volume, number: u32, inode: &Inode, each: &mut dyn FnMut(Mapped)) {
    let (size, block_size) = (inode.size(&volume.geometry), volume.block_size() as u64);
    if inode.flags().contains(InodeFlags::INLINE_DATA) || inode.is_fast_symlink(&volume.geometry) {
        return;
    }
    let end = u32::try_from(size.div_ceil(block_size)).unwrap_or(u32::MAX);
    // A map of more blocks than the device has, or of that many single holes, is damaged.
    let mut budget = volume.device.size() / block_size;
    let is_tree = inode.flags().contains(InodeFlags::EXTENTS);
    let mut at = 0;
    while at < end {
        let whole = (number, inode, Life::Deleted);
        let rest = u64::from(end - at);
        if budget == 0 {
            return each(Mapped::Lost {
                block: 0,
                len: rest,
            });
        }
        let mut part = map::find(volume, whole, at);
        let len = match &mut part {
            Mapped::Hole { len } | Mapped::Lost { len, .. } => {
                budget -= u64::from(*len == 1 && !is_tree);
                *len = rest.min(*len);
                *len
            }
            Mapped::Data { len, .. } => {
                *len = rest.min(*len).min(budget);
                budget -= *len;
                *len
            }
        };
        each(part);
        at = at.saturating_add(len.max(1) as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cycle_of_directories_ends_a_path() {
        let cycle = |at: u32| Some((23 - at, vec![b'd'; 255]));
        let path = path_to(b"file".to_vec(), 11, cycle);
        assert!(path.len() < PATH_MAX + 20, "{}", path.len());
        assert!(path.starts_with(b"/#1") && path.ends_with(b"d/file"));
        let tree = |at: u32| (at == 11).then(|| (special_ino::ROOT, b"d".to_vec()));
        assert_eq!(path_to(b"file".to_vec(), 11, tree), b"/d/file");
        assert_eq!(path_to(b"file".to_vec(), 12, tree), b"/#12/file");
    }
}
