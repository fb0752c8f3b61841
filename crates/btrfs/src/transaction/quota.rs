//! Reservations against quota limits, with what can be done before one is refused.

use std::sync::Arc;

use sapwood_vfs as vfs;

use super::store::Store;
use crate::quota::{Exceeded, QuotaHold};
use crate::space::Pressure;
use crate::{Error, Result};

/// Bytes of metadata that an operation takes for each item, about.
const ITEM_BYTES: u64 = 256;

impl Store {
    /// Reserves bytes of data for a subvolume. `None` if quotas are off. The caller holds no
    /// handle.
    ///
    /// # Errors
    /// `Quota` if a limit does not allow them; the errors of writing back and of a commit.
    pub(crate) fn reserve_quota(
        self: &Arc<Self>,
        subvolume: u64,
        bytes: u64,
    ) -> Result<Option<QuotaHold>> {
        self.within_limits(|| self.quotas.reserve(subvolume, bytes))
    }

    /// Checks limits before an operation that adds items to a subvolume. The caller holds no
    /// handle.
    ///
    /// # Errors
    /// `Quota` if a limit does not allow them; the errors of writing back and of a commit.
    pub(crate) fn charge_quota(self: &Arc<Self>, subvolume: u64, items: u64) -> Result<()> {
        self.within_limits(|| self.quotas.charge(subvolume, items * ITEM_BYTES))
    }

    /// Reservations are larger than needed, and deletions free bytes only at the commit. So a
    /// refusal is final only after all of that is done.
    fn within_limits<T>(
        self: &Arc<Self>,
        try_it: impl Fn() -> std::result::Result<T, Exceeded>,
    ) -> Result<T> {
        if let Ok(done) = try_it() {
            return Ok(done);
        }
        let before = self.space.deletions.ended_below();
        self.write_back()?;
        self.commit(None)?;
        if let Ok(done) = try_it() {
            return Ok(done);
        }
        if self.space.deletions.settle(before) {
            self.commit(None)?;
        }
        try_it().map_err(|Exceeded| Error::Vfs(vfs::Error::Quota))
    }
}
