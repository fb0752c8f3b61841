//! Fast commits as bytes.
//!
//! The area has tags. Each begins with its kind and the length of its value, two bytes each, and
//! lies in one block. A head opens the area. A tail ends each fast commit and fills its block; its
//! checksum is over all bytes since the tail before it.

use sapwood_block::SECTOR_SIZE;
use sapwood_ext4_format::crc32c;

use crate::track::{Naming, Range, Record, WRITTEN_MAX};

pub(crate) const ADD_RANGE: u16 = 1;
pub(crate) const DEL_RANGE: u16 = 2;
pub(crate) const CREATE: u16 = 3;
pub(crate) const LINK: u16 = 4;
pub(crate) const UNLINK: u16 = 5;
pub(crate) const INODE: u16 = 6;
pub(crate) const PAD: u16 = 7;
pub(crate) const TAIL: u16 = 8;
pub(crate) const HEAD: u16 = 9;

/// Bytes before the value of a tag.
pub(crate) const TAG_HEADER: usize = 4;

/// Blocks of a hole that one tag says: as many as the kernel does.
const HOLE_MOST: u64 = 0x7fff_ffff;

/// Bytes of a tail's value that say something.
const TAIL_LEN: usize = 8;

/// Writes tags into blocks.
pub(super) struct Encoder {
    block_size: usize,
    /// Whole blocks, and the one that is being filled.
    blocks: Vec<Vec<u8>>,
    sum: u32,
}

impl Encoder {
    pub(super) fn new(block_size: usize) -> Self {
        Self {
            block_size,
            blocks: vec![Vec::with_capacity(block_size)],
            sum: 0,
        }
    }

    /// The first tag of a transaction.
    pub(super) fn head(&mut self, tid: u32) {
        self.tag(HEAD, &[&0u32.to_le_bytes(), &tid.to_le_bytes()]);
    }

    /// The fields of an inode.
    pub(super) fn inode(&mut self, ino: u32, fields: &[u8]) {
        self.tag(INODE, &[&ino.to_le_bytes(), fields]);
    }

    pub(super) fn change(&mut self, record: &Record) {
        match record {
            Record::Add(range) => self.add(range),
            Record::Remove { ino, logical, len } => self.remove(*ino, *logical, *len),
            Record::Name { name, how } => {
                let kind = match how {
                    Naming::Create => CREATE,
                    Naming::Link => LINK,
                    Naming::Unlink => UNLINK,
                };
                let (parent, ino) = (name.parent.to_le_bytes(), name.ino.to_le_bytes());
                self.tag(kind, &[&parent, &ino, &name.name]);
            }
        }
    }

    fn add(&mut self, range: &Range) {
        let len = range.len as u16;
        let len = if range.written {
            len
        } else {
            len + WRITTEN_MAX
        };
        let (high, low) = ((range.physical >> 32) as u16, range.physical as u32);
        let value: [&[u8]; 5] = [
            &range.ino.to_le_bytes(),
            &(range.logical as u32).to_le_bytes(),
            &len.to_le_bytes(),
            &high.to_le_bytes(),
            &low.to_le_bytes(),
        ];
        self.tag(ADD_RANGE, &value);
    }

    fn remove(&mut self, ino: u32, logical: u64, len: u64) {
        let (mut at, end) = (logical, logical + len);
        while at < end {
            let step = (end - at).min(HOLE_MOST);
            let (begin, blocks) = ((at as u32).to_le_bytes(), (step as u32).to_le_bytes());
            self.tag(DEL_RANGE, &[&ino.to_le_bytes(), &begin, &blocks]);
            at += step;
        }
    }

    /// A tag lies in one block; a pad fills what is left of the block before, for which there
    /// always is room.
    fn tag(&mut self, kind: u16, value: &[&[u8]]) {
        let len: usize = value.iter().map(|part| part.len()).sum();
        if self.used() + TAG_HEADER + len + TAG_HEADER > self.block_size {
            self.pad();
        }
        self.put(&tag_header(kind, len));
        for part in value {
            self.put(part);
        }
    }

    /// Whether it is all in the first sector if it ends now.
    pub(super) fn in_one_sector(&self) -> bool {
        self.blocks.len() == 1 && self.used() + TAG_HEADER + TAIL_LEN <= SECTOR_SIZE as usize
    }

    fn used(&self) -> usize {
        self.blocks.last().map_or(0, Vec::len)
    }

    fn pad(&mut self) {
        let rest = self.block_size - self.used() - TAG_HEADER;
        self.put(&tag_header(PAD, rest));
        self.put(&vec![0; rest]);
        self.blocks.push(Vec::with_capacity(self.block_size));
    }

    fn put(&mut self, bytes: &[u8]) {
        self.sum = crc32c(self.sum, bytes);
        if let Some(block) = self.blocks.last_mut() {
            block.extend_from_slice(bytes);
        }
    }

    /// Ends the fast commit. Whole blocks.
    pub(super) fn finish(mut self, tid: u32) -> Vec<Vec<u8>> {
        if self.used() + TAG_HEADER + TAIL_LEN > self.block_size {
            self.pad();
        }
        // Its value fills the block.
        let len = self.block_size - self.used() - TAG_HEADER;
        self.put(&tag_header(TAIL, len));
        self.put(&tid.to_le_bytes());
        let sum = self.sum;
        if let Some(block) = self.blocks.last_mut() {
            block.extend_from_slice(&sum.to_le_bytes());
            block.resize(self.block_size, 0);
        }
        self.blocks
    }
}

fn tag_header(kind: u16, len: usize) -> [u8; TAG_HEADER] {
    let ([a, b], [c, d]) = (kind.to_le_bytes(), (len as u16).to_le_bytes());
    [a, b, c, d]
}
