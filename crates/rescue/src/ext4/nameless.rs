//! Inodes in use that no directory leads to.
//!
//! # How it works
//! One pass over the inode tables records the inodes in use and the directories. A second pass
//! lists every directory, whether or not another one refers to it, and records the inodes that it
//! names. An inode that is in use and not named gets its number as a name. A directory keeps
//! everything below it.

use std::collections::BTreeMap;

use sapwood_ext4_format::special_ino;

use super::dir;
use super::volume::{Volume, is_in_use};

/// Most inodes that are listed.
const MOST: usize = 1_000_000;
/// Inodes of a part of the set.
const PART: u32 = 1 << 16;

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

/// The inodes without a name, and the number of inodes in use.
pub(super) fn find(volume: &Volume) -> (Vec<u32>, u64) {
    let mut used = Inodes::default();
    let mut directories = Vec::new();
    let mut count = 0;
    for group in 0..volume.groups.len() as u32 {
        each_used(volume, group, &mut |ino, is_directory| {
            used.add(ino);
            count += 1;
            if is_directory {
                directories.push(ino);
            }
        });
    }
    let mut named = Inodes::default();
    for ino in directories {
        let Some(inode) = volume.inode(ino).filter(|inode| inode.is_dir()) else {
            continue;
        };
        let mut number = 0;
        while number < dir::blocks(volume, &inode) {
            let (listed, further) = dir::list(volume, ino, &inode, number);
            for entry in listed.entries {
                if entry.ino != ino {
                    named.add(entry.ino);
                }
            }
            number = number.saturating_add(1).saturating_add(further);
        }
    }
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
    let homes = volume.copies.homes();
    for number in 0..used.div_ceil(per_block.max(1)) {
        let block = table + u64::from(number);
        let bytes = volume.uncached(block).unwrap_or_default();
        let has_copy = homes.binary_search(&block).is_ok();
        for slot in 0..per_block {
            let at = slot as usize * size;
            let raw = bytes.get(at..at + size).unwrap_or_default();
            if !has_copy && !is_in_use(raw) {
                continue;
            }
            let Some(ino) = volume.geometry.ino(group, number * per_block + slot) else {
                continue;
            };
            if let Some(inode) = volume.inode(ino)
                && !inode
                    .flags()
                    .contains(sapwood_ext4_format::InodeFlags::EA_INODE)
            {
                each(ino, inode.is_dir());
            }
        }
    }
}
