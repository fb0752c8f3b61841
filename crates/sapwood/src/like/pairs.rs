//! The inodes of the older tree that become inodes of the new one.
//!
//! 1. An inode becomes the one with its path, if both have the same type, device number and target.
//! 2. A remaining file becomes a new file with the same bytes: it was renamed.
//! 3. Then one with the same path when digits are ignored: `lib/x-6.1.0-17/a` and
//!    `lib/x-6.1.0-18/a`.
//! 4. Then one with the same name in any directory.
//!
//! A file that becomes a different one costs nothing: its blocks that differ are written again.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use sha2::{Digest as _, Sha256};

use super::{Result, VERITY, at, check, child, names, sealed};
use crate::progress::Stop;
use crate::tree::{HeldInode, Walker, join, split_last};
use crate::vfs::{self, Attr, FileKind, Ino};

/// Bytes of a file that are hashed at a time.
const PIECE: usize = 128 << 10;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    old: HashMap<Ino, Ino>,
    kept: HashSet<Ino>,
}

/// A file that only one side has.
struct Alone {
    ino: Ino,
    size: u64,
    path: Vec<u8>,
}

impl Pairs {
    /// The inode of the older tree that becomes an inode of the new one.
    pub(super) fn old_of(&self, new: Ino) -> Option<Ino> {
        self.old.get(&new).copied()
    }

    /// Whether an inode of the older tree becomes one of the new tree.
    pub(super) fn keeps(&self, old: Ino) -> bool {
        self.kept.contains(&old)
    }

    /// Pairs two inodes that have no counterpart yet.
    fn add(&mut self, old: Ino, new: Ino) -> bool {
        let Entry::Vacant(entry) = self.old.entry(new) else {
            return false;
        };
        if !self.kept.insert(old) {
            return false;
        }
        entry.insert(old);
        true
    }
}

/// Finds all pairs.
pub(super) fn find(
    there: &dyn vfs::FileSystem,
    new: &dyn vfs::FileSystem,
    stop: &Stop,
) -> Result<Pairs> {
    let mut pairs = Pairs::default();
    let added = by_path(&mut pairs, there, new, stop)?;
    if added.is_empty() {
        return Ok(pairs);
    }
    let removed = only_there(&pairs, there, stop)?;
    by_content(&mut pairs, (there, &removed), (new, &added), stop)?;
    by_key(&mut pairs, &removed, &added, without_digits);
    by_key(&mut pairs, &removed, &added, |path| {
        split_last(path).1.to_owned()
    });
    Ok(pairs)
}

/// Pairs inodes with the same path. Returns the files that only the new tree has.
fn by_path(
    pairs: &mut Pairs,
    there: &dyn vfs::FileSystem,
    new: &dyn vfs::FileSystem,
    stop: &Stop,
) -> Result<Vec<Alone>> {
    let mut added = Vec::new();
    let mut seen = HashSet::new();
    let top = HeldInode::root(new).map_err(at("read", b""))?;
    let old = HeldInode::root(there).map_err(at("read", b""))?;
    pairs.add(old.ino(), top.ino());
    let mut waiting = vec![(top, Some(old), Vec::new())];
    while let Some((dir, old_dir, path)) = waiting.pop() {
        check(stop)?;
        for name in names(&dir).map_err(at("list", &path))? {
            let path = join(&path, &name);
            let step = || {
                let node = dir.child(&name)?;
                let before = match &old_dir {
                    Some(old_dir) => child(old_dir, &name)?,
                    None => None,
                };
                let before = match before {
                    Some(before) if is_alike(&before, &node)? => Some(before),
                    _ => None,
                };
                Ok((node, before))
            };
            let (node, before) = step().map_err(at("compare", &path))?;
            let paired = before.filter(|before| pairs.add(before.ino(), node.ino()));
            if node.is_dir() {
                waiting.push((node, paired, path));
            } else if is_file(&node)
                && pairs.old_of(node.ino()).is_none()
                && seen.insert(node.ino())
            {
                added.push(Alone {
                    ino: node.ino(),
                    size: node.attr().size,
                    path,
                });
            }
        }
    }
    // A later name of it may have had a counterpart.
    added.retain(|one| pairs.old_of(one.ino).is_none());
    added.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(added)
}

fn is_file(node: &HeldInode<'_>) -> bool {
    is_plain(node.attr())
}

/// Whether an inode is a file with bytes that can be changed.
fn is_plain(attr: &Attr) -> bool {
    attr.kind == FileKind::Regular && attr.size > 0 && attr.layout & VERITY == 0
}

