//! Ioctls that FUSE carries: those whose input and output have the fixed size that their number
//! encodes, and the two of [fs-verity](crate::verity).
//!
//! The kernel checks the right to change flags, and translates a program's `FS_IOC_*FLAGS` and
//! `FS_IOC_FS*XATTR` into the numbers below. `FICLONE` and `FIEMAP` never arrive: the kernel fails
//! them for FUSE with "not supported".

use sapwood_vfs::{Error, FileSystem, Fsxattr, Ino, InodeFlags, TrimRange};

use crate::request::Reply;
use crate::verity;

/// `_IOR('f', 1, long)` and, for 32-bit programs, `_IOR('f', 1, int)`.
const GET_FLAGS: [u32; 2] = [0x8008_6601, 0x8004_6601];
/// `_IOW('f', 2, long)` and `_IOW('f', 2, int)`.
const SET_FLAGS: [u32; 2] = [0x4008_6602, 0x4004_6602];
/// `_IOR('v', 1, long)` and `_IOR('v', 1, int)`.
const GET_VERSION: [u32; 2] = [0x8008_7601, 0x8004_7601];
/// `_IOR('X', 31, struct fsxattr)`
const FS_GET_XATTR: u32 = 0x801c_581f;
/// `_IOW('X', 32, struct fsxattr)`
const FS_SET_XATTR: u32 = 0x401c_5820;

/// `_IOWR('X', 121, struct fstrim_range)`
pub(crate) const FITRIM: u32 = 0xc018_5879;

/// `FS_EXTENT_FL`: the file is mapped by extents. Clearing it requests another mapping.
const EXTENTS: u32 = 0x8_0000;

/// Whether a command changes the flags of an inode, or seals it.
pub(crate) fn sets_flags(command: u32) -> bool {
    SET_FLAGS.contains(&command) || matches!(command, FS_SET_XATTR | verity::ENABLE)
}

/// Answers one command. The answer fills the output buffer from its start.
pub(crate) fn handle(fs: &dyn FileSystem, ino: Ino, command: u32, input: &[u8]) -> Reply<Vec<u8>> {
    if GET_FLAGS.contains(&command) {
        let attr = fs.getattr(ino).map_err(errno)?;
        return Ok(pad(attr.flags.bits() | attr.layout));
    }
    if SET_FLAGS.contains(&command) {
        let layout = fs.getattr(ino).map_err(errno)?.layout;
        let asked = word(input, 0)?;
        // Other file systems ignore changes of flags that no caller can set. But clearing
        // `EXTENTS` asks some of them to convert the file, which this one refuses.
        if layout & !asked & EXTENTS != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        // Bits that no engine knows are refused, not ignored.
        let flags = InodeFlags::from_bits(asked & !layout).ok_or(libc::EOPNOTSUPP)?;
        fs.set_flags(ino, flags).map_err(errno)?;
        return Ok(Vec::new());
    }
    if GET_VERSION.contains(&command) {
        let attr = fs.getattr(ino).map_err(errno)?;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the command returns an int"
        )]
        return Ok(pad(attr.generation as u32));
    }
    match command {
        FS_GET_XATTR => Ok(encode_fsxattr(&fs.fsxattr(ino).map_err(errno)?)),
        FS_SET_XATTR => {
            let value = decode_fsxattr(input)?;
            fs.set_fsxattr(ino, &value).map_err(errno)?;
            Ok(Vec::new())
        }
        FITRIM => trim(fs, input),
        verity::ENABLE => verity::enable(fs, ino, input).map(|()| Vec::new()),
        verity::MEASURE => verity::measure(fs, ino, input),
        _ => Err(libc::ENOTTY),
    }
}

/// `struct fstrim_range`: start, length, least length. The answer has the bytes that were discarded
/// in place of the length.
fn trim(fs: &dyn FileSystem, input: &[u8]) -> Reply<Vec<u8>> {
    let mut range = TrimRange {
        start: long(input, 0)?,
        len: long(input, 8)?,
        least: long(input, 16)?,
    };
    // Deleted space is free only once the deletion is durable.
    fs.sync().map_err(errno)?;
    range.len = fs.trim(&range).map_err(errno)?;
    let words = [range.start, range.len, range.least];
    Ok(words.iter().flat_map(|word| word.to_ne_bytes()).collect())
}

fn long(input: &[u8], at: usize) -> Reply<u64> {
    input
        .get(at..)
        .and_then(|rest| rest.first_chunk::<8>())
        .map(|bytes| u64::from_ne_bytes(*bytes))
        .ok_or(libc::EINVAL)
}

fn errno(error: Error) -> i32 {
    match error {
        Error::NotSupported => libc::ENOTTY,
        other => other.errno(),
    }
}

/// A 32-bit value for a buffer that may be declared as 64 bits.
fn pad(value: u32) -> Vec<u8> {
    u64::from(value).to_ne_bytes().to_vec()
}

fn word(input: &[u8], at: usize) -> Reply<u32> {
    input
        .get(at..)
        .and_then(|rest| rest.first_chunk::<4>())
        .map(|bytes| u32::from_ne_bytes(*bytes))
        .ok_or(libc::EINVAL)
}

/// `struct fsxattr`: five words and eight bytes of padding.
fn encode_fsxattr(value: &Fsxattr) -> Vec<u8> {
    let words = [
        value.xflags,
        value.extsize,
        value.nextents,
        value.projid,
        value.cowextsize,
        0,
        0,
    ];
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn decode_fsxattr(input: &[u8]) -> Reply<Fsxattr> {
    Ok(Fsxattr {
        xflags: word(input, 0)?,
        extsize: word(input, 4)?,
        nextents: word(input, 8)?,
        projid: word(input, 12)?,
        cowextsize: word(input, 16)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fsxattr_round_trips_and_a_short_one_is_refused() {
        let value = Fsxattr {
            xflags: 1,
            extsize: 2,
            nextents: 3,
            projid: 4,
            cowextsize: 5,
        };
        let bytes = encode_fsxattr(&value);
        assert_eq!(bytes.len(), 28);
        assert_eq!(decode_fsxattr(&bytes), Ok(value));
        assert_eq!(decode_fsxattr(&bytes[..19]), Err(libc::EINVAL));
    }
}
