//! Gives inodes of groups that a file system loses the numbers of free inodes in groups that stay.
//!
//! # How it works
//! One walk finds everything that names the inodes ([`references`](super::references)). Then each
//! inode moves together with its references, as many inodes in one transaction as are due for a
//! commit. So each transaction leaves a complete file system of the old size.
//!
//! The seed of the checksums of an inode, of the blocks of its map and of its directory is made of
//! its number and its generation. A moved inode gets the generation that keeps the seed, so its
//! blocks stay as they are: a large directory moves as easily as an empty one. NFS handles contain
//! the number, and are stale in any case.
//!
//! A file system without a journal borrows one ([`journal`](super::journal)).

use std::collections::BTreeSet;

use sapwood_ext4_format::{Compat, RoCompat};

use super::image::Image;
use super::references::{self, Reference, ReferencePlace};
use super::{ResizeError, Result, journal};

/// The fewest groups that the file system must keep because inodes cannot get other numbers.
///
/// # Errors
/// Errors of the device; a bitmap is wrong.
pub(super) fn least_groups(image: &Image) -> Result<u32> {
    let fixed = image.geometry.first_ino().saturating_sub(1);
    let fixed = fixed.max(image.sb.journal_inum.get());
    let (group, _) = image.geometry.inode_location(fixed.max(1))?;
    let mut groups = group + 1;
    if is_stable(image) {
        for group in (groups..image.geometry.group_count()).rev() {
            if !image.inodes(group..group + 1)?.is_empty() {
                groups = group + 1;
                break;
            }
        }
    }
    Ok(groups)
}

fn is_stable(image: &Image) -> bool {
    let features = image.sb.features();
    features.has_compat(Compat::STABLE_INODES)
}

/// Moves all inodes to the first `groups` groups. `wanted`: bytes that the file system shall have.
/// Everything is durable on return.
///
/// # Errors
/// [`ResizeError::Inodes`] and [`ResizeError::Pinned`], with nothing changed; the image is wrong;
/// errors of the device.
pub(super) fn renumber(image: &mut Image, groups: u32, wanted: u64) -> Result<()> {
    let targets = image.inodes(groups..image.geometry.group_count())?;
    let Some(last) = targets.last().copied() else {
        return Ok(());
    };
    let pinned = |ino, why| Err(ResizeError::Pinned { ino, why, wanted });
    if is_stable(image) {
        return pinned(last, "the file system has stable_inodes");
    }
    let (reserved, journal) = (image.geometry.first_ino(), image.sb.journal_inum.get());
    for ino in targets.iter().copied() {
        if ino < reserved || ino == journal {
            return pinned(ino, "it belongs to the file system");
        }
    }
    let free = (image.descs.iter().take(groups as usize)).map(|desc| u64::from(desc.free_inodes()));
    if free.sum::<u64>() < targets.len() as u64 {
        let all = image.geometry.inodes_count();
        let used = all.saturating_sub(image.sb.free_inodes_count.get());
        return Err(ResizeError::Inodes { used, wanted });
    }
    let orphans = image.sb.features().has_ro_compat(RoCompat::ORPHAN_PRESENT);
    if image.sb.last_orphan.get() != 0 || orphans {
        return Err(ResizeError::Unclean);
    }
    let references = references::find(image, &targets)?;
    let borrowed = if image.has_log() {
        None
    } else {
        match journal::borrow(image)? {
            None => return pinned(last, "there is no room for a journal"),
            some => some,
        }
    };
    let mut moves = Moves {
        image,
        groups,
        targets,
        references,
        numbers: Vec::new(),
        group: 0,
    };
    let tied = moves.tied()?;
    while tied.is_none() && moves.batch()? {}
    if let Some(borrowed) = borrowed {
        journal::give_back(image, borrowed)?;
    }
    match tied {
        Some(ino) => pinned(ino, "more blocks name it than the journal holds"),
        None => Ok(()),
    }
}

struct Moves<'i> {
    image: &'i mut Image,
    /// Groups that stay.
    groups: u32,
    /// Moving inodes, sorted.
    targets: Vec<u32>,
    /// All references to them, sorted.
    references: Vec<Reference>,
    /// New numbers of the first of them.
    numbers: Vec<u32>,
    /// The first group that may have a free inode.
    group: u32,
}

