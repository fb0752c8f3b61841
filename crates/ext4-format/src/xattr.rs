//! Extended attributes: after the fields of the inode, and in a separate block that inodes may
//! share.
//!
//! Both have a list of entries that grows up from the start and ends with four zero bytes, and
//! values that grow down from the end. A value may also be the data of a separate inode
//! (`ea_inode`). Value offsets count from the first entry in an inode, and from the start of the
//! block in a block. Entries of a block are sorted by name index, length and name. Source: kernel
//! documentation, `filesystems/ext4/attributes.rst`.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

mod error;
mod hash;
mod parse;
mod write;

pub use error::{XattrError, XattrPart};
pub use hash::{
    XattrSigns, xattr_block_hash, xattr_block_seal, xattr_block_verify, xattr_entry_hash,
};
pub use parse::{xattr_block_inodes, xattr_ibody_inodes, xattr_ibody_value};

/// Magic of an xattr block and of the list in an inode.
pub const XATTR_MAGIC: u32 = 0xea02_0000;
/// Most inodes that may share a block.
pub const XATTR_REFCOUNT_MAX: u32 = 1024;
/// Bytes of the list's head in an inode: the magic.
pub(crate) const XATTR_IBODY_HEAD: usize = 4;
/// Bytes of an entry before its name.
pub(crate) const XATTR_ENTRY_SIZE: usize = 16;
/// Entries, names and values begin at multiples of this.
const ALIGN: usize = 4;
/// The zero word after the last entry.
const END_MARK: usize = 4;
/// Longest value of any file system, in bytes (`XATTR_SIZE_MAX` of Linux).
pub const XATTR_VALUE_MAX: u32 = 65536;

/// Head of an xattr block.
#[derive(
    Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, PartialEq, Eq,
)]
#[repr(C)]
pub struct XattrHeader {
    /// [`XATTR_MAGIC`].
    pub magic: U32,
    /// Inodes that share the block.
    pub refcount: U32,
    /// Blocks: 1.
    pub blocks: U32,
    /// Hash of all entries, 0 if the block cannot be shared.
    pub hash: U32,
    /// CRC-32C from the file system's seed: block number (8 bytes), then the block with zero here.
    pub checksum: U32,
    /// Zero.
    pub reserved: [U32; 3],
}
const _: () = assert!(size_of::<XattrHeader>() == 32);

/// An entry without its name.
#[derive(
    Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, PartialEq, Eq,
)]
#[repr(C)]
pub struct XattrEntry {
    /// Bytes of the name.
    pub name_len: u8,
    /// [`xattr_index`]: the name's prefix.
    pub name_index: u8,
    /// Offset of the value.
    pub value_offs: U16,
    /// Inode that holds the value, 0 if it is here.
    pub value_inum: U32,
    /// Bytes of the value.
    pub value_size: U32,
    /// Hash of name and value; 0 for values inside the inode.
    pub hash: U32,
}
const _: () = assert!(size_of::<XattrEntry>() == XATTR_ENTRY_SIZE);

/// Name indexes: which prefix a name has.
pub mod xattr_index {
    /// No prefix.
    pub const NONE: u8 = 0;
    /// `user.`
    pub const USER: u8 = 1;
    /// `system.posix_acl_access`, the whole name.
    pub const POSIX_ACL_ACCESS: u8 = 2;
    /// `system.posix_acl_default`, the whole name.
    pub const POSIX_ACL_DEFAULT: u8 = 3;
    /// `trusted.`
    pub const TRUSTED: u8 = 4;
    /// `lustre.`
    pub const LUSTRE: u8 = 5;
    /// `security.`
    pub const SECURITY: u8 = 6;
    /// `system.`
    pub const SYSTEM: u8 = 7;
    /// `system.richacl`, the whole name.
    pub const RICHACL: u8 = 8;
    /// Encryption context, name `c`; has no name for users.
    pub const ENCRYPTION: u8 = 9;
    /// Hurd translators.
    pub const HURD: u8 = 10;
}

