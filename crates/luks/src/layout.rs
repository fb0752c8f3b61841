//! On-disk structures of LUKS headers. Everything is big-endian. Sources: the specifications that
//! the crate's documentation names.

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Start of a LUKS1 header, and of the first LUKS2 header.
pub(crate) const MAGIC: [u8; 6] = *b"LUKS\xba\xbe";
/// Start of the second LUKS2 header.
pub(crate) const MAGIC_2ND: [u8; 6] = *b"SKUL\xba\xbe";

/// A key slot of LUKS1 (`key slot` in the specification).
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Slot1 {
    pub(crate) active: U32,
    pub(crate) iterations: U32,
    pub(crate) salt: [u8; 32],
    /// Sectors of 512 bytes from the start of the device.
    pub(crate) offset: U32,
    pub(crate) stripes: U32,
}
const _: () = assert!(size_of::<Slot1>() == 48);

/// The header of LUKS1 (`phdr`).
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Header1 {
    pub(crate) magic: [u8; 6],
    pub(crate) version: U16,
    pub(crate) cipher: [u8; 32],
    pub(crate) mode: [u8; 32],
    pub(crate) hash: [u8; 32],
    /// Sectors of 512 bytes.
    pub(crate) payload: U32,
    pub(crate) key_bytes: U32,
    pub(crate) digest: [u8; 20],
    pub(crate) digest_salt: [u8; 32],
    pub(crate) digest_iterations: U32,
    pub(crate) uuid: [u8; 40],
    pub(crate) slots: [Slot1; 8],
}
const _: () = assert!(size_of::<Header1>() == 592);
const _: () = assert!(std::mem::offset_of!(Header1, payload) == 104);
const _: () = assert!(std::mem::offset_of!(Header1, uuid) == 168);
const _: () = assert!(std::mem::offset_of!(Header1, slots) == 208);

/// The binary part of a LUKS2 header (`luks2_hdr_disk`). The metadata follows it.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Header2 {
    pub(crate) magic: [u8; 6],
    pub(crate) version: U16,
    /// Bytes of both parts.
    pub(crate) size: U64,
    pub(crate) sequence: U64,
    pub(crate) label: [u8; 48],
    pub(crate) checksum_name: [u8; 32],
    pub(crate) salt: [u8; 64],
    pub(crate) uuid: [u8; 40],
    pub(crate) subsystem: [u8; 48],
    /// Bytes from the start of the device to this header.
    pub(crate) offset: U64,
    pub(crate) padding: [u8; 184],
    /// Digest of both parts, with zeros here.
    pub(crate) checksum: [u8; 64],
    pub(crate) padding_4096: [[u8; 512]; 7],
}
const _: () = assert!(size_of::<Header2>() == 4096);
const _: () = assert!(std::mem::offset_of!(Header2, salt) == 104);
const _: () = assert!(std::mem::offset_of!(Header2, offset) == 256);
const _: () = assert!(std::mem::offset_of!(Header2, checksum) == 448);

/// The text before the first zero.
pub(crate) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0);
    let text = bytes.get(..end.unwrap_or(bytes.len())).unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// A field with a text and zeros after it; what does not fit is cut off.
pub(crate) fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [0; N];
    for (place, byte) in field.iter_mut().zip(text.bytes()) {
        *place = byte;
    }
    field
}
