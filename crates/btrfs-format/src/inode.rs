//! Inodes, their names and directory entries.

use zerocopy::little_endian::{U16, U32, U64};

use crate::layout::{disk_struct, offsets};
use crate::{DiskKey, InodeFlags, ItemError, Key};

/// Longest name of a directory entry or xattr.
pub const NAME_MAX: usize = 255;

disk_struct! {
    /// A time.
    pub struct Timespec = 12 {
        /// Seconds since 1970, two's complement.
        pub sec: U64,
        /// Nanoseconds.
        pub nsec: U32,
    }

    /// An inode.
    pub struct InodeItem = 160 {
        /// Transid in which it was made.
        pub generation: U64,
        /// Transid of its last change.
        pub transid: U64,
        /// File size; of a directory: twice the sum of its names' lengths.
        pub size: U64,
        /// Bytes of data it holds.
        pub nbytes: U64,
        /// Zero.
        pub block_group: U64,
        /// Hard links.
        pub nlink: U32,
        /// User id.
        pub uid: U32,
        /// Group id.
        pub gid: U32,
        /// Type and permissions as `st_mode`.
        pub mode: U32,
        /// Device number (major << 20 | minor), else 0.
        pub rdev: U64,
        /// [`InodeFlags`].
        pub flags: U64,
        /// Change counter (NFS).
        pub sequence: U64,
        /// Zero.
        pub reserved: [U64; 4],
        /// Access time.
        pub atime: Timespec,
        /// Status change time.
        pub ctime: Timespec,
        /// Data change time.
        pub mtime: Timespec,
        /// Birth time.
        pub otime: Timespec,
    }

    /// One name of an inode; the name follows.
    pub struct InodeRef = 10 {
        /// Index of the name in its directory.
        pub index: U64,
        /// Bytes of the name.
        pub name_len: U16,
    }

    /// One name of an inode, extended form; the name follows.
    pub struct InodeExtref = 18 {
        /// Directory.
        pub parent: U64,
        /// Index of the name in its directory.
        pub index: U64,
        /// Bytes of the name.
        pub name_len: U16,
    }

    /// Directory entry or xattr; name and data follow.
    pub struct DirItem = 30 {
        /// Key of the target: an inode item or a root item. Zero in an xattr.
        pub location: DiskKey,
        /// Transid in which it was made.
        pub transid: U64,
        /// Bytes of data after the name (xattrs only).
        pub data_len: U16,
        /// Bytes of the name.
        pub name_len: U16,
        /// [`file_type`](crate::file_type).
        pub kind: u8,
    }

    /// End of a range of a directory's keys that the log is complete for.
    pub struct DirLogItem = 8 {
        /// Last index (or hash) of the range; the key's offset is the first.
        pub end: U64,
    }

    /// First VERITY_DESC_ITEM of a file with a hash tree of fs-verity, at offset 0. The descriptor
    /// itself is in the items from offset 1 on.
    pub struct VerityHeader = 25 {
        /// Bytes of the descriptor, with its signature.
        pub size: U64,
        /// Zero.
        pub reserved: [U64; 2],
        /// Kind of encryption; 0 for none.
        pub encryption: u8,
    }
}
offsets!(InodeItem { nlink = 40, mode = 52, flags = 64, atime = 112, otime = 148 });
offsets!(VerityHeader { reserved = 8, encryption = 24 });
offsets!(DirItem { transid = 17, data_len = 25, name_len = 27, kind = 29 });

impl Timespec {
    /// A time from signed seconds and nanoseconds.
    pub fn new(sec: i64, nsec: u32) -> Self {
        Self {
            sec: (sec as u64).into(),
            nsec: nsec.into(),
        }
    }

    /// Seconds, negative before 1970.
    pub fn seconds(&self) -> i64 {
        self.sec.get() as i64
    }

    /// Nanoseconds, at most 999,999,999 whatever is stored.
    pub fn nanos(&self) -> u32 {
        self.nsec.get().min(999_999_999)
    }
}

/// Major and minor number of the device number in an inode item (`rdev`).
#[must_use]
pub fn split_device(stored: u64) -> (u32, u32) {
    ((stored >> 20) as u32, (stored & 0xf_ffff) as u32)
}

/// The device number that an inode item stores. The minor number has 20 bits.
#[must_use]
pub fn join_device(major: u32, minor: u32) -> u64 {
    u64::from(major) << 20 | u64::from(minor & 0xf_ffff)
}

impl InodeItem {
    /// The inode in the root item of a new tree with nodes of `nodesize` bytes.
    #[must_use]
    pub fn of_new_tree(nodesize: u32) -> Self {
        Self {
            generation: 1.into(),
            size: 3.into(),
            nbytes: u64::from(nodesize).into(),
            nlink: 1.into(),
            mode: 0o040_755.into(),
            flags: InodeFlags::ROOT_ITEM_INIT.bits().into(),
            ..Self::default()
        }
    }

    /// Flags, unknown bits retained.
    pub fn inode_flags(&self) -> InodeFlags {
        InodeFlags::from_bits_retain(self.flags.get())
    }
}

/// A parsed directory entry or xattr.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirItemRef<'a> {
    /// The target.
    pub location: Key,
    /// Transid in which it was made.
    pub transid: u64,
    /// [`file_type`](crate::file_type).
    pub kind: u8,
    /// Name.
    pub name: &'a [u8],
    /// Value of an xattr, else empty.
    pub data: &'a [u8],
}

impl DirItemRef<'_> {
    /// The entry's bytes. Name or data over 65535 bytes cannot be stored; they are then cut.
    pub fn encode(&self) -> Vec<u8> {
        let (name, name_len) = clip(self.name);
        let (data, data_len) = clip(self.data);
        let head = DirItem {
            location: self.location.into(),
            transid: self.transid.into(),
            data_len,
            name_len,
            kind: self.kind,
        };
        [head.bytes(), name, data].concat()
    }
}

