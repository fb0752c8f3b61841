//! Directory blocks as lists of entries.
//!
//! Entries fill a block. Each entry's `rec_len` is the distance to the next, so free space is the
//! slack after a name, or an entry with inode 0. With metadata checksums the last 12 bytes are a
//! tail that looks like an entry without inode and name. Inline directories use the same list, in
//! shorter regions and without a tail. Source: kernel documentation,
//! `filesystems/ext4/directory.rst`.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum::crc32c;

mod edit;
mod error;
mod scan;

pub use edit::NewEntry;
pub use error::DirError;
pub use scan::DirScan;

/// Fixed part of an entry; the name follows. In directories that are both encrypted and casefolded,
/// two hashes follow (8 bytes, after the name padded to 4).
#[derive(
    Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, PartialEq, Eq,
)]
#[repr(C)]
pub struct DirEntryHeader {
    /// Inode, 0 in an entry that is free.
    pub inode: U32,
    /// Bytes to the next entry, see [`rec_len_decode`].
    pub rec_len: U16,
    /// Bytes of the name.
    pub name_len: u8,
    /// [`dir_type`] with the filetype feature; without it the high byte of the name's length (0).
    pub file_type: u8,
}
const _: () = assert!(size_of::<DirEntryHeader>() == DIR_HEADER_SIZE);

/// Tail of a directory block of a file system with metadata checksums.
#[derive(
    Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, PartialEq, Eq,
)]
#[repr(C)]
pub struct DirTail {
    /// Zero.
    pub inode: U32,
    /// 12.
    pub rec_len: U16,
    /// Zero.
    pub name_len: u8,
    /// [`DIR_TAIL_TYPE`].
    pub file_type: u8,
    /// CRC-32C of the block before the tail, from the inode's seed.
    pub checksum: U32,
}
const _: () = assert!(size_of::<DirTail>() == DIR_TAIL_SIZE);

/// Bytes of an entry before its name.
pub const DIR_HEADER_SIZE: usize = 8;
/// Bytes of the tail.
pub(crate) const DIR_TAIL_SIZE: usize = 12;
/// File type that marks the tail.
pub const DIR_TAIL_TYPE: u8 = 0xde;
/// Longest name, in bytes.
pub const NAME_MAX: usize = 255;

/// File types in directory entries.
pub mod dir_type {
    /// Not known (always so without the filetype feature).
    pub const UNKNOWN: u8 = 0;
    /// Regular file.
    pub const REGULAR: u8 = 1;
    /// Directory.
    pub const DIRECTORY: u8 = 2;
    /// Character device.
    pub const CHAR: u8 = 3;
    /// Block device.
    pub const BLOCK: u8 = 4;
    /// Named pipe.
    pub const FIFO: u8 = 5;
    /// Socket.
    pub const SOCKET: u8 = 6;
    /// Symbolic link.
    pub const SYMLINK: u8 = 7;

    /// The type for the `S_IFMT` bits of a mode.
    pub fn from_mode(mode: u16) -> u8 {
        match mode & 0o170_000 {
            0o100_000 => REGULAR,
            0o040_000 => DIRECTORY,
            0o020_000 => CHAR,
            0o060_000 => BLOCK,
            0o010_000 => FIFO,
            0o140_000 => SOCKET,
            0o120_000 => SYMLINK,
            _ => UNKNOWN,
        }
    }
}

/// Properties of directory blocks, from the superblock and the directory's inode. The functions on
/// blocks are its methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirFormat {
    /// Bytes of a block: the length of every block passed in.
    pub block_size: usize,
    /// Blocks end with a checksum (metadata_csum).
    pub checksums: bool,
    /// Entries carry the file type (filetype).
    pub file_type: bool,
    /// Entries carry their hash: the directory is encrypted and casefolded.
    pub hash_in_entry: bool,
    /// The htree may have one more level (largedir).
    pub large_dir: bool,
    /// Highest inode number (the superblock's inode count).
    pub inodes: u32,
}

/// An entry of a directory, possibly free (inode 0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// Offset in the block, in bytes.
    pub offset: usize,
    /// Bytes to the next entry.
    pub rec_len: usize,
    /// Inode; 0 if free.
    pub inode: u32,
    /// [`dir_type`].
    pub file_type: u8,
    /// Name.
    pub name: &'a [u8],
    /// Major and minor hash, where entries carry them.
    pub hash: Option<(u32, u32)>,
}

impl DirEntry<'_> {
    /// Offset of the next entry.
    pub fn end(&self) -> usize {
        self.offset + self.rec_len
    }

    /// `.` or `..`.
    pub fn is_dots(&self) -> bool {
        matches!(self.name, b"." | b"..")
    }
}

