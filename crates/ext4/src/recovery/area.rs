//! Reading the fast-commit area.

use sapwood_ext4_format::{Geometry, NAME_MAX, crc32c};
use sapwood_jbd2::{FastCommits, Log};

use crate::fast_commit::encode::{
    ADD_RANGE, CREATE, DEL_RANGE, HEAD, INODE, LINK, PAD, TAG_HEADER, TAIL, UNLINK,
};
use crate::map::BLOCKS_MAX;
use crate::track::{Name, Naming, Range, WRITTEN_MAX};
use crate::{Error, Result};

/// A change that a fast commit records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    /// These blocks are at this place of the file.
    Add(Range),
    /// This part of the file is a hole.
    Remove { ino: u32, logical: u64, len: u64 },
    /// The name leads to the inode.
    Name { name: Name, how: Naming },
    /// The first bytes of the inode, up to the end of its fields.
    Inode { ino: u32, raw: Vec<u8> },
}

/// One tag that was read.
struct Tag<'a> {
    kind: u16,
    value: &'a [u8],
}

/// The tag at a place of a block; `None` if none fits there.
fn tag_at(block: &[u8], at: usize) -> Option<Tag<'_>> {
    let header = block.get(at..at.checked_add(TAG_HEADER)?)?;
    let kind = u16::from_le_bytes([header[0], header[1]]);
    let len = usize::from(u16::from_le_bytes([header[2], header[3]]));
    let begin = at + TAG_HEADER;
    let value = block.get(begin..begin.checked_add(len)?)?;
    (ADD_RANGE..=HEAD)
        .contains(&kind)
        .then_some(Tag { kind, value })
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

/// Place of a tag, for errors.
#[derive(Clone, Copy)]
struct Spot {
    block: u64,
    offset: usize,
}

impl Spot {
    fn bad(self, reason: impl ToString) -> Error {
        Error::BadFastCommit {
            block: self.block,
            offset: self.offset,
            reason: reason.to_string(),
        }
    }
}

/// Reads the area up to the last complete fast commit of the transaction that the log would have
/// continued with. Anything after it is torn or stale, and is ignored.
///
/// # Errors
/// [`Error::BadFastCommit`]: a complete fast commit has invalid contents; errors of the device.
pub(super) fn read(geometry: &Geometry, log: &Log, commits: &FastCommits) -> Result<Vec<Change>> {
    let mut reader = Reader {
        expected: commits.expected,
        sum: 0,
        begun: false,
        pending: Vec::new(),
        whole: Vec::new(),
    };
    let mut block = vec![0; geometry.block_size() as usize];
    for index in 0..commits.blocks {
        log.read_fast_commit(index, &mut block)?;
        if !reader.block(index, &block)? {
            break;
        }
    }
    let check = Check { geometry };
    reader
        .whole
        .iter()
        .map(|(spot, kind, value)| {
            check
                .change(*kind, value)
                .map_err(|reason| spot.bad(reason))
        })
        .collect()
}

/// True if the area begins with fast commits of another transaction than the one that the log
/// would have continued with. A recovery ignores them.
///
/// # Errors
/// Errors of the device.
pub(super) fn is_stale(log: &Log, commits: &FastCommits) -> Result<bool> {
    if commits.blocks == 0 {
        return Ok(false);
    }
    let mut block = vec![0; log.block_size() as usize];
    log.read_fast_commit(0, &mut block)?;
    let head = tag_at(&block, 0).filter(|tag| tag.kind == HEAD);
    Ok(head.is_some_and(|head| u32_at(head.value, 4) != Some(commits.expected)))
}

struct Reader {
    expected: u32,
    sum: u32,
    begun: bool,
    /// Tags since the last valid tail.
    pending: Vec<(Spot, u16, Vec<u8>)>,
    /// Tags up to the last valid tail.
    whole: Vec<(Spot, u16, Vec<u8>)>,
}

