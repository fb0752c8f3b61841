//! Directories still lead to the top.

use std::collections::BTreeSet;

use super::Replay;
use crate::{Error, Result};

impl Replay<'_> {
    /// Follows every directory that replay gave a name up to the top of the subvolume. A log that
    /// was made up can put a directory below itself: nothing would lead to that ring, and who
    /// walked it would not come to an end. Every ring has a name that replay made.
    ///
    /// # Errors
    /// [`Error::LogRing`].
    pub(super) fn check_ancestors(&self) -> Result<()> {
        let mut followed = BTreeSet::from([self.top_dir()]);
        self.moved
            .iter()
            .try_for_each(|dir| self.follow(*dir, &mut followed))
    }

    fn follow(&self, dir: u64, followed: &mut BTreeSet<u64>) -> Result<()> {
        let (mut at, mut way) = (dir, BTreeSet::new());
        while followed.insert(at) {
            way.insert(at);
            // One without a name is an orphan, and empty.
            let Some((parent, _)) = self.names_of(at)?.into_iter().next() else {
                return Ok(());
            };
            at = parent;
        }
        match way.contains(&at) {
            true => Err(Error::LogRing {
                subvolume: self.root.id(),
                directory: at,
            }),
            false => Ok(()),
        }
    }
}
