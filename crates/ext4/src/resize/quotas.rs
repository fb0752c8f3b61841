//! Usage in quota files, for inodes whose number of blocks a move changes.

use sapwood_ext4_format::{
    Inode, QUOTA_BLOCK, QUOTA_DEPTH, QUOTA_ENTRIES, QUOTA_ROOT, QuotaEntry, QuotaKind, QuotaLeaf,
    RoCompat, SuperBlock, quota_reference, special_ino,
};

use super::image::Image;
use super::map::content;
use super::{ResizeError, Result};
use crate::Error;
use crate::quota_table::Owners;

/// The quota files that a superblock names.
fn files(sb: &SuperBlock) -> Vec<(QuotaKind, u32)> {
    if !sb.features().has_ro_compat(RoCompat::QUOTA) {
        return Vec::new();
    }
    let mut files = vec![
        (QuotaKind::User, sb.usr_quota_inum.get()),
        (QuotaKind::Group, sb.grp_quota_inum.get()),
        (QuotaKind::Project, sb.prj_quota_inum.get()),
    ];
    files.retain(|(_, ino)| *ino != 0);
    files
}

/// Whether an inode is a quota file.
pub(super) fn is_file(sb: &SuperBlock, ino: u32) -> bool {
    files(sb).iter().any(|(_, file)| *file == ino)
}

/// Replaces the sectors of an inode in the usage of its owners, with the next commit.
///
/// # Errors
/// A quota file is wrong, or lacks an owner; errors of the device.
pub(super) fn charge(
    image: &mut Image,
    ino: u32,
    inode: &Inode,
    (old, new): (u64, u64),
) -> Result<()> {
    let reserved = ino < image.geometry.first_ino() && ino != special_ino::ROOT;
    let hidden = is_file(&image.sb, ino) || ino == image.sb.orphan_file_inum.get();
    if old == new || reserved || hidden {
        return Ok(());
    }
    let owners = Owners::of(inode);
    for (kind, file) in files(&image.sb) {
        let id = owners.id(kind);
        let file = File::open(image, file)?;
        let (block, at, mut entry) = file.find(image, id)?;
        let space = entry.space.get().saturating_sub(old.saturating_mul(512));
        entry.space = space.saturating_add(new.saturating_mul(512)).into();
        let mut bytes = image.block(block)?;
        let place = bytes.get_mut(at..at + QuotaEntry::SIZE);
        let place = place.ok_or_else(|| file.bad("short block"))?;
        place.copy_from_slice(entry.stored().bytes());
        image.put(block, bytes)?;
    }
    Ok(())
}

/// A quota file.
struct File {
    ino: u32,
    /// Runs of its blocks, which has no holes: first block of the device, length.
    runs: Vec<(u64, u64)>,
}

impl File {
    fn open(image: &Image, ino: u32) -> Result<Self> {
        let runs = content(image, ino, &image.inode(ino)?)?;
        Ok(Self { ino, runs })
    }

    fn bad(&self, reason: impl Into<String>) -> ResizeError {
        let reason = format!("quota file: {}", reason.into());
        let ino = self.ino;
        Error::BadInode { ino, reason }.into()
    }

    /// The block of the device with a block of the file, and its byte there.
    fn place(&self, image: &Image, number: u32) -> Result<(u64, usize)> {
        let at = u64::from(number) * QUOTA_BLOCK as u64;
        let size = image.block_size();
        let mut left = at / size;
        for (start, len) in &self.runs {
            if left < *len {
                return Ok((start + left, (at % size) as usize));
            }
            left -= len;
        }
        Err(self.bad(format!("no block {number}")))
    }

    /// A copy of a block of the file.
    fn block(&self, image: &Image, number: u32) -> Result<Vec<u8>> {
        let (block, at) = self.place(image, number)?;
        let bytes = image.block(block)?;
        let bytes = bytes.get(at..at + QUOTA_BLOCK);
        Ok(bytes.ok_or_else(|| self.bad("short block"))?.to_vec())
    }

    /// The entry of an owner, with its block of the device and its byte there.
    fn find(&self, image: &Image, id: u32) -> Result<(u64, usize, QuotaEntry)> {
        let missing = || self.bad(format!("no entry of {id}: check it first (e2fsck -f)"));
        let mut node = QUOTA_ROOT;
        for level in 0..QUOTA_DEPTH {
            let bytes = self.block(image, node)?;
            let at = quota_reference(id, level);
            let word = bytes.get(at..at + 4).and_then(|word| word.first_chunk());
            node = u32::from_le_bytes(*word.ok_or_else(missing)?);
            if node <= QUOTA_ROOT {
                return Err(missing());
            }
        }
        let bytes = self.block(image, node)?;
        for slot in 0..QUOTA_ENTRIES {
            let at = QuotaLeaf::SIZE + slot * QuotaEntry::SIZE;
            let entry = QuotaEntry::read(bytes.get(at..).unwrap_or_default())?;
            if !entry.is_free() && entry.id.get() == id {
                let (block, start) = self.place(image, node)?;
                return Ok((block, start + at, entry.loaded()));
            }
        }
        Err(missing())
    }
}