/// The length that a `rec_len` field encodes, in blocks of `block_size` bytes.
///
/// In blocks of 64 KiB the length of a whole block does not fit: it is encoded as 65535 or 0. Other
/// lengths use their two low bits (always 0) for bits 16 and 17.
pub fn rec_len_decode(field: u16, block_size: usize) -> usize {
    let field = usize::from(field);
    if block_size < 65536 {
        field
    } else if field == 65535 || field == 0 {
        block_size
    } else {
        (field & 65532) | ((field & 3) << 16)
    }
}

/// The field for a length, see [`rec_len_decode`]; `None` for lengths that an entry cannot have.
pub fn rec_len_encode(len: usize, block_size: usize) -> Option<u16> {
    if len > block_size || !len.is_multiple_of(4) || len > 1 << 18 {
        return None;
    }
    if len < 65536 {
        return u16::try_from(len).ok();
    }
    if len == block_size {
        return Some(if block_size == 65536 { 65535 } else { 0 });
    }
    u16::try_from((len & 65532) | ((len >> 16) & 3)).ok()
}

/// Iterator over the entries of a block or region. It validates each entry, and ends after the
/// first bad one.
#[derive(Clone, Debug)]
pub struct DirEntries<'a> {
    format: DirFormat,
    bytes: &'a [u8],
    at: usize,
    failed: bool,
}

impl<'a> Iterator for DirEntries<'a> {
    type Item = Result<DirEntry<'a>, DirError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.at >= self.bytes.len() {
            return None;
        }
        let entry = self.format.entry_in(self.bytes, self.at);
        match &entry {
            Ok(entry) => self.at = entry.end(),
            Err(_) => self.failed = true,
        }
        Some(entry)
    }
}

impl DirFormat {
    /// Bytes of a block that entries may use: all except the tail.
    pub fn usable(&self) -> usize {
        let tail = if self.checksums { DIR_TAIL_SIZE } else { 0 };
        self.block_size.saturating_sub(tail)
    }

    /// Smallest size of an entry with this name, in bytes.
    pub fn entry_size(&self, name: &[u8]) -> usize {
        let dots = matches!(name, b"." | b"..");
        let hash = if self.hash_in_entry && !dots { 8 } else { 0 };
        (DIR_HEADER_SIZE + name.len()).next_multiple_of(4) + hash
    }

