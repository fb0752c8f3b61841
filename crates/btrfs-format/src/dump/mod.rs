//! Readable dumps of blocks and superblocks: one line per item, in the manner of `btrfs
//! inspect-internal dump-tree`. An item that does not parse is printed as an error in its line.

mod item;
mod superblock;

use std::fmt;

use crate::block::{Block, header_flag};
use crate::objectid;

pub(crate) use item::DumpItem;
pub use superblock::DumpSuper;

/// Prints a tree block: a line for the header, then one per item or pointer.
pub struct DumpBlock<'a>(pub &'a [u8]);

impl fmt::Display for DumpBlock<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let block = match Block::new(self.0) {
            Ok(block) => block,
            Err(err) => return writeln!(f, "no tree block: {err}"),
        };
        let kind = if block.is_leaf() { "leaf" } else { "node" };
        write!(f, "{kind} {} of {}", block.bytenr(), Tree(block.owner()))?;
        if !block.is_leaf() {
            write!(f, " level {}", block.level())?;
        }
        write!(f, " generation {}", block.generation())?;
        write!(f, " items {} free {}", block.nritems(), block.free_space())?;
        let flags = block.header().flags.get();
        if flags & header_flag::WRITTEN == 0 {
            write!(f, " not-written")?;
        }
        if flags & header_flag::RELOC != 0 {
            write!(f, " reloc")?;
        }
        writeln!(f)?;
        for (slot, item) in block.items().iter().enumerate() {
            let key = item.key.get();
            write!(
                f,
                "{slot:4} {key} at {}+{}",
                item.offset.get(),
                item.size.get()
            )?;
            match block.item_data(slot) {
                Ok(data) => writeln!(f, "{}", DumpItem { key, data })?,
                Err(err) => writeln!(f, ": {err}")?,
            }
        }
        for (slot, ptr) in block.ptrs().iter().enumerate() {
            let (key, child) = (ptr.key.get(), ptr.blockptr.get());
            writeln!(
                f,
                "{slot:4} {key} -> {child} generation {}",
                ptr.generation.get()
            )?;
        }
        Ok(())
    }
}

/// Prints a tree's name, or its number if it has none.
struct Tree(u64);

impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match objectid::tree_name(self.0) {
            Some(name) => f.write_str(name),
            None => write!(f, "{}", self.0),
        }
    }
}

/// Prints bytes as text, with escapes for everything but printable ASCII.
struct Text<'a>(&'a [u8]);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match std::str::from_utf8(self.0) {
            Ok(text) => write!(f, "{text:?}"),
            Err(_) => write!(f, "\"{}\"", self.0.escape_ascii()),
        }
    }
}

/// Prints a uuid, or `-` for zeros.
struct Uuid<'a>(&'a [u8; 16]);

impl fmt::Display for Uuid<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == &[0; 16] {
            return f.write_str("-");
        }
        write!(f, "{}", uuid::Uuid::from_bytes(*self.0).hyphenated())
    }
}
