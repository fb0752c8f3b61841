//! Detection of quota files. Source: the format that `quotacheck` and `mke2fs -O quota` write.

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First bytes of a quota file.
#[derive(
    Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, PartialEq, Eq,
)]
#[repr(C)]
pub struct QuotaHeader {
    /// Identifies the kind of quota.
    pub magic: U32,
    /// 0 for v2r0, 1 for v2r1.
    pub version: U32,
}
const _: () = assert!(size_of::<QuotaHeader>() == 8);

/// Kind of quota in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaKind {
    /// Users.
    User,
    /// Groups.
    Group,
    /// Projects.
    Project,
}

impl QuotaKind {
    /// The magic of its file.
    pub fn magic(self) -> u32 {
        match self {
            QuotaKind::User => 0xd9c0_1f11,
            QuotaKind::Group => 0xd9c0_1927,
            QuotaKind::Project => 0xd9c0_3f14,
        }
    }

    /// Kind and version of a quota file, from its first bytes; `None` if it is not a quota file of
    /// version 2.
    pub fn recognise(bytes: &[u8]) -> Option<(Self, u32)> {
        let (header, _) = QuotaHeader::ref_from_prefix(bytes).ok()?;
        let kinds = [QuotaKind::User, QuotaKind::Group, QuotaKind::Project];
        let kind = kinds
            .into_iter()
            .find(|kind| kind.magic() == header.magic.get())?;
        (header.version.get() <= 1).then_some((kind, header.version.get()))
    }
}