/// The first 65535 bytes and their length for the disk.
fn clip(bytes: &[u8]) -> (&[u8], U16) {
    let len = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    (bytes.get(..len.into()).unwrap_or_default(), len.into())
}

/// A parsed inode ref.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeRefRef<'a> {
    /// Index of the name in its directory.
    pub index: u64,
    /// Name.
    pub name: &'a [u8],
}

impl InodeRefRef<'_> {
    /// The ref's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let (name, name_len) = clip(self.name);
        [
            InodeRef {
                index: self.index.into(),
                name_len,
            }
            .bytes(),
            name,
        ]
        .concat()
    }
}

/// A parsed extended inode ref.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeExtrefRef<'a> {
    /// Directory.
    pub parent: u64,
    /// Index of the name in its directory.
    pub index: u64,
    /// Name.
    pub name: &'a [u8],
}

impl InodeExtrefRef<'_> {
    /// The ref's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let (name, name_len) = clip(self.name);
        let head = InodeExtref {
            parent: self.parent.into(),
            index: self.index.into(),
            name_len,
        };
        [head.bytes(), name].concat()
    }
}

fn take<'a>(rest: &mut &'a [u8], len: usize, what: &'static str) -> Result<&'a [u8], ItemError> {
    match rest.split_at_checked(len) {
        Some((front, back)) => {
            *rest = back;
            Ok(front)
        }
        None => Err(ItemError::Short {
            what,
            need: len,
            found: rest.len(),
        }),
    }
}

/// Iterator over packed entries of one kind; ends after its first error.
#[derive(Clone, Debug)]
pub struct Packed<'a, T> {
    item: &'a [u8],
    rest: &'a [u8],
    parse: fn(&mut &'a [u8]) -> Result<T, ItemError>,
}

impl<'a, T> Packed<'a, T> {
    fn new(item: &'a [u8], parse: fn(&mut &'a [u8]) -> Result<T, ItemError>) -> Self {
        Self {
            item,
            rest: item,
            parse,
        }
    }

    /// Byte offset in the item of the next entry; the item's length after the last one.
    pub fn offset(&self) -> usize {
        self.item.len() - self.rest.len()
    }
}

impl<T> Iterator for Packed<'_, T> {
    type Item = Result<T, ItemError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let result = (self.parse)(&mut self.rest);
        if result.is_err() {
            self.rest = &[];
        }
        Some(result)
    }
}

fn parse_dir_item<'a>(rest: &mut &'a [u8]) -> Result<DirItemRef<'a>, ItemError> {
    let (head, tail) = DirItem::split(rest)?;
    *rest = tail;
    Ok(DirItemRef {
        location: head.location.get(),
        transid: head.transid.get(),
        kind: head.kind,
        name: take(rest, head.name_len.get().into(), "dir item name")?,
        data: take(rest, head.data_len.get().into(), "dir item data")?,
    })
}

fn parse_inode_ref<'a>(rest: &mut &'a [u8]) -> Result<InodeRefRef<'a>, ItemError> {
    let (head, tail) = InodeRef::split(rest)?;
    *rest = tail;
    let name = take(rest, head.name_len.get().into(), "inode ref name")?;
    Ok(InodeRefRef {
        index: head.index.get(),
        name,
    })
}

fn parse_inode_extref<'a>(rest: &mut &'a [u8]) -> Result<InodeExtrefRef<'a>, ItemError> {
    let (head, tail) = InodeExtref::split(rest)?;
    *rest = tail;
    let name = take(rest, head.name_len.get().into(), "inode extref name")?;
    Ok(InodeExtrefRef {
        parent: head.parent.get(),
        index: head.index.get(),
        name,
    })
}

/// Entries of a DIR_ITEM, DIR_INDEX or XATTR_ITEM.
pub fn dir_items(item: &[u8]) -> Packed<'_, DirItemRef<'_>> {
    Packed::new(item, parse_dir_item)
}

/// Entries of an INODE_REF.
pub fn inode_refs(item: &[u8]) -> Packed<'_, InodeRefRef<'_>> {
    Packed::new(item, parse_inode_ref)
}

/// Entries of an INODE_EXTREF.
pub fn inode_extrefs(item: &[u8]) -> Packed<'_, InodeExtrefRef<'_>> {
    Packed::new(item, parse_inode_extref)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_entries_round_trip() {
        let a = DirItemRef {
            location: Key::new(257, 1, 0),
            transid: 9,
            kind: 1,
            name: b"alpha",
            data: b"",
        };
        let b = DirItemRef {
            kind: 8,
            name: b"user.b",
            data: b"value",
            ..a
        };
        let mut item = a.encode();
        let first = item.len();
        item.extend(b.encode());
        let mut iter = dir_items(&item);
        assert_eq!(iter.next(), Some(Ok(a)));
        assert_eq!(iter.offset(), first);
        assert_eq!(iter.next(), Some(Ok(b)));
        assert_eq!(iter.next(), None);
        item.pop();
        assert!(dir_items(&item).nth(1).is_some_and(|r| r.is_err()));
        assert_eq!(dir_items(&item).count(), 2);
    }

    #[test]
    fn refs_round_trip() {
        let r = InodeRefRef {
            index: 3,
            name: b"x",
        };
        assert_eq!(inode_refs(&r.encode()).next(), Some(Ok(r)));
        let e = InodeExtrefRef {
            parent: 256,
            index: 3,
            name: b"yy",
        };
        assert_eq!(inode_extrefs(&e.encode()).next(), Some(Ok(e)));
    }
}
