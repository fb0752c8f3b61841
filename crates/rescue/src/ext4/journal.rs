//! Copies of blocks in the journal, also of transactions that were written back long ago.
//!
//! # How it works
//! A journal is a ring: until its blocks are overwritten, it has the last contents of many metadata
//! blocks. Every block of the journal that looks like a descriptor is read, whatever the journal's
//! superblock says, so that a journal whose superblock is lost still serves. A copy is used only
//! where its content validates.

use std::ops::Range;

use sapwood_block::Device;

/// First word of a block that the journal itself wrote (kernel documentation, "Journal (jbd2)").
const MAGIC: u32 = 0xc03b_3998;
const DESCRIPTOR: u32 = 1;
const HEADER: usize = 12;
/// Flags of a tag.
const ESCAPED: u32 = 1;
const SAME_UUID: u32 = 2;
const LAST: u32 = 8;
/// Most copies that are remembered.
const MOST: usize = 4_000_000;

/// The form of a descriptor's tags.
#[derive(Debug, Clone, Copy)]
pub(super) struct TagForm {
    /// Checksums of version 3: tags of 16 bytes.
    pub(super) version3: bool,
    /// Checksums of version 2: two further bytes.
    pub(super) version2: bool,
    /// Block numbers have 64 bits.
    pub(super) wide: bool,
}

/// A copy of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Copy {
    pub(super) home: u64,
    pub(super) sequence: u32,
    /// Block of the device that has the copy.
    at: u64,
    escaped: bool,
}

/// The copies in a journal.
#[derive(Debug, Default)]
pub(super) struct Copies {
    /// By home block, then newest first.
    all: Vec<Copy>,
    block_size: usize,
    /// Number of the newest transaction.
    newest: u32,
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_be_bytes(word.try_into().ok()?))
}

impl Copies {
    /// Reads a journal whose blocks are these blocks of the device, in order. The first one has the
    /// journal's superblock.
    pub(super) fn read(
        device: &dyn Device,
        blocks: &[u64],
        block_size: usize,
        form: TagForm,
    ) -> Self {
        let mut all = Vec::new();
        let mut bytes = vec![0; block_size];
        let mut at = 1;
        while at < blocks.len() && all.len() < MOST {
            let place = blocks[at].saturating_mul(block_size as u64);
            let read = device.read_at(place, &mut bytes).is_ok();
            let is_descriptor =
                read && word(&bytes, 0) == Some(MAGIC) && word(&bytes, 4) == Some(DESCRIPTOR);
            if !is_descriptor {
                at += 1;
                continue;
            }
            let sequence = word(&bytes, 8).unwrap_or_default();
            let tags = tags(&bytes, form);
            for (number, (home, escaped)) in tags.iter().enumerate() {
                // The ring begins again after the superblock.
                let mut copy = at + 1 + number;
                if copy >= blocks.len() {
                    copy = copy - blocks.len() + 1;
                }
                if let Some(at) = blocks.get(copy) {
                    all.push(Copy {
                        home: *home,
                        sequence,
                        at: *at,
                        escaped: *escaped,
                    });
                }
            }
            // The copies may look like descriptors, and belong to this one.
            at += 1 + tags.len();
        }
        // Sequence numbers wrap around; the distance to the newest orders them.
        let newest = all
            .iter()
            .map(|copy| copy.sequence)
            .max()
            .unwrap_or_default();
        all.sort_by_key(|copy| (copy.home, newest.wrapping_sub(copy.sequence)));
        Self {
            all,
            block_size,
            newest,
        }
    }

    /// Copies of a block, newest first.
    fn of(&self, home: u64) -> &[Copy] {
        let start = self.all.partition_point(|copy| copy.home < home);
        let end = self.all.partition_point(|copy| copy.home <= home);
        self.all.get(start..end).unwrap_or_default()
    }

    /// Contents of a block, newest first.
    pub(super) fn contents<'c>(
        &'c self,
        device: &'c dyn Device,
        home: u64,
    ) -> impl Iterator<Item = Vec<u8>> + 'c {
        self.versions(device, home).map(|(_, bytes)| bytes)
    }

    /// Contents of a block with their ages, newest first. An age is the number of transactions
    /// after the content's.
    pub(super) fn versions<'c>(
        &'c self,
        device: &'c dyn Device,
        home: u64,
    ) -> impl Iterator<Item = (u32, Vec<u8>)> + 'c {
        self.of(home).iter().filter_map(move |copy| {
            let mut bytes = vec![0; self.block_size];
            let place = copy.at.checked_mul(self.block_size as u64)?;
            device.read_at(place, &mut bytes).ok()?;
            if copy.escaped {
                bytes.get_mut(..4)?.copy_from_slice(&MAGIC.to_be_bytes());
            }
            Some((self.newest.wrapping_sub(copy.sequence), bytes))
        })
    }

    /// Home blocks that have a copy, in rising order.
    pub(super) fn homes(&self) -> Vec<u64> {
        let mut homes: Vec<u64> = self.all.iter().map(|copy| copy.home).collect();
        homes.dedup();
        homes
    }

    /// Whether a block of a range has a copy.
    pub(super) fn any_in(&self, homes: Range<u64>) -> bool {
        let first = self.all.partition_point(|copy| copy.home < homes.start);
        self.all
            .get(first)
            .is_some_and(|copy| copy.home < homes.end)
    }

    /// Whether a block has a copy.
    pub(super) fn has(&self, home: u64) -> bool {
        !self.of(home).is_empty()
    }

    /// Number of copies.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }
}

/// The home blocks of a descriptor, and whether their copies are escaped.
fn tags(bytes: &[u8], form: TagForm) -> Vec<(u64, bool)> {
    let mut tags = Vec::new();
    let mut at = HEADER;
    while let Some(low) = word(bytes, at) {
        let Some(second) = word(bytes, at + 4) else {
            break;
        };
        let (flags, high, size) = if form.version3 {
            (second, word(bytes, at + 8), 16)
        } else {
            let high = if form.wide {
                word(bytes, at + 8)
            } else {
                Some(0)
            };
            let size = 8 + if form.wide { 4 } else { 0 } + if form.version2 { 2 } else { 0 };
            (second & 0xffff, high, size)
        };
        let high = if form.wide { high.unwrap_or(0) } else { 0 };
        tags.push((u64::from(high) << 32 | u64::from(low), flags & ESCAPED != 0));
        at += size;
        if flags & SAME_UUID == 0 {
            at += 16;
        }
        if flags & LAST != 0 {
            break;
        }
    }
    tags
}

/// The form of the tags, from the journal's superblock if it is valid.
pub(super) fn form(superblock: &[u8], fallback: TagForm) -> TagForm {
    let is_superblock = word(superblock, 0) == Some(MAGIC) && word(superblock, 4) == Some(4);
    match word(superblock, 0x28).filter(|_| is_superblock) {
        Some(features) => TagForm {
            wide: features & 2 != 0,
            version2: features & 8 != 0,
            version3: features & 0x10 != 0,
        },
        None => fallback,
    }
}