impl Moves<'_> {
    /// The number that an inode has.
    fn number(&self, ino: u32) -> u32 {
        let moved = self.targets.binary_search(&ino).ok();
        let moved = moved.and_then(|index| self.numbers.get(index));
        moved.copied().unwrap_or(ino)
    }

    fn references(&self, target: u32) -> &[Reference] {
        let from = (self.references).partition_point(|reference| reference.target < target);
        let to = (self.references).partition_point(|reference| reference.target <= target);
        self.references.get(from..to).unwrap_or_default()
    }

    /// Blocks that change with the number of an inode, except groups' blocks and its new slot.
    fn blocks(&self, ino: u32) -> Result<BTreeSet<u64>> {
        let mut blocks = BTreeSet::from([self.image.inode_place(ino)?.0]);
        for reference in self.references(ino) {
            blocks.insert(match reference.place {
                ReferencePlace::Names { block, .. } | ReferencePlace::Attributes { block, .. } => {
                    block
                }
                ReferencePlace::Inode { ino, .. } => self.image.inode_place(self.number(ino))?.0,
            });
        }
        Ok(blocks)
    }

    /// The last inode with more references than a transaction holds.
    fn tied(&self) -> Result<Option<u32>> {
        let most = self.image.most_together();
        for ino in self.targets.iter().rev() {
            if self.blocks(*ino)?.len() > most {
                return Ok(Some(*ino));
            }
        }
        Ok(None)
    }

    /// The inodes that move next, as indexes: as many as fit into a transaction.
    fn next(&self) -> Result<std::ops::Range<usize>> {
        let first = self.numbers.len();
        let (mut end, mut blocks) = (first, BTreeSet::new());
        while let Some(ino) = self.targets.get(end) {
            let before = blocks.len();
            blocks.extend(self.blocks(*ino)?);
            // The new slots are side by side, so they take fewer blocks than there are inodes.
            let all = blocks.len() + (end - first);
            if before > 0 && all > self.image.enough() {
                break;
            }
            end += 1;
        }
        Ok(first..end)
    }

    /// Moves some inodes. False: all have moved.
    fn batch(&mut self) -> Result<bool> {
        let range = self.next()?;
        let batch: Vec<u32> = self.targets.get(range).unwrap_or_default().to_vec();
        if batch.is_empty() {
            return Ok(false);
        }
        for ino in &batch {
            self.copy(*ino)?;
        }
        for ino in &batch {
            self.rename(*ino)?;
            let directory = self.image.inode(*ino)?.is_dir();
            self.image.release_inode(*ino, directory)?;
        }
        self.image.commit(None)?;
        Ok(true)
    }

    /// Gives an inode a new number, and writes it there.
    fn copy(&mut self, ino: u32) -> Result<()> {
        let mut inode = self.image.inode(ino)?;
        let taken = self
            .image
            .take_inode(self.group..self.groups, inode.is_dir())?;
        let number = taken.ok_or(crate::Error::NoSpace)?;
        (self.group, _) = self.image.geometry.inode_location(number)?;
        let geometry = &self.image.geometry;
        let generation = geometry.same_seed_generation(ino, number, inode.generation());
        inode.set_generation(generation);
        self.image.put_inode(number, inode)?;
        self.numbers.push(number);
        Ok(())
    }

    /// Changes everything that names an inode.
    fn rename(&mut self, ino: u32) -> Result<()> {
        let number = self.number(ino);
        for reference in self.references(ino).to_vec() {
            let owner = match reference.place {
                ReferencePlace::Inode { ino, .. } => self.number(ino),
                ReferencePlace::Names { .. } | ReferencePlace::Attributes { .. } => number,
            };
            references::write(self.image, reference.place, owner, number)?;
        }
        let sb = &mut self.image.sb;
        for field in [
            &mut sb.orphan_file_inum,
            &mut sb.prj_quota_inum,
            &mut sb.lpf_ino,
        ] {
            if field.get() == ino {
                *field = number.into();
            }
        }
        Ok(())
    }
}
