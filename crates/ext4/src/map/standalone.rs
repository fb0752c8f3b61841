//! Reads a map straight from the device, before there is a cache.

use std::ops::Deref;

use sapwood_block::Device;
use sapwood_ext4_format::{Geometry, Inode};

use super::nodes::{Blocks, NodeKind, World};
use super::{Mapped, Run, of_raw};
use crate::Result;

/// Runs that a map may have here: a journal of 4 GiB in pieces of one block has no more.
const RUNS_MAX: usize = 1 << 22;

/// Reads blocks of maps from the device, each time anew.
struct Direct<'a> {
    device: &'a dyn Device,
    geometry: &'a Geometry,
    world: World,
}

impl Blocks for Direct<'_> {
    type Node = (u64, std::sync::Arc<Vec<u8>>);

    fn world(&self) -> &World {
        &self.world
    }

    fn node(
        &self,
        block: u64,
        _kind: NodeKind,
        judge: &dyn Fn(&[u8]) -> Result<(), String>,
    ) -> Result<Self::Node> {
        let mut bytes = vec![0; self.world.block_size as usize];
        self.device
            .read_at(self.geometry.block_offset(block)?, &mut bytes)?;
        judge(&bytes).map_err(|reason| self.world.bad_block(block, reason))?;
        Ok((block, bytes.into()))
    }

    /// The groups are not known yet.
    fn is_system(&self, _physical: u64, _len: u64) -> bool {
        false
    }

    fn place(&self, node: &Self::Node) -> u64 {
        node.0
    }

    fn bytes(&self, node: &Self::Node) -> impl Deref<Target = [u8]> {
        let bytes: &[u8] = &node.1;
        bytes
    }
}

/// The runs of the first `blocks` blocks of an inode, in order, without holes.
///
/// # Errors
/// The map is damaged; errors of the device.
pub(crate) fn runs(
    device: &dyn Device,
    geometry: &Geometry,
    ino: u32,
    raw: &Inode,
    blocks: u64,
) -> Result<Vec<Run>> {
    let direct = Direct {
        device,
        geometry,
        world: World::new(geometry, ino, raw.generation()),
    };
    let mut runs = Vec::new();
    let mut at = 0;
    while at < blocks {
        let run = of_raw(&direct, raw.block(), raw.flags(), at, blocks - at)?;
        if run.len == 0 || runs.len() >= RUNS_MAX {
            return Err(direct.world.bad_map("its map has no end"));
        }
        at = at.saturating_add(run.len);
        if run.what != Mapped::Hole {
            runs.push(run);
        }
    }
    Ok(runs)
}
