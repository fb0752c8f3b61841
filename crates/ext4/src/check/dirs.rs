//! All directories: blocks, names, and the inodes of the names.

use std::collections::HashSet;
use std::hash::RandomState;
use std::sync::Arc;

use sapwood_ext4_format::{
    CREATOR_HURD, DirEntry, DirError, DirFormat, INLINE_XATTR, Incompat, Inode, InodeFlags,
    XattrSet, XattrValue, dir_type, inline_dir_parent, inline_dir_region, special_ino, xattr_index,
};

use super::finding::{Finding, shown};
use super::htree::Tree;
use super::notes::{Directory, Note};
use super::report::{CheckError, Phase};
use super::state::{Check, View};
use super::walk::{self, Piece};

/// Smallest length of an encrypted name.
const CIPHER_BLOCK: usize = 16;

/// The directory's format, from superblock and inode.
pub(super) fn format(view: &View, inode: &Inode) -> DirFormat {
    let features = view.geometry.features();
    let both = InodeFlags::ENCRYPT | InodeFlags::CASEFOLD;
    DirFormat {
        block_size: view.geometry.block_size() as usize,
        checksums: view.geometry.metadata_csum(),
        file_type: features.has_incompat(Incompat::FILETYPE),
        hash_in_entry: inode.flags().contains(both),
        large_dir: features.has_incompat(Incompat::LARGEDIR),
        inodes: view.geometry.inodes_count(),
    }
}

