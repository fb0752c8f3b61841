//! [`Codec`]: encodes and decodes blocks of the log, in the form that the features select.
//!
//! # How it works
//! | form | tag | checksum of a block | of descriptor and revoke blocks | of the commit block |
//! |---|---|---|---|---|
//! | plain | 8 bytes, 12 if wide | none | none | none, or (version 1) of the whole transaction |
//! | version 2 | 10, 14 | low 16 bits, in the tag | 4 bytes at the end | in its field |
//! | version 3 | 16 | 32 bits, in the tag | the same | the same |
//!
//! The seed of checksums of versions 2 and 3 is the checksum of the journal's UUID. A logged
//! block's checksum covers its transaction's sequence number first, so that a stale block does not
//! pass. Checksums cover the block as it is in the log.
//!
//! A block that begins with the journal's magic is *escaped*: in the log it begins with zeros, and
//! its tag has a flag. Otherwise a scan could take it for a block of the journal itself.

use zerocopy::{FromBytes, IntoBytes};

use crate::checksum::crc32c;
use crate::format::{
    Header, Incompat, MAGIC, RawCommit, RawTag, RawTag3, RevokeHeader, TagFlags, block_type,
};

/// Bytes of a UUID after a tag without [`TagFlags::SAME_UUID`].
const UUID_SIZE: usize = 16;
/// Bytes of the checksum at the end of descriptor and revoke blocks.
const TAIL_SIZE: usize = 4;

/// Form of tags and checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Plain,
    Version2,
    Version3,
}

/// A descriptor's entry for one logged block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tag {
    /// Home location.
    pub(crate) block: u64,
    pub(crate) escaped: bool,
    /// As many bits as the form stores.
    pub(crate) checksum: u32,
}

/// Encodes and decodes in the form of one journal.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Codec {
    block_size: usize,
    form: Form,
    wide: bool,
    uuid: [u8; 16],
    seed: u32,
}

impl Codec {
    pub(crate) fn new(block_size: u32, features: Incompat, uuid: [u8; 16]) -> Self {
        let form = if features.contains(Incompat::CSUM_V3) {
            Form::Version3
        } else if features.contains(Incompat::CSUM_V2) {
            Form::Version2
        } else {
            Form::Plain
        };
        Self {
            block_size: block_size as usize,
            form,
            wide: features.contains(Incompat::WIDE),
            uuid,
            seed: crc32c(!0, &uuid),
        }
    }

    /// Whether blocks have checksums (versions 2 and 3).
    pub(crate) fn has_checksums(&self) -> bool {
        self.form != Form::Plain
    }

    /// Whether block numbers may have more than 32 bits.
    pub(crate) fn is_wide(&self) -> bool {
        self.wide
    }

    fn tag_size(&self) -> usize {
        match (self.form, self.wide) {
            (Form::Plain, false) => 8,
            (Form::Plain, true) => 12,
            (Form::Version2, false) => 10,
            (Form::Version2, true) => 14,
            (Form::Version3, _) => 16,
        }
    }

    /// Bytes before the checksum at the end of the block.
    fn usable(&self) -> usize {
        self.block_size - if self.has_checksums() { TAIL_SIZE } else { 0 }
    }

    /// Most tags in one descriptor block.
    pub(crate) fn tags_per_block(&self) -> usize {
        (self.usable() - size_of::<Header>() - UUID_SIZE) / self.tag_size()
    }

    fn revoke_size(&self) -> usize {
        if self.wide { 8 } else { 4 }
    }

    /// Most records in one revoke block.
    pub(crate) fn revokes_per_block(&self) -> usize {
        (self.usable() - size_of::<RevokeHeader>()) / self.revoke_size()
    }

    fn new_block(&self, kind: u32, sequence: u32) -> Vec<u8> {
        let mut block = vec![0; self.block_size];
        put(&mut block, 0, Header::new(kind, sequence).as_bytes());
        block
    }

    /// The header, if the journal itself wrote the block.
    pub(crate) fn header(block: &[u8]) -> Option<Header> {
        let (header, _) = Header::read_from_prefix(block).ok()?;
        (header.magic.get() == MAGIC).then_some(header)
    }

    /// Whether the block has to be escaped in the log.
    pub(crate) fn needs_escape(block: &[u8]) -> bool {
        block.starts_with(&MAGIC.to_be_bytes())
    }

    /// The checksum for the tag of a logged block; 0 without checksums.
    pub(crate) fn data_checksum(&self, sequence: u32, block: &[u8]) -> u32 {
        let seed = crc32c(self.seed, &sequence.to_be_bytes());
        match self.form {
            Form::Plain => 0,
            Form::Version2 => crc32c(seed, block) & 0xffff,
            Form::Version3 => crc32c(seed, block),
        }
    }

