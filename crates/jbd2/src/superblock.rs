//! Parses, validates and creates the journal's superblock.

use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::checksum::crc32c;
use crate::error::Features;
use crate::format::{
    CHECKSUM_CRC32C, Compat, DEFAULT_FAST_COMMIT_BLOCKS, Header, Incompat, MAGIC, RawSuperblock,
    SUPERBLOCK_SIZE, block_type,
};
use crate::{Error, Result};

/// Least size of a log, in blocks: enough for the smallest transaction. The kernel requires more
/// (1024).
const LEAST_LOG_BLOCKS: u32 = 32;

/// Least size of a log that gives up blocks for a fast-commit area.
const LEAST_BESIDE_AREA: u64 = 256;

/// A valid superblock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Superblock {
    raw: RawSuperblock,
    /// It has version 1, but the fields of version 2 are not zero.
    stale_fields: bool,
}

/// Positions of the parts of a journal, in blocks of the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// First block of the log.
    pub(crate) first: u64,
    /// Blocks of the log.
    pub(crate) size: u64,
    /// First block for fast commits. The kernel leaves one block between the log and the area
    /// unused.
    pub(crate) fast_first: u64,
    /// Blocks for fast commits.
    pub(crate) fast_commit: u64,
}

impl Superblock {
    /// Parses the first block of a journal of `blocks` blocks of `block_size` bytes.
    ///
    /// # Errors
    /// [`Error::NotAJournal`], [`Error::SuperblockField`], [`Error::SuperblockChecksum`],
    /// [`Error::UnknownFeatures`].
    pub(crate) fn parse(bytes: &[u8], block_size: u32, blocks: u64) -> Result<Self> {
        let (mut raw, _) =
            RawSuperblock::read_from_prefix(bytes).map_err(|_| Error::NotAJournal)?;
        let kind = raw.header.block_type.get();
        let known = [block_type::SUPERBLOCK_V1, block_type::SUPERBLOCK_V2].contains(&kind);
        if raw.header.magic.get() != MAGIC || !known {
            return Err(Error::NotAJournal);
        }
        let mut stale_fields = false;
        if kind == block_type::SUPERBLOCK_V1 {
            let fields = [
                raw.feature_compat,
                raw.feature_incompat,
                raw.feature_ro_compat,
            ];
            let several = raw.nr_users.get() > 1;
            stale_fields = several || fields.iter().any(|field| field.get() != 0);
            // The bytes after the fields of version 1 are not part of it.
            let all = raw.as_mut_bytes();
            all[std::mem::offset_of!(RawSuperblock, feature_compat)..].fill(0);
        }
        let this = Self { raw, stale_fields };
        this.check_features()?;
        this.check_fields(block_size, blocks)?;
        Ok(this)
    }

