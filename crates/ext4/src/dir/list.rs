//! Listing.
//!
//! # How it works
//! A position must stay valid while names are added and removed, and must not depend on the
//! previous call. Two orders have these properties:
//!
//! - *By place*, block and byte, in directories that never get an index: names never move there, so
//!   a position is the place after a name. Names of an inline directory have the places that they
//!   will have in the block that they move to.
//! - *By hash*, in directories that have an index or will get one with their second block: a name's
//!   hash never changes, wherever splits of blocks move it. The hash of the index decides first, so
//!   that the index leads to the next names; within one hash, a second hash that only this process
//!   knows. Only names equal in both, 63 bits, cannot be distinguished: a page that ends between
//!   them is continued from the first one.
//!
//! A thread that lists by hash reads all names of a leaf, and of leaves that continue its last
//! hash, sorts them and passes them on from the position.

use std::hash::BuildHasher;
use std::ops::ControlFlow;
use std::sync::LazyLock;

use sapwood_ext4_format::DirHasher;
use sapwood_jbd2::BufferRead;
use sapwood_vfs::{DirEntry, FileKind, Ino};

use super::htree::{self, Path};
use super::inline::Inline;
use super::shape::{Dir, Form};
use crate::Result;
use crate::inode::{Inode, table_place};
use crate::store::Store;

/// Receiver of names.
type Sink<'a> = dyn FnMut(DirEntry) -> ControlFlow<()> + 'a;

/// Bits of a byte in a block in a position by place: blocks have at most 64 KiB.
const PLACE_BITS: u32 = 17;

/// The second hash of names. Not the one on disk: that one is 0 for some kinds of hash, and known
/// to a caller that makes names that collide.
static SECOND: LazyLock<std::hash::RandomState> = LazyLock::new(std::hash::RandomState::new);

/// The place of a name as a position.
fn place(logical: u32, offset: usize) -> u64 {
    (u64::from(logical) << PLACE_BITS) | (offset as u64 & ((1 << PLACE_BITS) - 1))
}

/// The hashes of a name as a position. `major` is even.
fn key(major: u32, name: &[u8]) -> u64 {
    let second = SECOND.hash_one(name) as u32;
    (u64::from(major >> 1) << 32) | u64::from(second)
}

/// The kind of an inode whose entry has no type, from the inode table. A name that leads nowhere is
/// listed too: its look-up returns the error.
fn kind_in_table(store: &Store, ino: u32) -> FileKind {
    let mode = table_place(store, ino).ok().and_then(|(buffer, offset)| {
        let content = buffer.read();
        let bytes: [u8; 2] = content.get(offset..offset + 2)?.try_into().ok()?;
        FileKind::from_mode(u16::from_le_bytes(bytes).into())
    });
    mode.unwrap_or(FileKind::Regular)
}

/// Passes on one name.
fn emit(
    dir: &Dir<'_>,
    entry: &sapwood_ext4_format::DirEntry<'_>,
    next: u64,
    sink: &mut Sink<'_>,
) -> ControlFlow<()> {
    let kind = FileKind::from_entry_type(entry.file_type);
    let kind = kind.unwrap_or_else(|| kind_in_table(dir.store, entry.inode));
    sink(DirEntry {
        ino: Ino(entry.inode.into()),
        next,
        kind,
        name: entry.name.to_vec(),
    })
}