    /// A descriptor block. At most [`tags_per_block`](Self::tags_per_block) tags.
    pub(crate) fn descriptor(&self, sequence: u32, tags: &[Tag]) -> Vec<u8> {
        let mut block = self.new_block(block_type::DESCRIPTOR, sequence);
        let mut at = size_of::<Header>();
        for (index, tag) in tags.iter().enumerate() {
            let mut flags = TagFlags::empty();
            flags.set(TagFlags::ESCAPED, tag.escaped);
            flags.set(TagFlags::SAME_UUID, index > 0);
            flags.set(TagFlags::LAST, index + 1 == tags.len());
            self.put_tag(&mut block, at, tag, flags);
            at += self.tag_size();
            if index == 0 {
                put(&mut block, at, &self.uuid);
                at += UUID_SIZE;
            }
        }
        self.put_tail(&mut block);
        block
    }

    fn put_tag(&self, block: &mut [u8], at: usize, tag: &Tag, flags: TagFlags) {
        let (low, high) = (tag.block as u32, (tag.block >> 32) as u32);
        let high = if self.wide { high } else { 0 };
        if self.form == Form::Version3 {
            let raw = RawTag3 {
                block: low.into(),
                flags: u32::from(flags.bits()).into(),
                block_high: high.into(),
                checksum: tag.checksum.into(),
            };
            return put(block, at, raw.as_bytes());
        }
        let raw = RawTag {
            block: low.into(),
            checksum: (tag.checksum as u16).into(),
            flags: flags.bits().into(),
        };
        put(block, at, raw.as_bytes());
        if self.wide {
            put(block, at + size_of::<RawTag>(), &high.to_be_bytes());
        }
    }

    /// The tags of a descriptor block. Anything else in it is ignored.
    pub(crate) fn tags(&self, block: &[u8]) -> Vec<Tag> {
        let mut tags = Vec::new();
        let mut rest = block.get(..self.usable()).unwrap_or_default();
        rest = rest.get(size_of::<Header>()..).unwrap_or_default();
        while let Some((raw, after)) = rest.split_at_checked(self.tag_size()) {
            let Some((tag, flags)) = self.tag(raw) else {
                break;
            };
            tags.push(tag);
            if flags.contains(TagFlags::LAST) {
                break;
            }
            let skip = if flags.contains(TagFlags::SAME_UUID) {
                0
            } else {
                UUID_SIZE
            };
            rest = after.get(skip..).unwrap_or_default();
        }
        tags
    }

    fn tag(&self, raw: &[u8]) -> Option<(Tag, TagFlags)> {
        let (low, high, flags, checksum) = if self.form == Form::Version3 {
            let (tag, _) = RawTag3::read_from_prefix(raw).ok()?;
            let flags = tag.flags.get() as u16;
            (
                tag.block.get(),
                tag.block_high.get(),
                flags,
                tag.checksum.get(),
            )
        } else {
            let (tag, rest) = RawTag::read_from_prefix(raw).ok()?;
            let high = rest
                .first_chunk()
                .map_or(0, |high| u32::from_be_bytes(*high));
            (
                tag.block.get(),
                high,
                tag.flags.get(),
                tag.checksum.get().into(),
            )
        };
        let high = if self.wide { u64::from(high) << 32 } else { 0 };
        let flags = TagFlags::from_bits_retain(flags);
        let tag = Tag {
            block: high | u64::from(low),
            escaped: flags.contains(TagFlags::ESCAPED),
            checksum,
        };
        Some((tag, flags))
    }

    /// A revoke block. At most [`revokes_per_block`](Self::revokes_per_block) blocks.
    pub(crate) fn revoke(&self, sequence: u32, blocks: &[u64]) -> Vec<u8> {
        let mut block = self.new_block(block_type::REVOKE, sequence);
        let used = size_of::<RevokeHeader>() + blocks.len() * self.revoke_size();
        put(
            &mut block,
            size_of::<Header>(),
            &(used as u32).to_be_bytes(),
        );
        let mut at = size_of::<RevokeHeader>();
        for number in blocks {
            let bytes = number.to_be_bytes();
            put(&mut block, at, &bytes[8 - self.revoke_size()..]);
            at += self.revoke_size();
        }
        self.put_tail(&mut block);
        block
    }

    /// The blocks that a revoke block names; `None` if its count is larger than the block.
    pub(crate) fn revoked(&self, block: &[u8]) -> Option<Vec<u64>> {
        let (header, _) = RevokeHeader::read_from_prefix(block).ok()?;
        let used = header.count.get() as usize;
        if used > self.usable() {
            return None;
        }
        let records = block.get(size_of::<RevokeHeader>()..used)?;
        let number = |record: &[u8]| record.iter().fold(0, |n: u64, b| n << 8 | u64::from(*b));
        Some(
            records
                .chunks_exact(self.revoke_size())
                .map(number)
                .collect(),
        )
    }