/// Whether an inode can become another one by changes of content and attributes.
fn is_alike(old: &HeldInode<'_>, new: &HeldInode<'_>) -> vfs::Result<bool> {
    let (then, now) = (old.attr(), new.attr());
    if (then.kind, then.rdev) != (now.kind, now.rdev) {
        return Ok(false);
    }
    if sealed(old)? != sealed(new)? {
        return Ok(false);
    }
    Ok(now.kind != FileKind::Symlink || old.target()? == new.target()?)
}

/// The files of the older tree without a counterpart, sorted by path.
fn only_there(pairs: &Pairs, there: &dyn vfs::FileSystem, stop: &Stop) -> Result<Vec<Alone>> {
    let mut removed = Vec::new();
    let mut seen = HashSet::new();
    let mut walker = Walker::new(there.root());
    let walked = loop {
        match walker.next(there) {
            Ok(Some((_, attr))) => {
                if is_plain(&attr) && !pairs.keeps(attr.ino) && seen.insert(attr.ino) {
                    removed.push(Alone {
                        ino: attr.ino,
                        size: attr.size,
                        path: walker.path().to_owned(),
                    });
                }
            }
            Ok(None) => break Ok(()),
            Err(error) => break Err(at("list", walker.path())(error)),
        }
        if stop.is_stopped() {
            break check(stop);
        }
    };
    walker.end(there);
    walked?;
    removed.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(removed)
}

/// Pairs files with the same bytes.
fn by_content(
    pairs: &mut Pairs,
    (there, removed): (&dyn vfs::FileSystem, &[Alone]),
    (new, added): (&dyn vfs::FileSystem, &[Alone]),
    stop: &Stop,
) -> Result<()> {
    let sizes = |alone: &[Alone]| -> BTreeSet<u64> { alone.iter().map(|one| one.size).collect() };
    let (before, after) = (sizes(removed), sizes(added));
    let mut known: HashMap<[u8; 32], VecDeque<Ino>> = HashMap::new();
    for one in removed.iter().filter(|one| after.contains(&one.size)) {
        check(stop)?;
        let digest = digest(there, one).map_err(at("read", &one.path))?;
        known.entry(digest).or_default().push_back(one.ino);
    }
    for one in added.iter().filter(|one| before.contains(&one.size)) {
        check(stop)?;
        let digest = digest(new, one).map_err(at("read", &one.path))?;
        if let Some(old) = known.get_mut(&digest).and_then(VecDeque::pop_front) {
            pairs.add(old, one.ino);
        }
    }
    Ok(())
}

fn digest(fs: &dyn vfs::FileSystem, file: &Alone) -> vfs::Result<[u8; 32]> {
    let mut hash = Sha256::new();
    let mut piece = vec![0; PIECE];
    let node = HeldInode::new(fs, fs.reference(file.ino)?);
    let mut offset = 0;
    while offset < file.size {
        let count = fs.read(node.ino(), offset, &mut piece)?;
        if count == 0 {
            break;
        }
        hash.update(piece.get(..count).unwrap_or_default());
        offset += count as u64;
    }
    Ok(hash.finalize().into())
}

/// Pairs files whose paths have the same key, in the order of their paths.
fn by_key(pairs: &mut Pairs, removed: &[Alone], added: &[Alone], key: impl Fn(&[u8]) -> Vec<u8>) {
    let mut known: HashMap<Vec<u8>, VecDeque<Ino>> = HashMap::new();
    for one in removed.iter().filter(|one| !pairs.keeps(one.ino)) {
        known.entry(key(&one.path)).or_default().push_back(one.ino);
    }
    for one in added {
        if pairs.old_of(one.ino).is_none()
            && let Some(old) = known.get_mut(&key(&one.path)).and_then(VecDeque::pop_front)
        {
            pairs.add(old, one.ino);
        }
    }
}

/// A path with one mark for each run of digits.
fn without_digits(path: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(path.len());
    for byte in path {
        let byte = if byte.is_ascii_digit() { b'0' } else { *byte };
        if byte != b'0' || key.last() != Some(&b'0') {
            key.push(byte);
        }
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_in_paths_have_one_key() {
        let key = without_digits(b"lib/modules/6.1.0-17-amd64/x.ko");
        assert_eq!(key, without_digits(b"lib/modules/6.12.3-9-amd64/x.ko"));
        assert_ne!(key, without_digits(b"lib/modules/6.1.0-17-amd64/y.ko"));
    }

    #[test]
    fn an_inode_has_one_counterpart() {
        let mut pairs = Pairs::default();
        assert!(pairs.add(Ino(1), Ino(11)));
        assert!(!pairs.add(Ino(1), Ino(12)) && !pairs.add(Ino(2), Ino(11)));
        assert!(pairs.keeps(Ino(1)) && !pairs.keeps(Ino(2)));
        assert_eq!(
            (pairs.old_of(Ino(11)), pairs.old_of(Ino(12))),
            (Some(Ino(1)), None)
        );
    }
}