/// Prefixes by index; `true`: the prefix is the whole name.
const PREFIXES: [(u8, &[u8], bool); 8] = [
    (
        xattr_index::POSIX_ACL_ACCESS,
        b"system.posix_acl_access",
        true,
    ),
    (
        xattr_index::POSIX_ACL_DEFAULT,
        b"system.posix_acl_default",
        true,
    ),
    (xattr_index::RICHACL, b"system.richacl", true),
    (xattr_index::USER, b"user.", false),
    (xattr_index::TRUSTED, b"trusted.", false),
    (xattr_index::LUSTRE, b"lustre.", false),
    (xattr_index::SECURITY, b"security.", false),
    (xattr_index::SYSTEM, b"system.", false),
];

/// Splits a full name into index and the rest, as ext4 stores it; `None` for names without a known
/// prefix or with an empty rest.
pub fn xattr_split_name(full: &[u8]) -> Option<(u8, &[u8])> {
    PREFIXES.iter().find_map(|&(index, prefix, whole)| {
        let rest = full.strip_prefix(prefix)?;
        (rest.is_empty() == whole).then_some((index, rest))
    })
}

/// The full name; `None` for indexes that have no name for users.
pub fn xattr_full_name(index: u8, name: &[u8]) -> Option<Vec<u8>> {
    let &(_, prefix, whole) = PREFIXES.iter().find(|(known, ..)| *known == index)?;
    if whole != name.is_empty() {
        return None;
    }
    Some([prefix, name].concat())
}

/// Location of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum XattrValue {
    /// Bytes that are stored with the entries.
    Bytes(Vec<u8>),
    /// The data of a separate inode.
    Inode {
        /// The inode.
        inode: u32,
        /// Bytes of the value.
        size: u32,
        /// The entry's hash. When writing, the caller gives [`xattr_entry_hash`] of the name and
        /// the word that is the CRC-32C of the value from the file system's seed.
        hash: u32,
    },
}

/// One attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xattr {
    /// [`xattr_index`].
    pub index: u8,
    /// Name after the prefix.
    pub name: Vec<u8>,
    /// Value.
    pub value: XattrValue,
}

impl Xattr {
    /// Bytes that its entry takes.
    pub fn entry_size(&self) -> usize {
        (XATTR_ENTRY_SIZE + self.name.len()).next_multiple_of(ALIGN)
    }

    /// Bytes that its value takes with the entries.
    pub(crate) fn value_size(&self) -> usize {
        match &self.value {
            XattrValue::Bytes(bytes) => bytes.len().next_multiple_of(ALIGN),
            XattrValue::Inode { .. } => 0,
        }
    }

    /// Order in a block.
    fn sort_key(&self) -> (u8, usize, &[u8]) {
        (self.index, self.name.len(), &self.name)
    }
}

/// All attributes of one place, in their order there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct XattrSet {
    /// The attributes.
    pub entries: Vec<Xattr>,
}

impl XattrSet {
    /// Finds one.
    pub fn get(&self, index: u8, name: &[u8]) -> Option<&Xattr> {
        self.entries
            .iter()
            .find(|xattr| xattr.index == index && xattr.name == name)
    }

    /// Sets a value. Returns the old value, if there was one.
    pub fn set(&mut self, index: u8, name: &[u8], value: XattrValue) -> Option<XattrValue> {
        let old = self
            .entries
            .iter_mut()
            .find(|xattr| xattr.index == index && xattr.name == name);
        if let Some(old) = old {
            return Some(std::mem::replace(&mut old.value, value));
        }
        self.entries.push(Xattr {
            index,
            name: name.to_vec(),
            value,
        });
        None
    }

    /// Removes one.
    pub fn remove(&mut self, index: u8, name: &[u8]) -> Option<Xattr> {
        let at = self
            .entries
            .iter()
            .position(|xattr| xattr.index == index && xattr.name == name)?;
        Some(self.entries.remove(at))
    }

    /// Bytes of entries, end mark and values, without any head.
    fn body_size(&self) -> usize {
        self.entries
            .iter()
            .map(|xattr| xattr.entry_size() + xattr.value_size())
            .sum::<usize>()
            + END_MARK
    }

    /// Bytes needed in a block; it fits if that is no more than the block size.
    pub fn block_size_needed(&self) -> usize {
        size_of::<XattrHeader>() + self.body_size()
    }

    /// Bytes needed in the inode after its extra fields; 0 for an empty set.
    pub fn ibody_size_needed(&self) -> usize {
        if self.entries.is_empty() {
            0
        } else {
            XATTR_IBODY_HEAD + self.body_size()
        }
    }
}
