//! Extent items, their refs, block groups.

use zerocopy::little_endian::{U32, U64};

use crate::layout::{disk_struct, offsets};
use crate::{DiskKey, ExtentFlags, ItemError, Key, extent_data_ref_hash, kind};

disk_struct! {
    /// Head of an EXTENT_ITEM or METADATA_ITEM.
    pub struct ExtentItem = 24 {
        /// Sum of all refs.
        pub refs: U64,
        /// Transid in which it was allocated.
        pub generation: U64,
        /// [`ExtentFlags`].
        pub flags: U64,
    }

    /// Second part of an EXTENT_ITEM of a tree block (not of a METADATA_ITEM).
    pub struct TreeBlockInfo = 18 {
        /// First key of the block when it was allocated.
        pub key: DiskKey,
        /// Level of the block.
        pub level: u8,
    }

    /// Ref of a data extent by its owner.
    pub struct ExtentDataRef = 28 {
        /// Tree.
        pub root: U64,
        /// Inode.
        pub objectid: U64,
        /// File offset of the extent's begin (wraps below zero).
        pub offset: U64,
        /// File extent items that use it.
        pub count: U32,
    }

    /// Ref of a data extent by a leaf; the leaf's address is before it or in the key.
    pub struct SharedDataRef = 4 {
        /// File extent items that use it.
        pub count: U32,
    }

    /// Head of an inline ref. After an EXTENT_DATA_REF kind the ref itself begins at `offset`.
    pub struct ExtentInlineRef = 9 {
        /// Kind of the ref, a key kind.
        pub kind: u8,
        /// Tree id or parent address.
        pub offset: U64,
    }

    /// A block group: how much of a chunk is used.
    pub struct BlockGroupItem = 24 {
        /// Bytes in extents.
        pub used: U64,
        /// Object of the chunk, 256.
        pub chunk_objectid: U64,
        /// [`BlockGroupFlags`](crate::BlockGroupFlags).
        pub flags: U64,
    }
}
offsets!(ExtentDataRef { count = 24 });

/// One ref of an extent, inline or keyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InlineRef {
    /// Tree block used by a tree.
    TreeBlock {
        /// Tree id.
        root: u64,
    },
    /// Tree block used by a parent block.
    SharedBlock {
        /// Logical address of the parent.
        parent: u64,
    },
    /// Data used by files.
    ExtentData {
        /// Tree id.
        root: u64,
        /// Inode.
        objectid: u64,
        /// File offset of the extent's begin.
        offset: u64,
        /// Number of file extent items.
        count: u32,
    },
    /// Data used by a leaf.
    SharedData {
        /// Logical address of the leaf.
        parent: u64,
        /// Number of file extent items.
        count: u32,
    },
    /// Tree that pays for a data extent (simple quotas); counts no ref.
    Owner {
        /// Tree id.
        root: u64,
    },
}

impl InlineRef {
    /// Key kind of the ref.
    pub const fn kind(&self) -> u8 {
        match self {
            Self::TreeBlock { .. } => kind::TREE_BLOCK_REF,
            Self::SharedBlock { .. } => kind::SHARED_BLOCK_REF,
            Self::ExtentData { .. } => kind::EXTENT_DATA_REF,
            Self::SharedData { .. } => kind::SHARED_DATA_REF,
            Self::Owner { .. } => kind::EXTENT_OWNER_REF,
        }
    }

    /// Its contribution to [`ExtentItem::refs`].
    pub const fn count(&self) -> u64 {
        match self {
            Self::TreeBlock { .. } | Self::SharedBlock { .. } => 1,
            Self::ExtentData { count, .. } | Self::SharedData { count, .. } => *count as u64,
            Self::Owner { .. } => 0,
        }
    }

    /// Offset of the key if the ref is an item of its own.
    pub fn key_offset(&self) -> u64 {
        match *self {
            Self::TreeBlock { root } | Self::Owner { root } => root,
            Self::SharedBlock { parent } | Self::SharedData { parent, .. } => parent,
            Self::ExtentData {
                root,
                objectid,
                offset,
                ..
            } => extent_data_ref_hash(root, objectid, offset),
        }
    }

    /// Key if the ref is an item of its own.
    pub fn key(&self, bytenr: u64) -> Key {
        Key::new(bytenr, self.kind(), self.key_offset())
    }

