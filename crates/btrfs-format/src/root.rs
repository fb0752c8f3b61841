//! Root items and root refs: trees, and subvolumes in their parents. UUID items.

use zerocopy::little_endian::{U16, U32, U64};

use crate::inode::{InodeItem, Timespec};
use crate::layout::{disk_struct, offsets};
use crate::{DiskKey, ItemError, RootFlags};

/// Bytes of a root item before generation_v2, uuids and times were added.
pub(crate) const OLD_ROOT_ITEM_SIZE: usize = 239;

disk_struct! {
    /// Root of a tree.
    pub struct RootItem = 439 {
        /// Mostly unused inode.
        pub inode: InodeItem,
        /// Transid of the root block.
        pub generation: U64,
        /// Inode of the top directory, 256; 0 in trees without files.
        pub root_dirid: U64,
        /// Logical address of the root block.
        pub bytenr: U64,
        /// Unused.
        pub byte_limit: U64,
        /// Unused, kept by the kernel for its trees.
        pub bytes_used: U64,
        /// Transid of the last snapshot of the subvolume.
        pub last_snapshot: U64,
        /// [`RootFlags`].
        pub flags: U64,
        /// 1, or 0 while it is being deleted.
        pub refs: U32,
        /// Progress of the deletion.
        pub drop_progress: DiskKey,
        /// Level of `drop_progress`.
        pub drop_level: u8,
        /// Level of the root block.
        pub level: u8,
        /// Equals `generation` if the following fields are valid.
        pub generation_v2: U64,
        /// uuid of the subvolume.
        pub uuid: [u8; 16],
        /// uuid of the subvolume that it is a snapshot of.
        pub parent_uuid: [u8; 16],
        /// uuid of the subvolume that it was received from.
        pub received_uuid: [u8; 16],
        /// Transid of the last change of an inode.
        pub ctransid: U64,
        /// Transid when it was made.
        pub otransid: U64,
        /// Transid when it was sent.
        pub stransid: U64,
        /// Transid when it was received.
        pub rtransid: U64,
        /// Time of `ctransid`.
        pub ctime: Timespec,
        /// Time of `otransid`.
        pub otime: Timespec,
        /// Time of `stransid`.
        pub stime: Timespec,
        /// Time of `rtransid`.
        pub rtime: Timespec,
        /// Zero.
        pub reserved: [U64; 8],
    }

    /// Name of a subvolume in its parent; the name follows.
    pub struct RootRef = 18 {
        /// Directory in the parent tree.
        pub dirid: U64,
        /// Index in that directory.
        pub sequence: U64,
        /// Bytes of the name.
        pub name_len: U16,
    }
}
offsets!(RootItem {
    generation = 160, bytenr = 176, flags = 208, refs = 216, drop_progress = 220, level = 238,
    generation_v2 = 239, uuid = 247, ctransid = 295, ctime = 327, reserved = 375,
});

impl RootItem {
    /// Parses a root item of the new or the old size (239 bytes). Fields that the old size lacks
    /// read as zero. They also read as zero if an old kernel wrote the item last (its
    /// `generation_v2` is stale).
    pub fn parse(item: &[u8]) -> Result<Self, ItemError> {
        let mut root = Self::default();
        if item.len() != Self::SIZE && item.len() != OLD_ROOT_ITEM_SIZE {
            return Err(ItemError::Size {
                what: "RootItem",
                expected: Self::SIZE,
                found: item.len(),
            });
        }
        let to = zerocopy::IntoBytes::as_mut_bytes(&mut root);
        to.iter_mut().zip(item).for_each(|(to, from)| *to = *from);
        if root.generation_v2 != root.generation {
            let to = zerocopy::IntoBytes::as_mut_bytes(&mut root);
            to.iter_mut().skip(OLD_ROOT_ITEM_SIZE).for_each(|b| *b = 0);
        }
        Ok(root)
    }

    /// Flags, unknown bits retained.
    pub fn root_flags(&self) -> RootFlags {
        RootFlags::from_bits_retain(self.flags.get())
    }
}

/// A parsed root ref or backref.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootRefRef<'a> {
    /// Directory in the parent tree.
    pub dirid: u64,
    /// Index in that directory.
    pub sequence: u64,
    /// Name.
    pub name: &'a [u8],
}

impl RootRefRef<'_> {
    /// The item's bytes. A name over 65535 bytes cannot be stored; it is then cut.
    pub fn encode(&self) -> Vec<u8> {
        let name_len = u16::try_from(self.name.len()).unwrap_or(u16::MAX);
        let head = RootRef {
            dirid: self.dirid.into(),
            sequence: self.sequence.into(),
            name_len: name_len.into(),
        };
        [
            head.bytes(),
            self.name.get(..name_len.into()).unwrap_or_default(),
        ]
        .concat()
    }
}

/// Parses a ROOT_REF or ROOT_BACKREF item.
pub fn root_ref(item: &[u8]) -> Result<RootRefRef<'_>, ItemError> {
    let (head, name) = RootRef::split(item)?;
    let expected = RootRef::SIZE + usize::from(head.name_len.get());
    if item.len() != expected {
        return Err(ItemError::Size {
            what: "RootRef",
            expected,
            found: item.len(),
        });
    }
    Ok(RootRefRef {
        dirid: head.dirid.get(),
        sequence: head.sequence.get(),
        name,
    })
}

/// Tree ids in a UUID item; odd bytes at the end are left out.
pub fn uuid_item(item: &[u8]) -> impl Iterator<Item = u64> + '_ {
    item.chunks_exact(8)
        .filter_map(|raw| Some(u64::from_le_bytes(raw.try_into().ok()?)))
}

/// Objectid and offset of the UUID-tree key of a uuid.
pub fn uuid_key_parts(uuid: &[u8; 16]) -> (u64, u64) {
    let all = u128::from_le_bytes(*uuid);
    (all as u64, (all >> 64) as u64)
}

/// The uuid of a UUID-tree key; inverse of [`uuid_key_parts`].
pub fn uuid_from_key_parts(objectid: u64, offset: u64) -> [u8; 16] {
    (u128::from(objectid) | (u128::from(offset) << 64)).to_le_bytes()
}
