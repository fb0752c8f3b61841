//! The tags of the fast-commit area.
//!
//! Each begins with its kind and the length of its value, two bytes each, and lies in one block. A
//! head opens the area. A tail ends each fast commit and fills its block; its checksum is over all
//! bytes since the tail before it.

pub(crate) const ADD_RANGE: u16 = 1;
pub(crate) const DEL_RANGE: u16 = 2;
pub(crate) const CREATE: u16 = 3;
pub(crate) const LINK: u16 = 4;
pub(crate) const UNLINK: u16 = 5;
pub(crate) const INODE: u16 = 6;
pub(crate) const PAD: u16 = 7;
pub(crate) const TAIL: u16 = 8;
pub(crate) const HEAD: u16 = 9;

/// Bytes before the value of a tag.
pub(crate) const TAG_HEADER: usize = 4;