    /// Place among inline refs: kinds ascend; within one kind the offset (or hash) *descends*.
    pub fn inline_order(&self) -> (u8, std::cmp::Reverse<u64>) {
        (self.kind(), std::cmp::Reverse(self.key_offset()))
    }

    /// Bytes of an inline ref of that kind, `None` if it is no ref.
    pub const fn inline_size(kind: u8) -> Option<usize> {
        match kind {
            kind::TREE_BLOCK_REF | kind::SHARED_BLOCK_REF | kind::EXTENT_OWNER_REF => Some(9),
            kind::EXTENT_DATA_REF => Some(29),
            kind::SHARED_DATA_REF => Some(13),
            _ => None,
        }
    }

    /// Parses the inline ref at the front of `bytes` and returns the rest.
    pub(crate) fn parse_inline(bytes: &[u8]) -> Result<(Self, &[u8]), ItemError> {
        let what = "inline ref";
        let raw = *bytes.first().ok_or(ItemError::Short {
            what,
            need: 9,
            found: 0,
        })?;
        let value = raw.into();
        let need = Self::inline_size(raw).ok_or(ItemError::Value {
            what,
            field: "kind",
            value,
        })?;
        let Some((this, rest)) = bytes.split_at_checked(need) else {
            return Err(ItemError::Short {
                what,
                need,
                found: bytes.len(),
            });
        };
        let (head, tail) = ExtentInlineRef::split(this)?;
        let offset = head.offset.get();
        let parsed = match raw {
            kind::TREE_BLOCK_REF => Self::TreeBlock { root: offset },
            kind::SHARED_BLOCK_REF => Self::SharedBlock { parent: offset },
            kind::EXTENT_OWNER_REF => Self::Owner { root: offset },
            kind::SHARED_DATA_REF => Self::SharedData {
                parent: offset,
                count: SharedDataRef::read(tail)?.count.get(),
            },
            _ => Self::from_data_ref(&ExtentDataRef::read(this.get(1..).unwrap_or_default())?),
        };
        Ok((parsed, rest))
    }

    fn from_data_ref(raw: &ExtentDataRef) -> Self {
        Self::ExtentData {
            root: raw.root.get(),
            objectid: raw.objectid.get(),
            offset: raw.offset.get(),
            count: raw.count.get(),
        }
    }

    /// Parses a ref that is an item of its own.
    ///
    /// # Errors
    /// A key that is no ref's, or a size that its kind does not have.
    pub fn parse_keyed(key: &Key, item: &[u8]) -> Result<Self, ItemError> {
        let sized = |expected: usize| {
            if item.len() == expected {
                Ok(())
            } else {
                Err(ItemError::Size {
                    what: "keyed ref",
                    expected,
                    found: item.len(),
                })
            }
        };
        match key.kind {
            kind::TREE_BLOCK_REF => sized(0).map(|()| Self::TreeBlock { root: key.offset }),
            kind::SHARED_BLOCK_REF => sized(0).map(|()| Self::SharedBlock { parent: key.offset }),
            kind::EXTENT_DATA_REF => {
                sized(ExtentDataRef::SIZE)?;
                Ok(Self::from_data_ref(&ExtentDataRef::read(item)?))
            }
            kind::SHARED_DATA_REF => {
                sized(SharedDataRef::SIZE)?;
                let count = SharedDataRef::read(item)?.count.get();
                Ok(Self::SharedData {
                    parent: key.offset,
                    count,
                })
            }
            other => Err(ItemError::Value {
                what: "keyed ref",
                field: "kind",
                value: other.into(),
            }),
        }
    }

    /// Bytes as an item of its own (empty for refs that are all key).
    pub fn encode_keyed(&self) -> Vec<u8> {
        match *self {
            Self::ExtentData {
                root,
                objectid,
                offset,
                count,
            } => ExtentDataRef {
                root: root.into(),
                objectid: objectid.into(),
                offset: offset.into(),
                count: count.into(),
            }
            .bytes()
            .to_vec(),
            Self::SharedData { count, .. } => SharedDataRef {
                count: count.into(),
            }
            .bytes()
            .to_vec(),
            _ => Vec::new(),
        }
    }

