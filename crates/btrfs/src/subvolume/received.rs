//! The mark of a received subvolume.

use std::sync::Arc;

use sapwood_btrfs_format::{RootFlags, Timespec};

use super::layer::Subvolumes;
use super::uuid_tree::{self, Which};
use crate::Result;
use crate::tree::Root;

/// Records that a subvolume equals the subvolume `uuid` as of the transaction `transid` of its file
/// system, and makes it read-only and durable. The caller has written its data back.
///
/// # Errors
/// No space; the errors of [`Store::commit`](crate::transaction::Store::commit).
pub(crate) fn set_received(
    subvolumes: &Arc<Subvolumes>,
    root: &Arc<Root>,
    uuid: [u8; 16],
    transid: u64,
) -> Result<()> {
    let _changes = subvolumes.changes.lock();
    let mut h = subvolumes.start(2)?;
    let now = h.store().now();
    let old = {
        let mut item = root.item();
        let mut flags = item.root_flags();
        flags.insert(RootFlags::RDONLY);
        item.flags = flags.bits().into();
        item.stransid = transid.into();
        item.rtransid = h.transid().into();
        item.rtime = Timespec::new(now.sec, now.nsec);
        item.stime = Timespec::default();
        std::mem::replace(&mut item.received_uuid, uuid)
    };
    h.record_root(root);
    let own = h.transid();
    let done = uuid_tree::remove(&mut h, Which::Received, &old, root.id())
        .and_then(|()| uuid_tree::add(&mut h, Which::Received, &uuid, root.id()));
    h.finish(done)?;
    subvolumes.commit(Some(own))
}
