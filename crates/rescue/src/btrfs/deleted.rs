//! Files of older states that the newest state no longer has.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use sapwood_btrfs_format::{Block, InodeItem, Key, kind, objectid};
use sapwood_vfs::{Attr, Error, FileKind, Ino, SeekFrom};

use super::files::{Files, pack};
use super::{Choice, Image};
use crate::Result;
use crate::deleted::{Deleted, Found, NameSource, OnDeleted};
use crate::tree::Tree;

/// Most inodes that are remembered.
const MOST: usize = 4_000_000;
/// Most directories on a path.
const DEPTH: usize = 1000;
/// Bytes that are read at once.
const PIECE: u64 = 64 << 10;

/// Identity of an inode over time: the number, and the generation that created it.
type Identity = (Ino, u64);

impl Image {
    /// Calls `each` for regular files that the newest state lacks, until it breaks. Reads at most
    /// `most` older states. A file in several states is listed once, as in the newest of them.
    ///
    /// # Errors
    /// The errors of [`files`](Self::files).
    pub fn deleted(&self, most: usize, each: &mut OnDeleted<'_>) -> Result<()> {
        let mut known: HashSet<Identity> = HashSet::new();
        let newest = self.files(Choice::Newest)?;
        walk(&newest, &mut |_, attr| {
            known.insert((attr.ino, attr.generation));
            go_on(known.len() < MOST)
        });
        let mut seen = HashSet::new();
        self.has_unknown(&newest, &mut seen, &known);
        let mut ended = false;
        for state in self.states(most.saturating_add(1)).iter().skip(1) {
            let generation = state.generation;
            let files = Arc::new(self.files(Choice::Generation(generation))?);
            if !self.has_unknown(&files, &mut seen, &known) {
                continue;
            }
            let tree: Arc<dyn Tree> = files.clone();
            walk(&files, &mut |path, attr| {
                if !known.insert((attr.ino, attr.generation)) {
                    return ControlFlow::Continue(());
                }
                let flow = each(Found {
                    file: Deleted {
                        generation: Some(generation),
                        path: path.to_vec(),
                        name: NameSource::Directory,
                        kind: attr.kind,
                        size: attr.size,
                        mtime: attr.mtime,
                        readable: 0,
                    },
                    tree: &tree,
                    ino: attr.ino,
                    readable: &|| readable(&files, attr),
                });
                ended = flow.is_break();
                go_on(!ended && known.len() < MOST)
            });
            if ended || known.len() >= MOST {
                break;
            }
        }
        Ok(())
    }
}

/// The part of a leaf that a subvolume has: the id, the address and the generation of the leaf, and
/// the keys. A leaf that fills a gap may be cut.
type SeenLeaf = (u64, u64, u64, Key, Option<Key>);

impl Image {
    /// Whether a state has regular files that are not known, in leaves that no newer state has.
    /// Marks its leaves as seen.
    fn has_unknown(
        &self,
        files: &Files,
        seen: &mut HashSet<SeenLeaf>,
        known: &HashSet<Identity>,
    ) -> bool {
        let mut found = false;
        let trees = self.trees(&files.roots).into_iter().map(|(id, _)| id);
        for id in trees.filter(|id| objectid::is_fs_tree(*id)) {
            for leaf in &files.subvolume(id).leaves.leaves {
                let (logical, generation) = (leaf.logical, leaf.generation);
                let part = (id, logical, generation, leaf.span.start, leaf.span.end);
                if seen.insert(part) && !found {
                    let bytes = self.nodes.bytes(logical, generation);
                    found = bytes.is_some_and(|bytes| lists_unknown(&bytes, id, known));
                }
            }
        }
        found
    }
}

/// Whether a leaf of a subvolume has the inode of a regular file that is not known.
fn lists_unknown(leaf: &[u8], subvolume: u64, known: &HashSet<Identity>) -> bool {
    let Ok(block) = Block::new(leaf) else {
        return false;
    };
    let entries = (0..block.nritems()).filter_map(|slot| block.entry(slot).ok());
    let mut inodes = entries.filter(|(key, _)| key.kind == kind::INODE_ITEM);
    inodes.any(|(key, data)| {
        InodeItem::read(data).is_ok_and(|item| {
            let identity = (pack(subvolume, key.objectid), item.generation.get());
            let kind = FileKind::from_mode(item.mode.get());
            kind == Some(FileKind::Regular) && !known.contains(&identity)
        })
    })
}

fn go_on(wanted: bool) -> ControlFlow<()> {
    if wanted {
        ControlFlow::Continue(())
    } else {
        ControlFlow::Break(())
    }
}

/// Calls `each` for every regular file, with its path, until it breaks. A directory is entered
/// once. Unreadable files and directories are left out.
fn walk(files: &Files, each: &mut dyn FnMut(&[u8], &Attr) -> ControlFlow<()>) {
    let mut entered = HashSet::new();
    let mut todo = vec![(files.root(), Vec::new(), 0)];
    while let Some((dir, path, depth)) = todo.pop() {
        if depth > DEPTH || !entered.insert(dir) {
            continue;
        }
        for (ino, kind, name) in names(files, dir) {
            let path = [&path[..], b"/", &name].concat();
            if kind == FileKind::Directory {
                todo.push((ino, path, depth + 1));
                continue;
            }
            let attr = files.attr(ino).ok();
            let Some(attr) = attr.filter(|attr| attr.kind == FileKind::Regular) else {
                continue;
            };
            if each(&path, &attr).is_break() {
                return;
            }
        }
    }
}

fn names(files: &Files, dir: Ino) -> Vec<(Ino, FileKind, Vec<u8>)> {
    let mut names = Vec::new();
    // Damage of the directory leaves the names that were found.
    let _ = files.entries(dir, 0, &mut |entry| {
        names.push((entry.ino, entry.kind, entry.name));
        go_on(names.len() < MOST)
    });
    names
}

/// Bytes of a file that can be read, holes included. A lost range ends the count.
fn readable(files: &Files, attr: &Attr) -> u64 {
    let mut buf = vec![0; PIECE as usize];
    let mut unreadable = 0_u64;
    let mut at = 0;
    while at < attr.size {
        let data = match files.seek(attr.ino, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(Error::NoSuchOffset) => break,
            Err(_) => return at.saturating_sub(unreadable),
        };
        let len = (attr.size - data).min(PIECE);
        if files
            .read(attr.ino, data, &mut buf[..len as usize])
            .is_err()
        {
            unreadable += len;
        }
        at = data.saturating_add(len);
    }
    attr.size.saturating_sub(unreadable)
}