impl Reader {
    /// Reads a block. False: the area ends here.
    fn block(&mut self, index: u64, block: &[u8]) -> Result<bool> {
        let mut at = 0;
        while at + TAG_HEADER <= block.len() {
            let Some(tag) = tag_at(block, at) else {
                return Ok(false);
            };
            let end = at + TAG_HEADER + tag.value.len();
            let spot = Spot {
                block: index,
                offset: at,
            };
            let whole = block.get(at..end).unwrap_or_default();
            match tag.kind {
                TAIL => {
                    let (Some(tid), Some(sum)) = (u32_at(tag.value, 0), u32_at(tag.value, 4))
                    else {
                        return Ok(false);
                    };
                    // The whole tag except the checksum and the filler after it.
                    let summed = whole.get(..TAG_HEADER + 4).unwrap_or_default();
                    if !self.begun || tid != self.expected || crc32c(self.sum, summed) != sum {
                        return Ok(false);
                    }
                    self.sum = 0;
                    self.whole.append(&mut self.pending);
                }
                HEAD => {
                    let tid = u32_at(tag.value, 4);
                    if self.begun || tid != Some(self.expected) {
                        return Ok(false);
                    }
                    if u32_at(tag.value, 0) != Some(0) {
                        return Err(spot.bad("features that this version does not know"));
                    }
                    self.begun = true;
                    self.sum = crc32c(self.sum, whole);
                }
                _ if !self.begun => return Ok(false),
                kind => {
                    self.sum = crc32c(self.sum, whole);
                    if kind != PAD {
                        self.pending.push((spot, kind, tag.value.to_vec()));
                    }
                }
            }
            at = end;
        }
        Ok(true)
    }
}

/// The limits of the image.
struct Check<'a> {
    geometry: &'a Geometry,
}

impl Check<'_> {
    fn change(&self, kind: u16, value: &[u8]) -> Result<Change, String> {
        match kind {
            ADD_RANGE => self.add(value),
            DEL_RANGE => {
                let ino = self.inode(value, 0)?;
                let logical = u64::from(u32_at(value, 4).ok_or("too short")?);
                let len = u64::from(u32_at(value, 8).ok_or("too short")?);
                let len = len.min(BLOCKS_MAX.saturating_sub(logical));
                Ok(Change::Remove { ino, logical, len })
            }
            CREATE | LINK | UNLINK => {
                let name = Name {
                    parent: self.inode(value, 0)?,
                    ino: self.inode(value, 4)?,
                    name: name(value.get(8..).unwrap_or_default())?,
                };
                let how = match kind {
                    CREATE => Naming::Create,
                    LINK => Naming::Link,
                    _ => Naming::Unlink,
                };
                Ok(Change::Name { name, how })
            }
            INODE => {
                let raw = value.get(4..).unwrap_or_default();
                let most = usize::from(self.geometry.inode_size());
                if !(sapwood_ext4_format::INODE_BASE_SIZE..=most).contains(&raw.len()) {
                    return Err(format!("an inode of {} bytes", raw.len()));
                }
                Ok(Change::Inode {
                    ino: self.inode(value, 0)?,
                    raw: raw.to_vec(),
                })
            }
            kind => Err(format!("a tag of kind {kind}")),
        }
    }

    fn inode(&self, value: &[u8], at: usize) -> Result<u32, String> {
        let ino = u32_at(value, at).ok_or("too short")?;
        let first = self.geometry.first_ino();
        let fits = ino == sapwood_ext4_format::special_ino::ROOT
            || (first..=self.geometry.inodes_count()).contains(&ino);
        if !fits {
            return Err(format!("inode {ino} cannot be changed"));
        }
        Ok(ino)
    }

    fn add(&self, value: &[u8]) -> Result<Change, String> {
        let ino = self.inode(value, 0)?;
        let logical = u64::from(u32_at(value, 4).ok_or("too short")?);
        let words = u32_at(value, 8).ok_or("too short")?;
        let (len, high) = (words as u16, u64::from(words >> 16));
        let low = u64::from(u32_at(value, 12).ok_or("too short")?);
        let written = len <= WRITTEN_MAX;
        let len = u32::from(if written { len } else { len - WRITTEN_MAX });
        let physical = high << 32 | low;
        if len == 0 || logical + u64::from(len) > BLOCKS_MAX {
            return Err(format!("{len} blocks at {logical} of a file"));
        }
        self.geometry
            .check_blocks(physical, len.into())
            .map_err(|error| error.to_string())?;
        Ok(Change::Add(Range {
            ino,
            logical,
            len,
            physical,
            written,
        }))
    }
}

fn name(name: &[u8]) -> Result<Vec<u8>, String> {
    let good = !name.is_empty()
        && name.len() <= NAME_MAX
        && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
        && !matches!(name, b"." | b"..");
    good.then(|| name.to_vec())
        .ok_or_else(|| "not a name".into())
}
