//! The item of a balance in progress, in the tree of trees at
//! ([`BALANCE`](crate::objectid::BALANCE), [`BALANCE_ITEM`](crate::kind::BALANCE_ITEM), 0).

use bitflags::bitflags;
use zerocopy::little_endian::{U32, U64};

use crate::layout::{disk_struct, offsets};

bitflags! {
    /// The contents that a balance moves, and how.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct BalanceFlags: u64 {
        /// Block groups of data.
        const DATA = 1;
        /// Block groups of the chunk tree.
        const SYSTEM = 1 << 1;
        /// Block groups of metadata.
        const METADATA = 1 << 2;
        /// A conversion may leave metadata with fewer copies.
        const FORCE = 1 << 3;
    }
}

bitflags! {
    /// The filters of one content that are in use.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct BalanceArgsFlags: u64 {
        /// `profiles`.
        const PROFILES = 1;
        /// `usage`, up to this.
        const USAGE = 1 << 1;
        /// `devid`.
        const DEVID = 1 << 2;
        /// Range of offsets on a device.
        const DRANGE = 1 << 3;
        /// Range of logical addresses.
        const VRANGE = 1 << 4;
        /// `limit`, at most.
        const LIMIT = 1 << 5;
        /// `limit_min` and `limit_max`.
        const LIMIT_RANGE = 1 << 6;
        /// Range of the number of stripes.
        const STRIPES_RANGE = 1 << 7;
        /// `target`.
        const CONVERT = 1 << 8;
        /// Groups that have the profile of `target` stay.
        const SOFT = 1 << 9;
        /// `usage_min` and `usage_max`.
        const USAGE_RANGE = 1 << 10;
    }
}

/// The bit of the profile single in `profiles` and `target`; other profiles have the bits of
/// [`BlockGroupFlags`](crate::BlockGroupFlags).
pub const SINGLE_PROFILE: u64 = 1 << 48;

disk_struct! {
    /// Filters for block groups of one content.
    pub struct BalanceArgs = 136 {
        /// Profiles, as bits.
        pub profiles: U64,
        /// Least percentage in use; with [`BalanceArgsFlags::USAGE`], the low half of the greatest.
        pub usage_min: U32,
        /// Greatest percentage in use; with [`BalanceArgsFlags::USAGE`], its high half.
        pub usage_max: U32,
        /// Device id.
        pub devid: U64,
        /// First offset on the device.
        pub pstart: U64,
        /// Last offset on the device.
        pub pend: U64,
        /// First logical address.
        pub vstart: U64,
        /// Last logical address.
        pub vend: U64,
        /// New profile, as a bit.
        pub target: U64,
        /// Bits of [`BalanceArgsFlags`].
        pub flags: U64,
        /// Least number of groups; with [`BalanceArgsFlags::LIMIT`], the low half of the greatest.
        pub limit_min: U32,
        /// Greatest number of groups; with [`BalanceArgsFlags::LIMIT`], its high half.
        pub limit_max: U32,
        /// Least number of stripes.
        pub stripes_min: U32,
        /// Greatest number of stripes.
        pub stripes_max: U32,
        /// Zero.
        pub unused: [U64; 6],
    }

    /// A balance in progress.
    pub struct BalanceItem = 448 {
        /// Bits of [`BalanceFlags`].
        pub flags: U64,
        /// Filters of data.
        pub data: BalanceArgs,
        /// Filters of metadata.
        pub metadata: BalanceArgs,
        /// Filters of the chunk tree.
        pub system: BalanceArgs,
        /// Zero.
        pub unused: [U64; 4],
    }
}
offsets!(BalanceArgs {
    devid = 16,
    target = 56,
    flags = 64,
    limit_min = 72,
    stripes_min = 80
});
offsets!(BalanceItem { data = 8, metadata = 144, system = 280 });

impl BalanceArgs {
    /// The filters in use.
    #[must_use]
    pub fn in_use(&self) -> BalanceArgsFlags {
        BalanceArgsFlags::from_bits_retain(self.flags.get())
    }

    /// Greatest percentage of [`BalanceArgsFlags::USAGE`].
    #[must_use]
    pub fn usage(&self) -> u64 {
        u64::from(self.usage_min.get()) | u64::from(self.usage_max.get()) << 32
    }

    /// Greatest number of groups of [`BalanceArgsFlags::LIMIT`].
    #[must_use]
    pub fn limit(&self) -> u64 {
        u64::from(self.limit_min.get()) | u64::from(self.limit_max.get()) << 32
    }
}