impl Check<'_> {
    /// Checks all directories.
    pub(super) fn all_directories(&mut self) -> Result<(), CheckError> {
        let view = Arc::clone(&self.view);
        let hasher = RandomState::new();
        for group in 0..view.geometry.group_count() {
            self.tell(Phase::Directories, group)?;
            for index in 0..self.inodes.group(group).len() {
                let Some(ino) = view.geometry.ino(group, index as u32) else {
                    continue;
                };
                let note = self.inodes.get(ino);
                if note.in_use && !note.bad && note.kind == dir_type::DIRECTORY {
                    self.directory(&view, ino, &hasher);
                    self.tell(Phase::Directories, group)?;
                }
            }
        }
        Ok(())
    }

    fn directory(&mut self, view: &View, ino: u32, hasher: &RandomState) {
        let Some(inode) = self.again(ino) else {
            self.names_incomplete = true;
            return;
        };
        let flags = inode.flags();
        let size = inode.size(&view.geometry);
        let mut dir = Directory {
            ino,
            format: format(view, &inode),
            seed: view.geometry.inode_seed(ino, inode.generation()),
            encrypted: flags.contains(InodeFlags::ENCRYPT),
            folds: flags.contains(InodeFlags::CASEFOLD) && !flags.contains(InodeFlags::ENCRYPT),
            untyped: view.sb.creator_os.get() == CREATOR_HURD,
            runs: Vec::new(),
            blocks: u32::try_from(size >> view.geometry.block_bits()).unwrap_or(u32::MAX),
            names: HashSet::new(),
            hasher,
        };
        self.parents.entry(ino).or_default();
        if flags.contains(InodeFlags::INLINE_DATA) {
            return self.inline_directory(&mut dir, &inode);
        }
        self.find_blocks(view, &mut dir, &inode);
        let tree = flags
            .contains(InodeFlags::INDEX)
            .then(|| self.tree(view, &dir));
        let runs = dir.runs.clone();
        for (first, physical, len) in runs {
            for at in 0..len {
                let logical = (first + at) as u32;
                match view.block(physical + at) {
                    Ok(bytes) => self.directory_block(&mut dir, tree.as_ref(), logical, &bytes),
                    Err(finding) => {
                        self.names_incomplete = true;
                        self.found(finding);
                    }
                }
            }
        }
    }

    /// Finds the directory's blocks. A block that belongs to another directory, which has read it,
    /// is skipped.
    fn find_blocks(&mut self, view: &View, dir: &mut Directory<'_>, inode: &Inode) {
        let mut nodes = HashSet::new();
        let seen = &mut self.dir_blocks;
        let (runs, mut again) = (&mut dir.runs, false);
        walk::walk(view, dir.ino, inode, &mut |piece| match piece {
            Piece::Node { block } => nodes.insert(block),
            Piece::Data {
                logical,
                physical,
                len,
                ..
            } => {
                for at in 0..len {
                    if seen.insert(physical + at) && view.geometry.cluster_ratio_bits() == 0 {
                        again = true;
                        continue;
                    }
                    match runs.last_mut() {
                        Some((first, start, len))
                            if *first + *len == logical + at && *start + *len == physical + at =>
                        {
                            *len += 1;
                        }
                        _ => runs.push((logical + at, physical + at, 1)),
                    }
                }
                true
            }
        });
        runs.sort_unstable();
        self.names_incomplete |= again;
        let mut next = 0;
        for (first, _, len) in runs.clone() {
            if first > next && !again {
                self.hole(dir.ino, next);
            }
            next = first + len;
        }
        if next < u64::from(dir.blocks) && !again {
            self.hole(dir.ino, next);
        }
    }

    fn hole(&mut self, dir: u32, logical: u64) {
        self.names_incomplete = true;
        self.found(Finding::DirHole {
            dir,
            logical: logical as u32,
        });
    }

    fn directory_block(
        &mut self,
        dir: &mut Directory<'_>,
        tree: Option<&Tree>,
        logical: u32,
        bytes: &[u8],
    ) {
        let ino = dir.ino;
        if let Some(tree) = tree {
            if logical == 0 {
                return self.root_block(dir, bytes);
            }
            if tree.is_node(logical) || tree.bad && dir.format.dx_node(bytes, dir.blocks).is_ok() {
                return;
            }
        }
        let judged = if dir.encrypted {
            dir.format.check_layout(bytes)
        } else {
            dir.format.check(bytes)
        };
        let judged = judged.and_then(|()| dir.format.verify(bytes, dir.seed));
        if let Err(error) = judged {
            self.names_incomplete |= !matches!(error, DirError::Checksum { .. });
            self.found(Finding::DirBlockBad {
                dir: ino,
                logical,
                error,
            });
        }
        let entries: Vec<_> = dir.format.entries(bytes).map_while(Result::ok).collect();
        let dots = match logical {
            0 => self.dots(dir, &entries),
            _ => 0,
        };
        if dots == 2 && bytes.get(22).is_some_and(|byte| *byte != 0) {
            let why = "`..` does not end with a NUL";
            self.found(Finding::DirDots {
                dir: ino,
                logical,
                why,
            });
        }
        for entry in entries.iter().skip(dots).filter(|entry| entry.inode != 0) {
            self.entry(dir, logical, bytes, entry);
            if let Some(tree) = tree {
                self.found_all(tree.misplaced(dir, logical, entry));
            }
        }
    }

    /// Checks `.` and `..` at the start of a directory. Returns the number of their entries.
    fn dots(&mut self, dir: &Directory<'_>, entries: &[DirEntry<'_>]) -> usize {
        let bad = |why| Finding::DirDots {
            dir: dir.ino,
            logical: 0,
            why,
        };
        let mut count = 0;
        match entries.first() {
            Some(dot) if dot.name == b"." && dot.inode == dir.ino => {
                self.dot_type(dir, dot);
                self.count_name(dir.ino);
                count = 1;
            }
            Some(dot) if dot.name == b"." && dot.inode != 0 => {
                self.found(bad("`.` is another directory"));
                count = 1;
            }
            _ => self.found(bad("does not begin with `.`")),
        }
        match entries.get(1) {
            Some(dotdot) if dotdot.name == b".." && dotdot.inode != 0 => {
                self.dot_type(dir, dotdot);
                self.dotdot(dir.ino, dotdot.inode);
                count = 2;
            }
            _ => self.found(bad("the second entry is not `..`")),
        }
        count
    }

    fn dot_type(&mut self, dir: &Directory<'_>, entry: &DirEntry<'_>) {
        if dir.typed(entry.file_type) && entry.file_type != dir_type::DIRECTORY {
            self.found(Finding::EntryType {
                dir: dir.ino,
                name: shown(entry.name),
                ino: entry.inode,
                found: entry.file_type,
                expected: dir_type::DIRECTORY,
            });
        }
    }

    fn count_name(&mut self, ino: u32) {
        if let Some(note) = self.inodes.get_mut(ino) {
            note.names = note.names.saturating_add(1);
        }
    }

    fn dotdot(&mut self, dir: u32, parent: u32) {
        let note = self.inodes.get(parent);
        if !note.in_use || note.kind != dir_type::DIRECTORY && !note.bad {
            return self.found(Finding::EntryDangling {
                dir,
                name: "..".into(),
                ino: parent,
            });
        }
        self.count_name(parent);
        self.parents.entry(dir).or_default().dotdot = parent;
    }

    /// Checks the block with a hash tree's root, which contains only `.` and `..`.
    fn root_block(&mut self, dir: &Directory<'_>, bytes: &[u8]) {
        let number = |at: usize| {
            let word = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>());
            word.map_or(0, |word| u32::from_le_bytes(*word))
        };
        let (dot, dotdot) = (number(0), number(12));
        let names = bytes.get(8..9) == Some(b".") && bytes.get(20..22) == Some(b"..");
        let bad = |why| Finding::DirDots {
            dir: dir.ino,
            logical: 0,
            why,
        };
        if !names || dotdot == 0 || dotdot > dir.format.inodes {
            self.names_incomplete = true;
            return self.found(bad("does not begin with `.` and `..`"));
        }
        let types = [bytes.get(7), bytes.get(19)];
        let directory = |byte: Option<&u8>| {
            byte.is_some_and(|byte| !dir.typed(*byte) || *byte == dir_type::DIRECTORY)
        };
        if !types.into_iter().all(directory) {
            self.found(bad("`.` or `..` has another file type"));
        }
        if dot == dir.ino {
            self.count_name(dot);
        } else {
            self.found(bad("`.` is another directory"));
        }
        self.dotdot(dir.ino, dotdot);
    }

    /// Checks one name.
    fn entry(&mut self, dir: &mut Directory<'_>, logical: u32, bytes: &[u8], entry: &DirEntry<'_>) {
        let (ino, target) = (dir.ino, entry.inode);
        if entry.is_dots() {
            return self.found(Finding::DirDots {
                dir: ino,
                logical,
                why: "`.` or `..` where it does not belong",
            });
        }
        self.report.stats.names += 1;
        let name = || shown(entry.name);
        if !dir.enter(entry.name) {
            self.found(Finding::NameTwice {
                dir: ino,
                name: name(),
            });
        }
        let view = Arc::clone(&self.view);
        let note = self.inodes.get(target);
        let reserved = target < view.geometry.first_ino() && target != special_ino::ROOT;
        if reserved || note.is_value || self.is_named(&view, target) {
            return self.found(Finding::EntryReserved {
                dir: ino,
                name: name(),
                ino: target,
            });
        }
        if !note.in_use {
            if !self.tables_incomplete {
                self.found(Finding::EntryDangling {
                    dir: ino,
                    name: name(),
                    ino: target,
                });
            }
            return;
        }
        self.count_name(target);
        let raw = bytes.get(entry.offset + 7).copied().unwrap_or_default();
        let expected = if dir.typed(raw) {
            note.kind
        } else {
            dir_type::UNKNOWN
        };
        if raw != expected && !note.bad {
            self.found(Finding::EntryType {
                dir: ino,
                name: name(),
                ino: target,
                found: raw,
                expected,
            });
        }
        if dir.encrypted {
            self.encrypted_entry(ino, entry, &note);
        }
        if note.kind == dir_type::DIRECTORY {
            let parents = self.parents.entry(target).or_default();
            parents.names = parents.names.saturating_add(1);
            if parents.named_in == 0 {
                parents.named_in = ino;
            }
        }
    }

    /// Checks a name in an encrypted directory: it must be long enough, and its inode must be
    /// encrypted if its type can be.
    fn encrypted_entry(&mut self, dir: u32, entry: &DirEntry<'_>, note: &Note) {
        let kinds = [dir_type::REGULAR, dir_type::DIRECTORY, dir_type::SYMLINK];
        let why = if entry.name.len() < CIPHER_BLOCK {
            "too short for an encrypted name"
        } else if !note.encrypted && !note.bad && kinds.contains(&note.kind) {
            "the directory is encrypted, the inode is not"
        } else {
            return;
        };
        self.found(Finding::EntryEncryption {
            dir,
            name: shown(entry.name),
            ino: entry.inode,
            why,
        });
    }

    /// Checks a directory in its inode: its parent, then two regions of names.
    fn inline_directory(&mut self, dir: &mut Directory<'_>, inode: &Inode) {
        self.count_name(dir.ino);
        match inline_dir_parent(inode.block()) {
            Some(parent) if parent != 0 && parent <= dir.format.inodes => {
                self.dotdot(dir.ino, parent);
            }
            _ => self.found(Finding::DirDots {
                dir: dir.ino,
                logical: 0,
                why: "names no parent",
            }),
        }
        let set = XattrSet::parse_ibody(inode.attr_area(), dir.format.inodes).unwrap_or_default();
        let rest = set.get(xattr_index::SYSTEM, INLINE_XATTR);
        let rest = match rest.map(|attribute| &attribute.value) {
            Some(XattrValue::Bytes(rest)) => rest.as_slice(),
            _ => &[],
        };
        let first = inline_dir_region(inode.block()).unwrap_or_default();
        for region in [first, rest] {
            if let Err(error) = dir.format.check_region(region) {
                self.names_incomplete = true;
                self.found(Finding::DirBlockBad {
                    dir: dir.ino,
                    logical: 0,
                    error,
                });
            }
            let entries: Vec<_> = dir
                .format
                .region_entries(region)
                .map_while(Result::ok)
                .collect();
            for entry in entries.iter().filter(|entry| entry.inode != 0) {
                self.entry(dir, 0, region, entry);
            }
        }
    }
}
