//! Inodes in use that no directory leads to.
//!
//! # How it works
//! One pass over the inode tables records the inodes in use and the directories. A second pass
//! lists every directory, whether or not another one refers to it, and records the inodes that it
//! names. An inode that is in use and not named gets its number as a name. A directory keeps
//! everything below it. Several threads share the groups, and then the directories.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use parking_lot::Mutex;
use sapwood_ext4_format::{InodeFlags, special_ino};

use super::dir;
use super::volume::{Volume, is_in_use};
use crate::parallel;

/// Most inodes that are listed.
const MOST: usize = 1_000_000;
/// Inodes of a part of the set.
const PART: u32 = 1 << 16;
/// Bytes of an inode table that are read at once.
const TABLE_PART: usize = 256 << 10;
/// Directories that a thread takes at once.
const DIRECTORIES: usize = 64;

/// A set of inode numbers.
#[derive(Debug, Default)]
struct Inodes(BTreeMap<u32, Box<[u64]>>);

impl Inodes {
    fn add(&mut self, ino: u32) {
        let part = self.0.entry(ino / PART);
        let part = part.or_insert_with(|| vec![0; PART as usize / 64].into());
        part[(ino % PART / 64) as usize] |= 1 << (ino % 64);
    }

    fn has(&self, ino: u32) -> bool {
        let part = self.0.get(&(ino / PART));
        part.is_some_and(|part| part[(ino % PART / 64) as usize] & 1 << (ino % 64) != 0)
    }

    fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().flat_map(|(part, words)| {
            words.iter().enumerate().flat_map(move |(at, word)| {
                let bits = (0..64).filter(move |bit| word & 1 << bit != 0);
                bits.map(move |bit| part * PART + at as u32 * 64 + bit)
            })
        })
    }
}

/// The inodes that passed, of several threads.
#[derive(Debug, Default)]
struct Passed {
    used: Inodes,
    count: u64,
    directories: Vec<u32>,
}

/// Records the inodes in use.
fn used(volume: &Volume) -> Passed {
    let passed = Mutex::new(Passed::default());
    let groups = volume.groups.len() as u64;
    parallel::each(groups, Vec::new, |found, group| {
        each_used(volume, group as u32, &mut |ino, is_directory| {
            found.push((ino, is_directory));
        });
        let mut passed = passed.lock();
        passed.count += found.len() as u64;
        for (ino, is_directory) in found.drain(..) {
            passed.used.add(ino);
            if is_directory {
                passed.directories.push(ino);
            }
        }
        ControlFlow::Continue(())
    });
    passed.into_inner()
}

/// The inodes that directories name.
fn named(volume: &Volume, directories: &[u32]) -> Inodes {
    let named = Mutex::new(Inodes::default());
    let record = |found: &mut Vec<u32>| {
        let mut named = named.lock();
        found.drain(..).for_each(|ino| named.add(ino));
    };
    let parts: Vec<&[u32]> = directories.chunks(DIRECTORIES).collect();
    parallel::each(parts.len() as u64, Vec::new, |found, part| {
        for ino in parts.get(part as usize).copied().unwrap_or_default() {
            let Some(inode) = volume.inode(*ino).filter(|inode| inode.is_dir()) else {
                continue;
            };
            let mut number = 0;
            while number < dir::blocks(volume, &inode) {
                let (listed, further) = dir::list(volume, *ino, &inode, number);
                let entries = listed.entries.iter().map(|entry| entry.ino);
                found.extend(entries.filter(|other| other != ino));
                if found.len() >= PART as usize {
                    record(found);
                }
                number = number.saturating_add(1).saturating_add(further);
            }
        }
        record(found);
        ControlFlow::Continue(())
    });
    named.into_inner()
}

/// The inodes without a name, and the number of inodes in use.
pub(super) fn find(volume: &Volume) -> (Vec<u32>, u64) {
    let Passed {
        used,
        count,
        directories,
    } = used(volume);
    let named = named(volume, &directories);
    let first = volume.geometry.first_ino();
    let nameless = used.iter().filter(|ino| *ino >= first && !named.has(*ino));
    let not_found = nameless.filter(|ino| *ino != special_ino::LOST_FOUND);
    let internal = [
        volume.sb.orphan_file_inum.get(),
        volume.sb.usr_quota_inum.get(),
        volume.sb.grp_quota_inum.get(),
        volume.sb.prj_quota_inum.get(),
    ];
    let files = not_found.filter(|ino| !internal.contains(ino));
    (files.take(MOST).collect(), count)
}

/// Calls `each` for every inode in use of a group, and whether it is a directory.
pub(super) fn each_used(volume: &Volume, group: u32, each: &mut dyn FnMut(u32, bool)) {
    let Some((table, used)) = volume
        .groups
        .get(group as usize)
        .and_then(|group| Some((group.table?, group.used)))
    else {
        return;
    };
    let size = usize::from(volume.geometry.inode_size());
    let per_block = volume.geometry.inodes_per_block();
    let blocks = used.div_ceil(per_block.max(1));
    let at_once = (TABLE_PART / volume.block_size()).max(1);
    let block_size = volume.block_size() as u64;
    let (start, len) = (
        table.saturating_mul(block_size),
        u64::from(blocks) * block_size,
    );
    if blocks == 0
        || (volume.device.has_no_data(start, len)
            && !volume
                .copies
                .any_in(table..table.saturating_add(blocks.into())))
    {
        return;
    }
    volume.device.will_read(start, len);
    let mut buf = vec![0; at_once * volume.block_size()];
    for first in (0..blocks).step_by(at_once) {
        let count = at_once.min((blocks - first) as usize);
        let part = &mut buf[..count * volume.block_size()];
        read(volume, table + u64::from(first), part);
        for (number, bytes) in (first..).zip(part.chunks_exact(volume.block_size())) {
            let has_copy = volume.copies.has(table + u64::from(number));
            for (slot, raw) in (0..per_block).zip(bytes.chunks_exact(size)) {
                if !has_copy && !is_in_use(raw) {
                    continue;
                }
                let Some(ino) = volume.geometry.ino(group, number * per_block + slot) else {
                    continue;
                };
                let here = Some(raw).filter(|raw| is_in_use(raw));
                let here = here.and_then(|raw| volume.valid(ino, raw));
                if let Some(inode) = here.or_else(|| volume.inode(ino))
                    && !inode.flags().contains(InodeFlags::EA_INODE)
                {
                    each(ino, inode.is_dir());
                }
            }
        }
    }
}

/// Reads blocks. A block that cannot be read becomes zeros.
fn read(volume: &Volume, first: u64, bytes: &mut [u8]) {
    let size = volume.block_size() as u64;
    let read = |block: u64, bytes: &mut [u8]| {
        let at = block.checked_mul(size);
        at.is_some_and(|at| volume.device.read_at(at, bytes).is_ok())
    };
    if read(first, bytes) {
        return;
    }
    for (block, bytes) in (first..).zip(bytes.chunks_mut(size as usize)) {
        if !read(block, bytes) {
            bytes.fill(0);
        }
    }
}