    /// See [`Log::oddity`](crate::Log::oddity).
    pub(crate) fn oddity(&self) -> Option<&'static str> {
        if self.stale_fields {
            return Some("version 1, with fields of version 2");
        }
        (self.raw.nr_users.get() > 1)
            .then_some("more than one user of a journal in the file system")
    }

    fn check_features(&self) -> Result<()> {
        let unknown = Features {
            compat: 0,
            incompat: self.raw.feature_incompat.get() & !Incompat::all().bits(),
            ro_compat: self.raw.feature_ro_compat.get(),
        };
        if unknown.incompat != 0 || unknown.ro_compat != 0 {
            return Err(Error::UnknownFeatures(unknown));
        }
        let incompat = self.incompat();
        let (two, three) = (Incompat::CSUM_V2, Incompat::CSUM_V3);
        if incompat.contains(two | three) {
            return field("feature_incompat", incompat.bits());
        }
        if !incompat.intersects(two | three) {
            return Ok(());
        }
        if self.compat().contains(Compat::CHECKSUM) {
            return field("feature_compat", self.raw.feature_compat.get());
        }
        if self.raw.checksum_type != CHECKSUM_CRC32C {
            return field("checksum_type", self.raw.checksum_type.into());
        }
        if self.raw.checksum.get() != checksum(&self.raw) {
            return Err(Error::SuperblockChecksum);
        }
        Ok(())
    }

    fn check_fields(&self, block_size: u32, blocks: u64) -> Result<()> {
        let raw = &self.raw;
        if raw.block_size.get() != block_size {
            return field("blocksize", raw.block_size.get());
        }
        let max_len = raw.max_len.get();
        if u64::from(max_len) > blocks {
            return field("maxlen", max_len);
        }
        let log_end = max_len.checked_sub(self.fast_commit_blocks());
        let Some(log_end) = log_end else {
            return field("num_fc_blks", raw.num_fc_blocks.get());
        };
        let first = raw.first.get();
        if first == 0
            || log_end
                .checked_sub(first)
                .is_none_or(|n| n < LEAST_LOG_BLOCKS)
        {
            return field("first", first);
        }
        let start = raw.start.get();
        if start != 0 && !(first..log_end).contains(&start) {
            return field("start", start);
        }
        Ok(())
    }

    fn fast_commit_blocks(&self) -> u32 {
        if !self.incompat().contains(Incompat::FAST_COMMIT) {
            return 0;
        }
        match self.raw.num_fc_blocks.get() {
            0 => DEFAULT_FAST_COMMIT_BLOCKS,
            given => given,
        }
    }

    pub(crate) fn geometry(&self) -> Geometry {
        let first = u64::from(self.raw.first.get());
        let area = u64::from(self.fast_commit_blocks());
        let end = u64::from(self.raw.max_len.get()).saturating_sub(area);
        Geometry {
            first,
            size: end.saturating_sub(first),
            fast_first: end + 1,
            fast_commit: area.saturating_sub(1),
        }
    }

    /// Whether it has fields for features. Version 1 does not.
    pub(crate) fn has_features(&self) -> bool {
        self.raw.header.block_type.get() == block_type::SUPERBLOCK_V2
    }

    pub(crate) fn incompat(&self) -> Incompat {
        Incompat::from_bits_retain(self.raw.feature_incompat.get())
    }

    pub(crate) fn compat(&self) -> Compat {
        Compat::from_bits_retain(self.raw.feature_compat.get())
    }

    pub(crate) fn set_features(&mut self, compat: Compat, incompat: Incompat) {
        self.raw.feature_compat = compat.bits().into();
        self.raw.feature_incompat = incompat.bits().into();
        let sums = Incompat::CSUM_V2 | Incompat::CSUM_V3;
        self.raw.checksum_type = if incompat.intersects(sums) {
            CHECKSUM_CRC32C
        } else {
            0
        };
    }

    /// Makes the end of an empty log a fast-commit area, if the rest is large enough. Returns the
    /// feature if it did.
    pub(crate) fn add_fast_commit_area(&mut self) -> Incompat {
        let mut with = *self;
        let incompat = with.incompat() | Incompat::FAST_COMMIT;
        with.raw.feature_incompat = incompat.bits().into();
        let blocks = with.fast_commit_blocks();
        with.raw.num_fc_blocks = blocks.into();
        // The position where the kernel would continue may now be in the area.
        with.raw.head = with.raw.first;
        let (size, most) = (with.raw.block_size.get(), with.raw.max_len.get());
        let fits = with.check_fields(size, most.into()).is_ok();
        if blocks < 2 || !fits || with.geometry().size < LEAST_BESIDE_AREA {
            return Incompat::empty();
        }
        *self = with;
        Incompat::FAST_COMMIT
    }

    pub(crate) fn uuid(&self) -> [u8; 16] {
        self.raw.uuid
    }

    pub(crate) fn users(&self) -> u32 {
        self.raw.nr_users.get()
    }

    /// UUIDs of the file systems that share the journal.
    pub(crate) fn user_ids(&self) -> Vec<[u8; 16]> {
        let all = self.raw.users.chunks_exact(16);
        let all = all.filter_map(|id| id.first_chunk().copied());
        all.take(self.users() as usize).collect()
    }

    /// Makes this file system the only user.
    pub(crate) fn set_user(&mut self, uuid: [u8; 16]) {
        self.raw.nr_users = 1.into();
        self.raw.users = [0; 768];
        if let Some(first) = self.raw.users.first_chunk_mut() {
            *first = uuid;
        }
    }

    /// Block of the journal at which a recovery begins; 0 for an empty log.
    pub(crate) fn start(&self) -> u32 {
        self.raw.start.get()
    }

    /// Sequence number of the first transaction at the start, or of the next one to be written.
    pub(crate) fn sequence(&self) -> u32 {
        self.raw.sequence.get()
    }

    pub(crate) fn set_tail(&mut self, start: u32, sequence: u32) {
        self.raw.start = start.into();
        self.raw.sequence = sequence.into();
    }

    /// Sets where the kernel may continue in an empty log.
    pub(crate) fn set_head(&mut self, head: u32) {
        self.raw.head = head.into();
    }

    pub(crate) fn errno(&self) -> i32 {
        self.raw.errno.get() as i32
    }

    /// The bytes to write, including their checksum.
    pub(crate) fn to_bytes(self) -> [u8; SUPERBLOCK_SIZE] {
        let mut raw = self.raw;
        if self
            .incompat()
            .intersects(Incompat::CSUM_V2 | Incompat::CSUM_V3)
        {
            raw.checksum = checksum(&raw).into();
        }
        zerocopy::transmute!(raw)
    }
}