/// Lists blocks by place, from a position on.
fn by_place(
    dir: &Dir<'_>,
    blocks: impl Iterator<Item = u32>,
    from: u64,
    sink: &mut Sink<'_>,
) -> Result<()> {
    let first = u32::try_from(from >> PLACE_BITS).unwrap_or(u32::MAX);
    for logical in blocks.skip_while(|logical| *logical < first) {
        let buffer = dir.leaf(logical)?;
        let content = buffer.read();
        for entry in dir.format.entries(&content) {
            let entry = entry.map_err(|reason| dir.bad_block(buffer.block(), reason))?;
            let at = place(logical, entry.offset);
            if entry.inode == 0 || entry.is_dots() || at < from {
                continue;
            }
            if emit(dir, &entry, at + 1, sink).is_break() {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Lists a few names, by hash if there is one, else by their places in the first block.
fn few<'a>(
    dir: &Dir<'_>,
    names: impl Iterator<Item = (usize, sapwood_ext4_format::DirEntry<'a>)>,
    hasher: Option<&DirHasher>,
    from: u64,
    sink: &mut Sink<'_>,
) -> Result<()> {
    let mut items = Vec::new();
    for (offset, entry) in names {
        let at = match hasher {
            Some(hasher) => key(htree::hash(dir, hasher, entry.name)?.major, entry.name),
            None => place(0, offset),
        };
        if at >= from {
            items.push((at, entry));
        }
    }
    items.sort_unstable_by_key(|(at, entry)| (*at, entry.name));
    for (at, entry) in &items {
        if emit(dir, entry, at + 1, sink).is_break() {
            break;
        }
    }
    Ok(())
}

/// Lists a directory of one block that will have an index when it gets a second.
fn first_block(dir: &Dir<'_>, hasher: &DirHasher, from: u64, sink: &mut Sink<'_>) -> Result<()> {
    let buffer = dir.leaf(0)?;
    let content = buffer.read();
    let names = dir.format.entries(&content).flatten();
    let names = names
        .filter(|entry| entry.inode != 0 && !entry.is_dots())
        .map(|entry| (entry.offset, entry));
    few(dir, names, Some(hasher), from, sink)
}

/// A name in a leaf: its position, which leaf of the batch, and where in that.
type Item = (u64, usize, usize);

/// Lists by hash, from a position on.
///
/// # Errors
/// The index or a leaf is damaged (a name in the wrong leaf counts as that: its position would lead
/// elsewhere); errors of the device.
fn by_hash(dir: &Dir<'_>, hasher: &DirHasher, from: u64, sink: &mut Sink<'_>) -> Result<()> {
    let Ok(major) = u32::try_from(from >> 31) else {
        return Ok(());
    };
    let mut path = Path::to(dir, htree::root(dir)?.0, major & !1)?;
    let (mut batch, mut items): (Vec<BufferRead>, Vec<Item>) = (Vec::new(), Vec::new());
    loop {
        gather(dir, hasher, &path, &mut batch, &mut items)?;
        // Names of the last hash continue in the next leaf: they have to be sorted together.
        let last = path.high();
        let more = path.advance(dir)?;
        if more && last.is_some_and(|high| high & 1 == 1) {
            continue;
        }
        items.sort_unstable();
        for &(key, leaf, offset) in items.iter().filter(|item| item.0 >= from) {
            let entry = batch
                .get(leaf)
                .and_then(|content| dir.format.entry_at(content, offset).ok())
                .ok_or_else(|| dir.bad("a name vanished"))?;
            if emit(dir, &entry, key + 1, sink).is_break() {
                return Ok(());
            }
        }
        if !more {
            return Ok(());
        }
        batch.clear();
        items.clear();
    }
}

/// Adds the names of the leaf at `path` to a batch.
fn gather(
    dir: &Dir<'_>,
    hasher: &DirHasher,
    path: &Path,
    batch: &mut Vec<BufferRead>,
    items: &mut Vec<Item>,
) -> Result<()> {
    let leaf = dir.leaf(path.leaf)?;
    let content = leaf.read();
    for entry in dir.format.entries(&content) {
        let entry = entry.map_err(|reason| dir.bad_block(leaf.block(), reason))?;
        if entry.inode == 0 {
            continue;
        }
        let hash = htree::hash(dir, hasher, entry.name)?.major;
        if !path.holds(hash) {
            let reason = format!(
                "a name with hash {hash:#010x} in the leaf from {:#010x} on",
                path.low
            );
            return Err(dir.bad_block(leaf.block(), reason));
        }
        items.push((key(hash, entry.name), batch.len(), entry.offset));
    }
    batch.push(content);
    Ok(())
}

/// Lists from position `from` on; see [`readdir`](sapwood_vfs::FileSystem::readdir). The caller
/// holds `io` of the directory.
///
/// # Errors
/// It is damaged; errors of the device.
pub(crate) fn readdir(store: &Store, dir: &Inode, from: u64, sink: &mut Sink<'_>) -> Result<()> {
    let dir = &Dir::open(store, dir)?;
    dir.check_readable()?;
    let hasher = match dir.form {
        Form::Indexed => htree::root(dir)?.1,
        Form::Inline | Form::Linear if dir.may_index() => htree::default_hasher(dir),
        _ => None,
    };
    match (dir.form, &hasher) {
        (Form::Inline, hasher) => {
            let inline = Inline::read(dir)?;
            few(dir, inline.names(dir), hasher.as_ref(), from, sink)
        }
        (Form::Indexed, Some(hasher)) => by_hash(dir, hasher, from, sink),
        // Names that cannot be hashed cannot be written either: no split moves them.
        (Form::Indexed, None) => by_place(dir, htree::leaves(dir)?.into_iter(), from, sink),
        (Form::Linear, Some(hasher)) if dir.blocks == 1 => first_block(dir, hasher, from, sink),
        (Form::Linear, _) => by_place(dir, 0..dir.blocks, from, sink),
    }
}
