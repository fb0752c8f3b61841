//! Files of older states that the newest state no longer has.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use sapwood_vfs::{Attr, Error, FileKind, Ino, SeekFrom};

use super::files::Files;
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
        let mut ended = false;
        for state in self.states(most.saturating_add(1)).iter().skip(1) {
            let generation = state.generation;
            let files = Arc::new(self.files(Choice::Generation(generation))?);
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
