//! Entries of directories, also of damaged ones.

use sapwood_ext4_format::{
    DirFormat, INLINE_XATTR, Incompat, Inode, InodeFlags, XattrSet, XattrValue, inline_dir_parent,
    inline_dir_region, special_ino, xattr_index,
};

use super::map::{self, Life, Mapped};
use super::volume::Volume;

/// An entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) ino: u32,
    pub(super) kind: u8,
    pub(super) name: Vec<u8>,
}

/// The entries of a block, and whether the block is whole.
#[derive(Debug, Default)]
pub(super) struct Listed {
    pub(super) entries: Vec<Entry>,
    /// Inode of `..`, if the block has it.
    pub(super) parent: Option<u32>,
    pub(super) whole: bool,
}

/// Blocks of a directory.
pub(super) fn blocks(volume: &Volume, inode: &Inode) -> u32 {
    if inode.flags().contains(InodeFlags::INLINE_DATA) {
        return 1;
    }
    let size = inode.size(&volume.geometry) / volume.block_size() as u64;
    // A directory has no holes.
    let most = volume.device.size() / volume.block_size() as u64;
    u32::try_from(size.min(most)).unwrap_or(u32::MAX)
}

fn format(volume: &Volume, inode: &Inode) -> DirFormat {
    let features = volume.geometry.features();
    let both = InodeFlags::ENCRYPT | InodeFlags::CASEFOLD;
    DirFormat {
        block_size: volume.block_size(),
        checksums: volume.geometry.metadata_csum(),
        file_type: features.has_incompat(Incompat::FILETYPE),
        hash_in_entry: inode.flags().contains(both),
        large_dir: features.has_incompat(Incompat::LARGEDIR),
        inodes: volume.geometry.inodes_count(),
    }
}

/// Lists block `number` of a directory. Also returns how many of the following blocks are known to
/// be empty.
pub(super) fn list(volume: &Volume, ino: u32, inode: &Inode, number: u32) -> (Listed, u32) {
    if inode.flags().contains(InodeFlags::INLINE_DATA) {
        return (inline(volume, inode), 0);
    }
    let physical = match map::find(volume, (ino, inode, Life::InUse), number) {
        Mapped::Data { physical, .. } => physical,
        Mapped::Hole { len } | Mapped::Lost { len, .. } => {
            let further = u32::try_from(len.saturating_sub(1)).unwrap_or(u32::MAX);
            return (Listed::default(), further);
        }
    };
    let format = format(volume, inode);
    let seed = volume.geometry.inode_seed(ino, inode.generation());
    let indexed = inode.flags().contains(InodeFlags::INDEX);
    let whole = |bytes: &[u8]| {
        let listed = parse(&format, bytes, seed, indexed, number);
        listed.whole.then_some(listed)
    };
    let listed = volume.content(physical, whole).unwrap_or_else(|| {
        let bytes = volume.block(physical).unwrap_or_default();
        parse(&format, &bytes, seed, indexed, number)
    });
    (listed, 0)
}

/// The entries that block `number` of a directory had when it had these bytes; none if it did not
/// have them.
pub(super) fn entries_of(
    volume: &Volume,
    (ino, inode): (u32, &Inode),
    number: u32,
    bytes: &[u8],
) -> Vec<Entry> {
    let format = format(volume, inode);
    let seed = volume.geometry.inode_seed(ino, inode.generation());
    let indexed = inode.flags().contains(InodeFlags::INDEX);
    let listed = parse(&format, bytes, seed, indexed, number);
    let entries = listed.entries.into_iter();
    entries.filter(|_| listed.whole).collect()
}

