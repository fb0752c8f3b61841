//! The changes that a fuzzer makes to a good image.

use arbitrary::Arbitrary;
use sapwood_block::MemoryDevice;
use sapwood_hostile::image::{GoodImage, TreeBlockPlace};

/// A change of a tree block or of another part of an image.
#[derive(Arbitrary, Debug)]
pub struct Change {
    /// The part of the image; each target defines it.
    pub block: u8,
    /// Offset in its used bytes (modulo their number).
    pub at: u16,
    /// The new bytes.
    pub how: How,
}

/// The new bytes at an offset.
#[derive(Arbitrary, Debug)]
pub enum How {
    /// Other bytes.
    Set([u8; 1]),
    Set2([u8; 2]),
    Set8([u8; 8]),
    /// One bit.
    Flip(u8),
    /// Adds a small number to a number of 8 bytes.
    Add(i8),
    /// The bytes at another place of the block.
    Copy {
        from: u16,
        len: u8,
    },
    /// Replaces the bytes of this block, except for its header, with another block's.
    Other {
        block: u8,
        from: u16,
        len: u16,
    },
}

impl Change {
    /// Changes a tree block on `device` in all its copies; `reseal` updates its checksum.
    pub fn edit_block(
        &self,
        image: &GoodImage,
        device: &MemoryDevice,
        place: &TreeBlockPlace,
        reseal: bool,
    ) {
        let [head, tail] = place.used.clone();
        let at = usize::from(self.at) % (head.len() + tail.len()).max(1);
        let at = if at < head.len() {
            at
        } else {
            tail.start + (at - head.len())
        };
        image.edit(device, place, reseal, |bytes| {
            apply(&self.how, bytes, at, &|number| other_block(image, number))
        });
    }
}

/// A tree block by its number (modulo the number of blocks).
pub fn other_block(image: &GoodImage, number: u8) -> Vec<u8> {
    image.block(&image.blocks[usize::from(number) % image.blocks.len()])
}

/// Changes bytes of a block or superblock; `other` returns other blocks of the image by number.
pub fn apply(how: &How, bytes: &mut [u8], at: usize, other: &dyn Fn(u8) -> Vec<u8>) {
    let set = |bytes: &mut [u8], at: usize, new: &[u8]| {
        bytes[at..]
            .iter_mut()
            .zip(new)
            .for_each(|(to, from)| *to = *from);
    };
    match how {
        How::Set(new) => set(bytes, at, new),
        How::Set2(new) => set(bytes, at, new),
        How::Set8(new) => set(bytes, at, new),
        How::Flip(bit) => bytes[at] ^= 1 << (bit % 8),
        How::Add(more) => {
            let mut old = [0; 8];
            old.iter_mut()
                .zip(&bytes[at..])
                .for_each(|(to, from)| *to = *from);
            let new = u64::from_le_bytes(old).wrapping_add_signed(i64::from(*more));
            set(bytes, at, &new.to_le_bytes());
        }
        How::Copy { from, len } => {
            let from = usize::from(*from) % bytes.len();
            let new: Vec<u8> = bytes[from..]
                .iter()
                .copied()
                .take(usize::from(*len))
                .collect();
            set(bytes, at, &new);
        }
        How::Other { block, from, len } => {
            let other = other(*block);
            let from = usize::from(*from) % other.len();
            let end = (from + usize::from(*len)).min(other.len());
            set(bytes, at, &other[from..end]);
        }
    }
}
