//! One pass over a directory block that searches a name and room for an entry.

use super::{DIR_HEADER_SIZE, DirEntry, DirError, DirFormat, rec_len_decode};

/// Result of a pass over a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirScan<'a> {
    /// The entry with the name.
    pub hit: Option<DirEntry<'a>>,
    /// Offset of the entry before it.
    pub before: Option<usize>,
    /// Offset of the first entry that [`DirFormat::insert_at`] would accept `room` bytes into, as
    /// far as the pass went.
    pub room: Option<usize>,
}

impl DirFormat {
    /// Searches a name, byte for byte, and room for an entry of `room` bytes. Validates the entries
    /// that it passes as [`DirFormat::entries`] does. Ignores the block's tail.
    pub fn scan<'a>(
        &self,
        block: &'a [u8],
        name: &[u8],
        room: usize,
    ) -> Result<DirScan<'a>, DirError> {
        let region = &block[..self.usable().min(block.len())];
        let mut found = DirScan::default();
        let mut at = 0;
        while at < region.len() {
            let Some(step) = self.step(region, at) else {
                // The slow path finds the error, or handles entries with hashes.
                let entry = self.entry_in(region, at)?;
                if entry.inode != 0 && entry.name == name {
                    found.hit = Some(entry);
                    return Ok(found);
                }
                if found.room.is_none() && self.has_room_in(&entry, room) {
                    found.room = Some(at);
                }
                found.before = Some(at);
                at = entry.end();
                continue;
            };
            if step.name == name {
                found.hit = Some(self.entry_in(region, at)?);
                return Ok(found);
            }
            if found.room.is_none() && step.slack >= room {
                found.room = Some(at);
            }
            found.before = Some(at);
            at += step.rec_len;
        }
        found.before = None;
        Ok(found)
    }

    /// The entry at `at`, if it is valid and has no hash.
    #[inline]
    fn step<'a>(&self, region: &'a [u8], at: usize) -> Option<Step<'a>> {
        let rest = region.get(at..)?;
        let (header, body) = rest.split_first_chunk::<DIR_HEADER_SIZE>()?;
        let [i0, i1, i2, i3, l0, l1, name_len, _] = *header;
        let inode = u32::from_le_bytes([i0, i1, i2, i3]);
        let rec_len = rec_len_decode(u16::from_le_bytes([l0, l1]), self.block_size);
        let name = body.get(..usize::from(name_len))?;
        let used = (DIR_HEADER_SIZE + name.len()).next_multiple_of(4);
        let sound = inode != 0
            && inode <= self.inodes
            && !name.is_empty()
            && used <= rec_len
            && rec_len.is_multiple_of(4)
            && rec_len <= rest.len();
        (sound && !self.hash_in_entry).then(|| Step {
            name,
            rec_len,
            slack: rec_len - used,
        })
    }
}

/// An entry in use, in short.
struct Step<'a> {
    name: &'a [u8],
    rec_len: usize,
    /// Bytes after its name.
    slack: usize,
}