/// Names in the free space after the entries of a directory's block.
pub(super) fn free_space(volume: &Volume, inode: &Inode, bytes: &[u8]) -> Vec<Entry> {
    let format = format(volume, inode);
    let mut found = Vec::new();
    for entry in format.entries(bytes).map_while(Result::ok) {
        let used = match entry.inode {
            0 => 0,
            _ => format.entry_size(entry.name),
        };
        let mut at = entry.offset.saturating_add(used);
        while at < entry.end() {
            let old = format.entry_at(bytes, at).ok();
            let old = old.filter(|old| {
                let has_name = !old.name.is_empty() && !old.is_dots();
                old.inode != 0 && has_name && is_plain(old.name) && old.end() <= entry.end()
            });
            at += match old {
                None => 4,
                Some(old) => {
                    found.push(Entry {
                        ino: old.inode,
                        kind: old.file_type,
                        name: old.name.to_vec(),
                    });
                    format.entry_size(old.name)
                }
            };
        }
    }
    found
}

/// Whether a name has no slash and no NUL.
fn is_plain(name: &[u8]) -> bool {
    !name.iter().any(|byte| matches!(byte, 0 | b'/'))
}

fn parse(format: &DirFormat, bytes: &[u8], seed: u32, indexed: bool, number: u32) -> Listed {
    let mut listed = Listed {
        whole: true,
        ..Listed::default()
    };
    let word = |at: usize| {
        bytes
            .get(at..at + 4)
            .map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    };
    let first_len = sapwood_ext4_format::rec_len_decode(word(4) as u16, format.block_size);
    if word(0) == 0 && first_len >= format.usable() && !bytes.is_empty() {
        // An empty block, or a node of the index.
        return listed;
    }
    let is_index_root = indexed && number == 0;
    for entry in format.entries(bytes) {
        match entry {
            Ok(entry) if entry.inode == 0 => {}
            Ok(entry) if entry.name == b".." => listed.parent = Some(entry.inode),
            Ok(entry) if entry.is_dots() => {}
            Ok(entry) if !is_plain(entry.name) => listed.whole = false,
            Ok(entry) => listed.entries.push(Entry {
                ino: entry.inode,
                kind: entry.file_type,
                name: entry.name.to_vec(),
            }),
            Err(_) => {
                listed.whole = false;
                break;
            }
        }
    }
    if is_index_root {
        // `..` of an index root covers the index, which is no entry.
        listed.whole = word(0) != 0 && bytes.get(8..9) == Some(b".");
        listed.parent = Some(word(12)).filter(|ino| *ino != 0);
        listed.entries.clear();
    } else if format.verify(bytes, seed).is_err() {
        listed.whole = false;
    }
    listed
}

/// The entries of an inline directory.
fn inline(volume: &Volume, inode: &Inode) -> Listed {
    let format = format(volume, inode);
    let mut listed = Listed {
        parent: inline_dir_parent(inode.block()),
        whole: true,
        ..Listed::default()
    };
    let first = inline_dir_region(inode.block()).map(<[u8]>::to_vec);
    let second = inline_rest(volume, inode);
    for region in first.into_iter().chain(second) {
        for entry in format.region_entries(&region) {
            match entry {
                Ok(entry) if entry.inode == 0 || entry.is_dots() => {}
                Ok(entry) if !is_plain(entry.name) => listed.whole = false,
                Ok(entry) => listed.entries.push(Entry {
                    ino: entry.inode,
                    kind: entry.file_type,
                    name: entry.name.to_vec(),
                }),
                Err(_) => listed.whole = false,
            }
        }
    }
    listed
}

/// The part of inline data after the first 60 bytes.
pub(super) fn inline_rest(volume: &Volume, inode: &Inode) -> Option<Vec<u8>> {
    let set = XattrSet::parse_ibody(inode.attr_area(), volume.geometry.inodes_count()).ok()?;
    match &set.get(xattr_index::SYSTEM, INLINE_XATTR)?.value {
        XattrValue::Bytes(bytes) => Some(bytes.clone()),
        XattrValue::Inode { .. } => None,
    }
}

/// The parent of a directory, from its `..`.
pub(super) fn parent(volume: &Volume, ino: u32, inode: &Inode) -> u32 {
    let listed = list(volume, ino, inode, 0).0;
    listed.parent.unwrap_or(special_ino::ROOT)
}