    /// A commit block.
    pub(crate) fn commit(&self, sequence: u32, seconds: u64, nanoseconds: u32) -> Vec<u8> {
        let mut block = self.new_block(block_type::COMMIT, sequence);
        let mut raw = RawCommit {
            header: Header::new(block_type::COMMIT, sequence),
            checksum_type: 0,
            checksum_size: 0,
            padding: [0; 2],
            checksum: [0.into(); 8],
            seconds: seconds.into(),
            nanoseconds: nanoseconds.into(),
        };
        put(&mut block, 0, raw.as_bytes());
        if self.has_checksums() {
            raw.checksum[0] = crc32c(self.seed, &block).into();
            put(&mut block, 0, raw.as_bytes());
        }
        block
    }

    /// Whether the checksum of a commit block (versions 2 and 3) is right. The bytes after its
    /// fields count as zeros, which is what was written there. So a block that was torn after its
    /// fields commits its transaction, as in the kernel.
    pub(crate) fn commit_is_good(&self, block: &[u8]) -> bool {
        if !self.has_checksums() {
            return true;
        }
        let whole = Self::whole_commit(block);
        self.field_is_good(&whole, std::mem::offset_of!(RawCommit, checksum))
    }

    /// A commit block as it was to be written: its fields, then zeros.
    pub(crate) fn whole_commit(block: &[u8]) -> Vec<u8> {
        let fields = block.get(..size_of::<RawCommit>()).unwrap_or_default();
        let mut whole = vec![0; block.len()];
        put(&mut whole, 0, fields);
        whole
    }

    fn put_tail(&self, block: &mut [u8]) {
        if self.has_checksums() {
            let checksum = crc32c(self.seed, block);
            put(block, self.usable(), &checksum.to_be_bytes());
        }
    }

    /// Whether the checksum at the end of a descriptor or revoke block is right.
    pub(crate) fn tail_is_good(&self, block: &[u8]) -> bool {
        !self.has_checksums() || self.field_is_good(block, self.usable())
    }

    /// Whether the four bytes at `at` are the checksum of the block with zeros in their place.
    fn field_is_good(&self, block: &[u8], at: usize) -> bool {
        let (Some(before), Some(after)) = (block.get(..at), block.get(at + 4..)) else {
            return false;
        };
        let sum = crc32c(crc32c(crc32c(self.seed, before), &[0; 4]), after);
        block[at..at + 4] == sum.to_be_bytes()
    }
}

/// Copies `bytes` to `at`. The callers above count, so that the bytes fit.
fn put(block: &mut [u8], at: usize, bytes: &[u8]) {
    block[at..at + bytes.len()].copy_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forms() -> Vec<Codec> {
        let mut all = Vec::new();
        for form in [Incompat::empty(), Incompat::CSUM_V2, Incompat::CSUM_V3] {
            for wide in [Incompat::empty(), Incompat::WIDE] {
                all.push(Codec::new(1024, form | wide, [7; 16]));
            }
        }
        all
    }

    #[test]
    fn full_blocks_round_trip_in_all_forms() {
        for codec in forms() {
            let number = |n: usize| {
                if codec.wide {
                    (n as u64) << 30
                } else {
                    n as u64
                }
            };
            let tag = |n: usize| Tag {
                block: number(n),
                escaped: n.is_multiple_of(3),
                checksum: codec.data_checksum(9, &[n as u8]),
            };
            let tags: Vec<Tag> = (0..codec.tags_per_block()).map(tag).collect();
            let block = codec.descriptor(9, &tags);
            assert_eq!(codec.tags(&block), tags, "{codec:?}");
            assert!(codec.tail_is_good(&block));
            let blocks: Vec<u64> = (0..codec.revokes_per_block()).map(number).collect();
            let block = codec.revoke(9, &blocks);
            assert_eq!(codec.revoked(&block), Some(blocks), "{codec:?}");
            assert!(codec.tail_is_good(&block));
            assert!(codec.commit_is_good(&codec.commit(9, 1, 2)));
        }
    }

    #[test]
    fn checksums_find_every_flipped_byte() {
        for codec in forms().into_iter().filter(Codec::has_checksums) {
            let good = codec.commit(9, 1, 2);
            let revoke = codec.revoke(9, &[1, 2]);
            for at in 0..good.len() {
                let flip = |block: &[u8]| {
                    let mut bad = block.to_vec();
                    bad[at] ^= 1;
                    bad
                };
                let counts = at < size_of::<RawCommit>();
                assert_eq!(codec.commit_is_good(&flip(&good)), !counts, "{at}");
                assert!(!codec.tail_is_good(&flip(&revoke)), "{at}");
            }
        }
    }

    #[test]
    fn a_revoke_block_with_a_too_large_count_is_refused() {
        for codec in forms() {
            let mut block = codec.revoke(9, &[1]);
            for count in [0, 15, 1025, u32::MAX] {
                put(&mut block, 12, &count.to_be_bytes());
                assert_eq!(codec.revoked(&block), None, "{count}");
            }
        }
    }
}