    /// Bytes as an inline ref.
    pub(crate) fn encode_inline(&self) -> Vec<u8> {
        if let Self::ExtentData { .. } = self {
            let mut out = vec![self.kind()];
            out.extend(self.encode_keyed());
            return out;
        }
        let head = ExtentInlineRef {
            kind: self.kind(),
            offset: self.key_offset().into(),
        };
        let mut out = head.bytes().to_vec();
        out.extend(self.encode_keyed());
        out
    }
}

/// A parsed extent item: head, tree-block info, inline refs not yet parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentItemRef<'a> {
    /// Sum of all refs.
    pub refs: u64,
    /// Transid in which it was allocated.
    pub generation: u64,
    /// Flags, unknown bits retained.
    pub flags: ExtentFlags,
    /// First key and level, only of an EXTENT_ITEM of a tree block.
    pub tree_block: Option<(Key, u8)>,
    /// Bytes of the inline refs.
    pub inline: &'a [u8],
}

impl<'a> ExtentItemRef<'a> {
    /// Parses an EXTENT_ITEM or METADATA_ITEM (`key_kind`).
    pub fn parse(key_kind: u8, item: &'a [u8]) -> Result<Self, ItemError> {
        let (head, mut inline) = ExtentItem::split(item)?;
        let flags = ExtentFlags::from_bits_retain(head.flags.get());
        let mut tree_block = None;
        if key_kind == kind::EXTENT_ITEM && flags.contains(ExtentFlags::TREE_BLOCK) {
            let (info, rest) = TreeBlockInfo::split(inline)?;
            tree_block = Some((info.key.get(), info.level));
            inline = rest;
        }
        Ok(Self {
            refs: head.refs.get(),
            generation: head.generation.get(),
            flags,
            tree_block,
            inline,
        })
    }

    /// The inline refs; ends after its first error.
    pub fn inline_refs(&self) -> InlineRefs<'a> {
        InlineRefs { rest: self.inline }
    }

    /// Bytes of an item with this head and the given refs (`inline` is ignored).
    pub fn encode<'r>(&self, refs: impl IntoIterator<Item = &'r InlineRef>) -> Vec<u8> {
        let head = ExtentItem {
            refs: self.refs.into(),
            generation: self.generation.into(),
            flags: self.flags.bits().into(),
        };
        let mut out = head.bytes().to_vec();
        if let Some((key, level)) = self.tree_block {
            out.extend_from_slice(
                TreeBlockInfo {
                    key: key.into(),
                    level,
                }
                .bytes(),
            );
        }
        for r in refs {
            out.extend(r.encode_inline());
        }
        out
    }
}

/// Iterator over inline refs.
#[derive(Clone, Debug)]
pub struct InlineRefs<'a> {
    rest: &'a [u8],
}

impl Iterator for InlineRefs<'_> {
    type Item = Result<InlineRef, ItemError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        match InlineRef::parse_inline(self.rest) {
            Ok((parsed, rest)) => {
                self.rest = rest;
                Some(Ok(parsed))
            }
            Err(err) => {
                self.rest = &[];
                Some(Err(err))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extent_item_round_trip() {
        let refs = [
            InlineRef::TreeBlock { root: 5 },
            InlineRef::ExtentData {
                root: 5,
                objectid: 257,
                offset: 0,
                count: 2,
            },
            InlineRef::SharedBlock { parent: 4096 },
            InlineRef::SharedData {
                parent: 8192,
                count: 3,
            },
            InlineRef::Owner { root: 5 },
        ];
        let item = ExtentItemRef {
            refs: 7,
            generation: 9,
            flags: ExtentFlags::TREE_BLOCK,
            tree_block: Some((Key::new(1, 2, 3), 1)),
            inline: &[],
        };
        let bytes = item.encode(&refs);
        let parsed = ExtentItemRef::parse(kind::EXTENT_ITEM, &bytes).unwrap();
        assert_eq!(parsed.tree_block, item.tree_block);
        assert_eq!(
            parsed.inline_refs().collect::<Result<Vec<_>, _>>().unwrap(),
            refs
        );
        for r in &refs[..4] {
            let key = r.key(1 << 20);
            assert_eq!(InlineRef::parse_keyed(&key, &r.encode_keyed()), Ok(*r));
        }
        assert!(ExtentItemRef::parse(kind::EXTENT_ITEM, &bytes[..30]).is_err());
    }
}
