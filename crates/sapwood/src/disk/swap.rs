//! Swap space, as the kernel reads it.

/// Bytes of a page, in which swap space is counted.
const PAGE: u64 = 4096;
/// Fewest pages.
const LEAST: u64 = 10;
/// Most bytes of a label.
const LABEL: usize = 16;

/// The first page of swap space of this many bytes; `None` if it cannot have that size or label.
/// Numbers have the byte order of little-endian machines.
pub(super) fn header(size: u64, uuid: [u8; 16], label: &str) -> Option<[u8; PAGE as usize]> {
    let pages = (size / PAGE).min(u64::from(u32::MAX));
    if pages < LEAST || label.len() > LABEL {
        return None;
    }
    let last = u32::try_from(pages - 1).ok()?;
    let mut page = [0; PAGE as usize];
    // Version, last page, number of bad pages.
    page[1024..1028].copy_from_slice(&1u32.to_le_bytes());
    page[1028..1032].copy_from_slice(&last.to_le_bytes());
    page[1036..1052].copy_from_slice(&uuid);
    page[1052..1052 + label.len()].copy_from_slice(label.as_bytes());
    page[4086..].copy_from_slice(b"SWAPSPACE2");
    Some(page)
}
