//! Times of an inode: 32 bits of seconds in the base, two more and nanoseconds beyond it.

use zerocopy::little_endian::U32;

use super::extra;
use crate::Inode;

/// A point in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Seconds since 1970.
    pub seconds: i64,
    /// Nanoseconds, below 10^9.
    pub nanos: u32,
}

impl Timestamp {
    /// Earliest time that an inode can hold.
    pub const MIN: Self = Self {
        seconds: i32::MIN as i64,
        nanos: 0,
    };
    /// Latest time that an inode can hold which has room for 34 bits: in May 2446.
    pub const MAX: Self = Self {
        seconds: i32::MAX as i64 + (3 << 32),
        nanos: 999_999_999,
    };

    /// Decodes the field of 32 signed bits and the extra one: two high bits and nanoseconds.
    pub(crate) fn decode(seconds: u32, extra: Option<u32>) -> Self {
        let low = i64::from(seconds as i32);
        let extra = extra.unwrap_or(0);
        Self {
            seconds: low + (i64::from(extra & 3) << 32),
            // 30 bits can encode more than a second.
            nanos: (extra >> 2).min(999_999_999),
        }
    }

    /// Encodes the two fields. A time out of range becomes the nearest valid one. Without the extra
    /// field, only 32 signed bits of seconds are stored.
    pub(crate) fn encode(self, has_extra: bool) -> (u32, u32) {
        let max = if has_extra {
            Self::MAX.seconds
        } else {
            i64::from(i32::MAX)
        };
        let seconds = self.seconds.clamp(Self::MIN.seconds, max);
        if !has_extra {
            return (seconds as u32, 0);
        }
        let low = i64::from(seconds as i32);
        let epoch = ((seconds - low) >> 32) as u32 & 3;
        (seconds as u32, self.nanos.min(999_999_999) << 2 | epoch)
    }
}

impl Inode {
    /// Last access.
    pub fn atime(&self) -> Timestamp {
        Timestamp::decode(self.base.atime.get(), self.extra_u32(extra::ATIME))
    }

    /// Last change of the data.
    pub fn mtime(&self) -> Timestamp {
        Timestamp::decode(self.base.mtime.get(), self.extra_u32(extra::MTIME))
    }

    /// Last change of the inode.
    pub fn ctime(&self) -> Timestamp {
        Timestamp::decode(self.base.ctime.get(), self.extra_u32(extra::CTIME))
    }

    /// Creation; `None` if the inode has no room for it.
    pub fn crtime(&self) -> Option<Timestamp> {
        let seconds = self.extra_u32(extra::CRTIME)?;
        Some(Timestamp::decode(
            seconds,
            self.extra_u32(extra::CRTIME_EXTRA),
        ))
    }

    /// Stores the last access, in the precision that the inode has room for.
    pub fn set_atime(&mut self, time: Timestamp) {
        let (seconds, extra) = time.encode(self.extra_u32(extra::ATIME).is_some());
        self.base.atime = U32::new(seconds);
        self.set_extra_u32(extra::ATIME, extra);
    }

    /// Stores the last change of the data, in the precision that the inode has room for.
    pub fn set_mtime(&mut self, time: Timestamp) {
        let (seconds, extra) = time.encode(self.extra_u32(extra::MTIME).is_some());
        self.base.mtime = U32::new(seconds);
        self.set_extra_u32(extra::MTIME, extra);
    }

    /// Stores the last change of the inode, in the precision that the inode has room for.
    pub fn set_ctime(&mut self, time: Timestamp) {
        let (seconds, extra) = time.encode(self.extra_u32(extra::CTIME).is_some());
        self.base.ctime = U32::new(seconds);
        self.set_extra_u32(extra::CTIME, extra);
    }

    /// Stores the creation; nothing happens if there is no room for it.
    pub fn set_crtime(&mut self, time: Timestamp) {
        let (seconds, extra) = time.encode(self.extra_u32(extra::CRTIME_EXTRA).is_some());
        if self.set_extra_u32(extra::CRTIME, seconds) {
            self.set_extra_u32(extra::CRTIME_EXTRA, extra);
        }
    }

    /// Version: counts changes.
    pub fn version(&self) -> u64 {
        let high = self.extra_u32(extra::VERSION_HI).unwrap_or(0);
        u64::from(high) << 32 | u64::from(self.base.version_lo.get())
    }

    /// Stores the version, truncated to the inode's room.
    pub fn set_version(&mut self, version: u64) {
        self.base.version_lo = U32::new(version as u32);
        self.set_extra_u32(extra::VERSION_HI, (version >> 32) as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_ranges() {
        // Kernel documentation, "Inode Timestamps": extra bits, seconds on disk, time.
        for (epoch, low, seconds) in [
            (0, 0x8000_0000, -(1 << 31)),
            (0, 0xffff_ffff, -1),
            (0, 0, 0),
            (0, 0x7fff_ffff, 0x7fff_ffff),
            (1, 0x8000_0000, 0x8000_0000),
            (1, 0xffff_ffff, 0xffff_ffff),
            (1, 0, 0x1_0000_0000),
            (2, 0x8000_0000, 0x1_8000_0000),
            (2, 0x7fff_ffff, 0x2_7fff_ffff),
            (3, 0, 0x3_0000_0000),
            (3, 0x7fff_ffff, 0x3_7fff_ffff),
        ] {
            let time = Timestamp {
                seconds,
                nanos: 123_456_789,
            };
            let extra = 123_456_789 << 2 | epoch;
            assert_eq!(Timestamp::decode(low, Some(extra)), time);
            assert_eq!(time.encode(true), (low, extra));
        }
    }

    #[test]
    fn what_does_not_fit_becomes_the_nearest() {
        let cut = |seconds, nanos, has_extra| {
            let (low, extra) = Timestamp { seconds, nanos }.encode(has_extra);
            Timestamp::decode(low, has_extra.then_some(extra))
        };
        assert_eq!(cut(i64::MAX, u32::MAX, true), Timestamp::MAX);
        assert_eq!(cut(i64::MIN, 0, true), Timestamp::MIN);
        assert_eq!(cut(i64::MIN, 5, false), Timestamp::MIN);
        let latest = Timestamp {
            seconds: i64::from(i32::MAX),
            nanos: 0,
        };
        assert_eq!(cut(1 << 40, 5, false), latest);
        assert_eq!(Timestamp::decode(0, Some(u32::MAX)).nanos, 999_999_999);
    }
}