    /// Entries of a block, without the tail.
    pub fn entries<'a>(&self, block: &'a [u8]) -> DirEntries<'a> {
        self.region_entries(&block[..self.usable().min(block.len())])
    }

    /// Entries of a region that has no tail: of an inline directory.
    pub fn region_entries<'a>(&self, region: &'a [u8]) -> DirEntries<'a> {
        DirEntries {
            format: *self,
            bytes: region,
            at: 0,
            failed: false,
        }
    }

    /// Entries of a block from byte `offset` on, which must be the start of an entry (from an
    /// earlier pass).
    pub fn entries_from<'a>(&self, block: &'a [u8], offset: usize) -> DirEntries<'a> {
        DirEntries {
            at: offset,
            ..self.entries(block)
        }
    }

    /// The entry at a byte offset of a block.
    pub fn entry_at<'a>(&self, block: &'a [u8], offset: usize) -> Result<DirEntry<'a>, DirError> {
        self.entry_in(&block[..self.usable().min(block.len())], offset)
    }

    fn entry_in<'a>(&self, bytes: &'a [u8], offset: usize) -> Result<DirEntry<'a>, DirError> {
        let cut = DirError::Cut { offset };
        let rest = bytes.get(offset..).ok_or(cut)?;
        let (header, body) = DirEntryHeader::ref_from_prefix(rest).map_err(|_| cut)?;
        let rec_len = rec_len_decode(header.rec_len.get(), self.block_size);
        if !rec_len.is_multiple_of(4) || rec_len < DIR_HEADER_SIZE || rec_len > rest.len() {
            return Err(DirError::RecLen {
                offset,
                rec_len,
                room: rest.len(),
            });
        }
        let inode = header.inode.get();
        let name_len = usize::from(header.name_len);
        let name = body.get(..name_len).ok_or(cut)?;
        if inode == 0 {
            // A free entry has a stale name, whose length is meaningless.
            let name = if DIR_HEADER_SIZE + name_len <= rec_len {
                name
            } else {
                &[]
            };
            return Ok(DirEntry {
                offset,
                rec_len,
                inode,
                file_type: dir_type::UNKNOWN,
                name,
                hash: None,
            });
        }
        if name_len == 0 || self.entry_size(name) > rec_len {
            return Err(DirError::NameLen {
                offset,
                name_len,
                rec_len,
            });
        }
        if inode > self.inodes {
            return Err(DirError::Inode {
                offset,
                inode,
                inodes: self.inodes,
            });
        }
        let file_type = if self.file_type {
            header.file_type
        } else {
            dir_type::UNKNOWN
        };
        let mut entry = DirEntry {
            offset,
            rec_len,
            inode,
            file_type,
            name,
            hash: None,
        };
        if self.hash_in_entry && !entry.is_dots() {
            entry.hash = Some(entry_hash(rest, name_len).ok_or(cut)?);
        }
        Ok(entry)
    }

    /// Validates a linear block: all entries, names without `/` and NUL, and the end of the last
    /// entry. [`DirFormat::verify`] checks the checksum.
    pub fn check(&self, block: &[u8]) -> Result<(), DirError> {
        self.check_layout(block)?;
        self.check_region(&block[..self.usable()])
    }

    /// [`DirFormat::check`], but names may contain any bytes, as in encrypted directories.
    pub fn check_layout(&self, block: &[u8]) -> Result<(), DirError> {
        self.size(block)?;
        for entry in self.entries(block) {
            entry?;
        }
        if self.checksums {
            self.tail(block)?;
        }
        Ok(())
    }

    /// Validates the entries of a region without a tail, as in an inline directory.
    pub fn check_region(&self, region: &[u8]) -> Result<(), DirError> {
        for entry in self.region_entries(region) {
            let entry = entry?;
            if entry.inode != 0 && entry.name.iter().any(|&byte| byte == b'/' || byte == 0) {
                return Err(DirError::Name {
                    offset: entry.offset,
                });
            }
        }
        Ok(())
    }

    /// Finds a name by its exact bytes.
    pub fn find<'a>(&self, block: &'a [u8], name: &[u8]) -> Result<Option<DirEntry<'a>>, DirError> {
        find_in(self.entries(block), name)
    }

    /// Finds a name in a region without a tail.
    pub fn region_find<'a>(
        &self,
        region: &'a [u8],
        name: &[u8],
    ) -> Result<Option<DirEntry<'a>>, DirError> {
        find_in(self.region_entries(region), name)
    }

    /// Whether `.` and `..` are the only entries in use.
    pub fn is_empty(&self, block: &[u8]) -> Result<bool, DirError> {
        for entry in self.entries(block) {
            let entry = entry?;
            if entry.inode != 0 && !entry.is_dots() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn size(&self, block: &[u8]) -> Result<(), DirError> {
        if block.len() == self.block_size && self.usable() >= 2 * DIR_TAIL_SIZE {
            Ok(())
        } else {
            Err(DirError::Size {
                found: block.len(),
                expected: self.block_size,
            })
        }
    }

    /// The tail of a linear block.
    pub fn tail<'a>(&self, block: &'a [u8]) -> Result<&'a DirTail, DirError> {
        self.size(block)?;
        let (_, tail) = DirTail::ref_from_suffix(block).map_err(|_| DirError::Tail)?;
        let fixed = (
            tail.inode.get(),
            tail.rec_len.get(),
            tail.name_len,
            tail.file_type,
        );
        if fixed == (0, DIR_TAIL_SIZE as u16, 0, DIR_TAIL_TYPE) {
            Ok(tail)
        } else {
            Err(DirError::Tail)
        }
    }

    /// Verifies the checksum of a linear block, if there are metadata checksums. `seed` is the
    /// inode's.
    pub fn verify(&self, block: &[u8], seed: u32) -> Result<(), DirError> {
        if !self.checksums {
            return Ok(());
        }
        let found = self.tail(block)?.checksum.get();
        let expected = crc32c(seed, &block[..self.usable()]);
        if found == expected {
            Ok(())
        } else {
            Err(DirError::Checksum { found, expected })
        }
    }

    /// Writes the tail and checksum of a linear block, if there are metadata checksums. `seed` is
    /// the inode's.
    pub fn seal(&self, block: &mut [u8], seed: u32) -> Result<(), DirError> {
        self.size(block)?;
        if !self.checksums {
            return Ok(());
        }
        let at = self.usable();
        let tail = DirTail {
            checksum: crc32c(seed, &block[..at]).into(),
            ..DirTail::EMPTY
        };
        tail.write_to_suffix(block).map_err(|_| DirError::Tail)
    }
}

impl DirTail {
    /// A tail whose checksum is not yet known.
    pub const EMPTY: DirTail = DirTail {
        inode: U32::ZERO,
        rec_len: U16::new(DIR_TAIL_SIZE as u16),
        name_len: 0,
        file_type: DIR_TAIL_TYPE,
        checksum: U32::ZERO,
    };
}

fn find_in<'a>(entries: DirEntries<'a>, name: &[u8]) -> Result<Option<DirEntry<'a>>, DirError> {
    for entry in entries {
        let entry = entry?;
        if entry.inode != 0 && entry.name == name {
            return Ok(Some(entry));
        }
    }
    Ok(None)
}

/// The two hashes after the name, where `rest` begins with the entry.
fn entry_hash(rest: &[u8], name_len: usize) -> Option<(u32, u32)> {
    let at = (DIR_HEADER_SIZE + name_len).next_multiple_of(4);
    let (major, rest) = U32::read_from_prefix(rest.get(at..)?).ok()?;
    let (minor, _) = U32::read_from_prefix(rest).ok()?;
    Some((major.get(), minor.get()))
}
