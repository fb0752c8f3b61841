//! Fields that device inodes and the inodes of attribute values store under another name.

use crate::{FormatError, Inode};

/// Largest major number that the format holds.
pub(crate) const DEVICE_MAJOR_MAX: u32 = 0xfff;
/// Largest minor number that the format holds.
pub(crate) const DEVICE_MINOR_MAX: u32 = 0xf_ffff;

impl Inode {
    /// Word `index` of `i_block`; 0 beyond the 15 words.
    pub fn block_word(&self, index: usize) -> u32 {
        let (words, _) = self.block().as_chunks::<4>();
        words.get(index).map_or(0, |word| u32::from_le_bytes(*word))
    }

    /// Stores word `index` of `i_block`; nothing happens beyond the 15 words.
    pub(crate) fn set_block_word(&mut self, index: usize, value: u32) {
        let (words, _) = self.block_mut().as_chunks_mut::<4>();
        if let Some(word) = words.get_mut(index) {
            *word = value.to_le_bytes();
        }
    }

    /// Major and minor number of a device inode.
    ///
    /// The first word has the old encoding of 8 and 8 bits, or is zero; then the second one has 12
    /// and 20 bits.
    pub fn device(&self) -> (u32, u32) {
        match self.block_word(0) {
            0 => {
                let new = self.block_word(1);
                ((new >> 8) & 0xfff, (new & 0xff) | ((new >> 12) & 0xf_ff00))
            }
            old => ((old >> 8) & 0xff, old & 0xff),
        }
    }

    /// Stores the numbers of a device inode, in the old coding where it can.
    ///
    /// # Errors
    /// `DoesNotFit`.
    pub fn set_device(&mut self, major: u32, minor: u32) -> Result<(), FormatError> {
        for (field, value, max) in [
            ("device major", major, DEVICE_MAJOR_MAX),
            ("device minor", minor, DEVICE_MINOR_MAX),
        ] {
            if value > max {
                return Err(FormatError::DoesNotFit {
                    field,
                    value: u64::from(value),
                    max: u64::from(max),
                });
            }
        }
        self.block_mut().fill(0);
        if major < 256 && minor < 256 {
            self.set_block_word(0, major << 8 | minor);
        } else {
            let new = (minor & 0xff) | major << 8 | (minor & !0xff) << 12;
            self.set_block_word(1, new);
        }
        Ok(())
    }

    /// Number of inodes that use this one's value; only for an inode with the EA_INODE flag.
    ///
    /// The kernel's documentation names the two halves the other way round. Images filled by the
    /// kernel count in the low half of the version.
    pub const fn ea_refcount(&self) -> u64 {
        (self.base().ctime.get() as u64) << 32 | self.base().version_lo.get() as u64
    }

    /// Stores how many inodes use this one's value.
    pub fn set_ea_refcount(&mut self, count: u64) {
        self.base_mut().ctime = ((count >> 32) as u32).into();
        self.base_mut().version_lo = (count as u32).into();
    }

    /// Checksum of this inode's value; only of an inode with the EA_INODE flag.
    pub const fn ea_hash(&self) -> u32 {
        self.base().atime.get()
    }

    /// Stores the checksum of this inode's value.
    pub fn set_ea_hash(&mut self, hash: u32) {
        self.base_mut().atime = hash.into();
    }
}

#[cfg(test)]
mod tests {
    use crate::{FormatError, Geometry, Inode, SUPER_MAGIC, SuperBlock};

    fn inode() -> Inode {
        let sb = SuperBlock {
            magic: SUPER_MAGIC.into(),
            blocks_per_group: 8192.into(),
            inodes_per_group: 16.into(),
            inodes_count: 16.into(),
            first_data_block: 1.into(),
            blocks_count_lo: 1000.into(),
            ..SuperBlock::default()
        };
        Inode::new(&Geometry::new(&sb).unwrap())
    }

    #[test]
    fn both_codings() {
        let mut inode = inode();
        for (major, minor, words) in [
            (8, 17, [0x811, 0]),
            (255, 255, [0xffff, 0]),
            (256, 0, [0, 0x1_0000]),
            (1, 256, [0, 0x10_0100]),
            (0xfff, 0xf_ffff, [0, 0xffff_ffff]),
        ] {
            inode.set_device(major, minor).unwrap();
            assert_eq!([inode.block_word(0), inode.block_word(1)], words);
            assert_eq!(inode.device(), (major, minor));
        }
        for (major, minor) in [(0x1000, 0), (0, 0x10_0000)] {
            let error = inode.set_device(major, minor).unwrap_err();
            assert!(matches!(error, FormatError::DoesNotFit { .. }));
        }
    }
}