fn field<T>(name: &'static str, value: u32) -> Result<T> {
    Err(Error::SuperblockField { name, value })
}

fn checksum(raw: &RawSuperblock) -> u32 {
    let mut raw = *raw;
    raw.checksum = 0.into();
    crc32c(!0, raw.as_bytes())
}

/// Parameters of a new journal.
#[derive(Debug, Clone, Copy)]
pub struct NewJournal {
    /// Bytes of a block.
    pub block_size: u32,
    /// Blocks of the journal, including its superblock and the fast-commit area.
    pub blocks: u32,
    /// Blocks of the fast-commit area; 0 for none.
    pub fast_commit_blocks: u32,
    /// Its UUID; zeros for a journal inside its file system.
    pub uuid: [u8; 16],
    /// For a journal with a device of its own: the block that has the superblock.
    pub external_at: Option<u32>,
}

impl NewJournal {
    /// The journal's first block. The other blocks must not contain an old log; zeros are safe. The
    /// fast-commit area is the only feature; the engine that opens the journal sets the others.
    ///
    /// # Errors
    /// [`Error::SuperblockField`] if a parameter is invalid.
    pub fn superblock(&self) -> Result<Vec<u8>> {
        let mut raw = RawSuperblock::new_zeroed();
        raw.header = Header::new(block_type::SUPERBLOCK_V2, 0);
        raw.block_size = self.block_size.into();
        raw.max_len = self.blocks.into();
        // A journal with a device of its own has no user yet.
        raw.first = (self.external_at.unwrap_or(0) + 1).into();
        raw.nr_users = u32::from(self.external_at.is_none()).into();
        raw.sequence = 1.into();
        raw.uuid = self.uuid;
        if self.fast_commit_blocks > 0 {
            raw.num_fc_blocks = self.fast_commit_blocks.into();
            raw.feature_incompat = Incompat::FAST_COMMIT.bits().into();
        }
        let mut block = vec![0; self.block_size as usize];
        let made = Superblock {
            stale_fields: false,
            raw,
        };
        made.check_fields(self.block_size, u64::from(self.blocks))?;
        match block.get_mut(..SUPERBLOCK_SIZE) {
            Some(start) => start.copy_from_slice(&made.to_bytes()),
            None => return field("blocksize", self.block_size),
        }
        Ok(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(blocks: u32, fast_commit_blocks: u32) -> NewJournal {
        NewJournal {
            block_size: 1024,
            blocks,
            fast_commit_blocks,
            uuid: [3; 16],
            external_at: None,
        }
    }

    fn raw(change: impl FnOnce(&mut RawSuperblock)) -> Vec<u8> {
        let mut raw = RawSuperblock::read_from_bytes(&new(100, 0).superblock().unwrap()).unwrap();
        change(&mut raw);
        raw.as_bytes().to_vec()
    }

    fn bad_field(bytes: &[u8]) -> &'static str {
        match Superblock::parse(bytes, 1024, 100) {
            Err(Error::SuperblockField { name, .. }) => name,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn new_superblocks_are_valid() {
        let made = Superblock::parse(&new(100, 20).superblock().unwrap(), 1024, 100).unwrap();
        let geometry = Geometry {
            first: 1,
            size: 79,
            fast_first: 81,
            fast_commit: 19,
        };
        assert_eq!(made.geometry(), geometry);
        assert_eq!((made.start(), made.sequence(), made.errno()), (0, 1, 0));
        assert!(new(100, 80).superblock().is_err());
        assert!(new(20, 0).superblock().is_err());
    }

    #[test]
    fn each_field_is_checked() {
        assert_eq!(
            bad_field(&raw(|raw| raw.block_size = 2048.into())),
            "blocksize"
        );
        assert_eq!(bad_field(&raw(|raw| raw.max_len = 101.into())), "maxlen");
        assert_eq!(bad_field(&raw(|raw| raw.first = 0.into())), "first");
        assert_eq!(bad_field(&raw(|raw| raw.first = 90.into())), "first");
        assert_eq!(bad_field(&raw(|raw| raw.start = 100.into())), "start");
        let fast = |raw: &mut RawSuperblock| {
            raw.feature_incompat = 0x20.into();
            raw.num_fc_blocks = 101.into();
        };
        assert_eq!(bad_field(&raw(fast)), "num_fc_blks");
        let both = |raw: &mut RawSuperblock| raw.feature_incompat = 0x18.into();
        assert_eq!(bad_field(&raw(both)), "feature_incompat");
        let kind = |raw: &mut RawSuperblock| raw.feature_incompat = 0x10.into();
        assert_eq!(bad_field(&raw(kind)), "checksum_type");
    }

    #[test]
    fn unknown_features_are_refused_by_name() {
        let bytes = raw(|raw| raw.feature_incompat = 0x140.into());
        let err = Superblock::parse(&bytes, 1024, 100).unwrap_err();
        assert!(
            err.to_string().contains("incompat 0x40, incompat 0x100"),
            "{err}"
        );
        let bytes = raw(|raw| raw.header.magic = 1.into());
        assert!(matches!(
            Superblock::parse(&bytes, 1024, 100),
            Err(Error::NotAJournal)
        ));
        assert!(matches!(
            Superblock::parse(&[0; 9], 1024, 100),
            Err(Error::NotAJournal)
        ));
    }

    #[test]
    fn a_wrong_checksum_is_found() {
        let bytes = raw(|raw| {
            raw.feature_incompat = 0x10.into();
            raw.checksum_type = 4;
        });
        let result = Superblock::parse(&bytes, 1024, 100);
        assert!(matches!(result, Err(Error::SuperblockChecksum)));
        let mut good = Superblock::parse(&raw(|_| ()), 1024, 100).unwrap();
        good.set_features(Compat::empty(), Incompat::CSUM_V3);
        let mut bytes = good.to_bytes();
        Superblock::parse(&bytes, 1024, 100).unwrap();
        bytes[1000] ^= 1;
        let result = Superblock::parse(&bytes, 1024, 100);
        assert!(matches!(result, Err(Error::SuperblockChecksum)));
    }

    #[test]
    fn version_one_has_no_features() {
        let bytes = raw(|raw| {
            raw.header.block_type = 3.into();
            raw.feature_incompat = 0xffff_ffff.into();
        });
        let old = Superblock::parse(&bytes, 1024, 100).unwrap();
        assert!(!old.has_features());
        assert_eq!(old.incompat(), Incompat::empty());
    }
}
