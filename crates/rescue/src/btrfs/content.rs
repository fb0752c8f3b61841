//! The content of files: extents, holes, and ranges that are lost.

use std::ops::ControlFlow;

use sapwood_btrfs_format::{FileExtent, Key, kind};
use sapwood_vfs::Result;

use super::data::Compressed;
use super::files::{Files, Subvolume};
use super::items::{floor, items};
use crate::Lost;

/// Most bytes of an extent of data; btrfs makes smaller ones.
const MOST_EXTENT: u64 = 1 << 30;

/// One kind of content from an offset of a file on.
pub(super) enum Run {
    /// Zeros up to this offset.
    Hole(u64),
    /// Data up to this offset.
    Data(u64),
    /// The extent item is lost or makes no sense.
    Lost,
}

impl Files {
    /// The extent item that covers an offset, and the offset of the next one.
    fn extent(&self, sub: &Subvolume, number: u64, at: u64) -> (Option<(u64, Vec<u8>)>, u64) {
        let key = |offset| Key::new(number, kind::EXTENT_DATA, offset);
        let found = floor(&self.nodes, &sub.leaves, key(at), key(0));
        let covers = found.and_then(|(key, data)| {
            let len = FileExtent::parse(&data).ok()?.len();
            (at - key.offset < len).then_some((key.offset, data))
        });
        let mut next = u64::MAX;
        if covers.is_none() && at < u64::MAX {
            let (from, to) = (key(at + 1), key(u64::MAX));
            items(&self.nodes, &sub.leaves, from, to, &mut |key, _| {
                next = key.offset;
                ControlFlow::Break(())
            });
        }
        (covers, next)
    }

    /// The content from an offset on, up to the end of an extent or hole.
    pub(super) fn run(&self, sub: &Subvolume, number: u64, at: u64, size: u64) -> Run {
        let (covers, next) = self.extent(sub, number, at);
        let next = next.min(size);
        let Some((start, data)) = covers else {
            return if self.lost_between(sub, number, at, next) {
                Run::Lost
            } else {
                Run::Hole(next)
            };
        };
        let end = |len| start.saturating_add(len).min(size);
        match FileExtent::parse(&data) {
            Ok(FileExtent::Regular(extent)) if extent.is_hole() => Run::Hole(end(extent.num_bytes)),
            Ok(FileExtent::Prealloc(extent)) => Run::Hole(end(extent.num_bytes)),
            Ok(extent) if extent.len() <= MOST_EXTENT => Run::Data(end(extent.len())),
            _ => Run::Lost,
        }
    }

    /// Whether extent items of a range may be lost.
    fn lost_between(&self, sub: &Subvolume, number: u64, at: u64, next: u64) -> bool {
        let key = |offset| Key::new(number, kind::EXTENT_DATA, offset);
        let last = key(next.saturating_sub(1).max(at));
        sub.leaves.lost_in(&key(at), &last).is_some()
    }

    /// Fills `buf` from an offset on, at most up to the end of an extent or hole. Returns the
    /// number of bytes. `sums`: the data has checksums.
    ///
    /// # Errors
    /// [`Lost`]: the extent item, its data, or its checksum.
    pub(super) fn read_run(
        &self,
        sub: &Subvolume,
        number: u64,
        at: u64,
        buf: &mut [u8],
        sums: bool,
    ) -> Result<usize> {
        let (covers, next) = self.extent(sub, number, at);
        let Some((start, item)) = covers else {
            let len = (next - at).min(buf.len() as u64);
            if self.lost_between(sub, number, at, at + len) {
                let key = Key::new(number, kind::EXTENT_DATA, at);
                return Err(Lost::Item { tree: sub.id, key }.into());
            }
            buf[..len as usize].fill(0);
            return Ok(len as usize);
        };
        let within = at - start;
        let broken = Lost::Map {
            ino: number,
            block: at,
        };
        let extent = FileExtent::parse(&item).map_err(|_| broken.clone())?;
        let len = (extent.len() - within).min(buf.len() as u64) as usize;
        let buf = &mut buf[..len];
        match extent {
            FileExtent::Prealloc(_) => buf.fill(0),
            FileExtent::Regular(extent) if extent.is_hole() => buf.fill(0),
            FileExtent::Inline {
                ram_bytes,
                compression,
                data,
                ..
            } => {
                let expanded = match compression {
                    0 => data.to_vec(),
                    other => self.data.inline(other, data, ram_bytes).ok_or(broken)?,
                };
                copy_part(&expanded, within, buf);
            }
            FileExtent::Regular(extent) if extent.compression == 0 => {
                let from = extent.offset.checked_add(within);
                let from = from.and_then(|from| extent.disk_bytenr.checked_add(from));
                let own = (extent.disk_bytenr, extent.generation);
                self.data.read(own, from.ok_or(broken)?, buf, sums)?;
            }
            FileExtent::Regular(extent) => {
                let compressed = Compressed {
                    algorithm: extent.compression,
                    extent: (extent.disk_bytenr, extent.generation),
                    stored: extent.disk_num_bytes,
                    len: extent.ram_bytes,
                };
                let expanded = self.data.expand(&compressed, sums)?;
                copy_part(&expanded, extent.offset.saturating_add(within), buf);
            }
        }
        Ok(len)
    }
}

/// Fills `buf` from an offset of `bytes`; with zeros after their end.
fn copy_part(bytes: &[u8], from: u64, buf: &mut [u8]) {
    let from = usize::try_from(from).unwrap_or(usize::MAX);
    let rest = bytes.get(from..).unwrap_or_default();
    let len = rest.len().min(buf.len());
    let (front, back) = buf.split_at_mut(len);
    front.copy_from_slice(&rest[..len]);
    back.fill(0);
}
