//! Evidence for the identity of a device that has neither a superblock nor tree blocks.
//!
//! Data without checksums is read from a device only if the device is certainly the one that the
//! chunk names. A device that is merely the last one could be of another file system. Data on it
//! that matches checksums shows that it is not.

use std::ops::ControlFlow;

use sapwood_btrfs_format::{Key, kind};

use super::items::items;
use super::leaves::Leaves;
use super::nodes::Nodes;
use super::volume::Volume;

/// Sectors that are compared.
const SECTORS: u64 = 64;
/// Distance in sectors between two of one checksum item.
const DISTANCE: usize = 16;
/// Most checksum items that are read.
const ITEMS: u64 = 100_000;

/// Whether most sectors of a device have the checksums of those on the device with this id. A
/// sector of equal bytes shows nothing. `device`: its index.
pub(super) fn has_data(
    volume: &Volume,
    nodes: &Nodes,
    checksums: &Leaves,
    (device, devid): (usize, u64),
) -> bool {
    let Some(member) = volume.members.get(device) else {
        return false;
    };
    let identity = &nodes.identity;
    let sector = u64::from(identity.sectorsize);
    let mut bytes = vec![0; identity.sectorsize as usize];
    let (mut right, mut compared, mut read) = (0, 0, 0);
    items(nodes, checksums, Key::MIN, Key::MAX, &mut |key, data| {
        if key.kind != kind::EXTENT_CSUM {
            return ControlFlow::Continue(());
        }
        read += 1;
        let sums = data.chunks_exact(identity.checksum.size()).enumerate();
        for (number, sum) in sums.step_by(DISTANCE) {
            let logical = key.offset.saturating_add(number as u64 * sector);
            for physical in volume.on_device(logical, devid) {
                if member.device.read_at(physical, &mut bytes).is_err()
                    || bytes.iter().all(|byte| Some(byte) == bytes.first())
                {
                    continue;
                }
                compared += 1;
                let found = identity.checksum.compute(&bytes);
                right += u64::from(identity.checksum.read(sum) == Some(found));
            }
        }
        if compared < SECTORS && read < ITEMS {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    });
    right > 0 && right * 2 >= compared
}
