//! Discards free space on the devices, while other threads allocate and free.

use std::sync::Arc;

use sapwood_vfs::TrimRange;

use super::group::BlockGroup;
use super::state::Space;
use crate::error::Result;

/// Most bytes of a group that are taken out of its free space at a time.
const STEP: u64 = 64 << 20;
/// Divisor of a kind's free space: the part that is taken at a time, so that reservations find
/// space.
const PART: u64 = 4;
/// Most unallocated bytes that no chunk can get at a time.
const DEVICE_STEP: u64 = 1 << 30;

impl Space {
    /// Whether the kernel accepts such a range: it has at least a sector, and its end does not
    /// overflow. It may lie after the end of every device, because logical addresses have no bound.
    pub(crate) fn is_trim_range(&self, range: &TrimRange) -> bool {
        // All of the length means up to the last address.
        let has_end = range.len == u64::MAX || range.start.checked_add(range.len).is_some();
        range.len >= self.sector && range.start < u64::MAX && has_end
    }

    /// Discards free space: of block groups, by logical addresses, and outside of chunks, by
    /// offsets on its device. Space that a transaction freed counts only once it is durable.
    /// Returns the number of bytes, all copies counted.
    ///
    /// # Errors
    /// Errors of the device; unreadable blocks.
    pub(crate) fn trim(&self, range: &TrimRange) -> Result<u64> {
        let mut bytes = 0;
        for group in self.all_groups() {
            bytes += self.discard_group(&group, range)?;
        }
        for (devid, from, to) in self.unused_ranges() {
            if let Some((from, to)) = clipped(range, from, to) {
                bytes += self.discard_unused(devid, from, to)?;
            }
        }
        Ok(bytes)
    }

    fn discard_group(&self, group: &Arc<BlockGroup>, range: &TrimRange) -> Result<u64> {
        self.ensure_loaded(group)?;
        let free: Vec<(u64, u64)> = group.lock().free.iter().collect();
        let mut bytes = 0;
        for (start, len) in free {
            let Some((mut at, end)) = clipped(range, start, start + len) else {
                continue;
            };
            while at < end {
                let most = group.info.sums().free() / PART / self.sector * self.sector;
                let len = STEP.min(most).min(end - at);
                if len == 0 {
                    break;
                }
                // Space that was allocated meanwhile is left out.
                if group.take_exactly(at, len).is_ok() {
                    let done = self.volume.discard(at, len);
                    group.untake(at, len)?;
                    done?;
                    bytes += len * self.volume.mirrors(at, len)? as u64;
                }
                at += len;
            }
        }
        Ok(bytes)
    }

    fn discard_unused(&self, devid: u64, from: u64, to: u64) -> Result<u64> {
        let (mut at, mut bytes) = (from, 0);
        while at < to {
            let len = DEVICE_STEP.min(to - at);
            let claimed = {
                let mut devices = self.devices.lock();
                let device = devices.by_id.get_mut(&devid);
                device.is_some_and(|device| device.claim(at, len))
            };
            if claimed {
                let done = self.volume.discard_physical(devid, at, len);
                if let Some(device) = self.devices.lock().by_id.get_mut(&devid) {
                    device.give(at, len);
                }
                done?;
                bytes += len;
            }
            at += len;
        }
        Ok(bytes)
    }
}

/// The part of free space to discard: (start, end).
fn clipped(range: &TrimRange, from: u64, to: u64) -> Option<(u64, u64)> {
    let (from, to) = (
        from.max(range.start),
        to.min(range.start.saturating_add(range.len)),
    );
    (from < to && to - from >= range.least).then_some((from, to))
}
