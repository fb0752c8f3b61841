//! What `sapwood info` says of an ext4.

use std::path::Path;

use sapwood_block::Device;
use sapwood_ext4_format::{Compat, Incompat, SUPER_OFFSET, SUPER_SIZE, SuperBlock};
use serde_json::{Value, json};

use super::super::failure::{Failure, IMAGE, Result};
use super::super::output;
use super::Rows;

pub(super) fn rows(image: &Path, device: &dyn Device) -> Result<Rows> {
    let mut bytes = [0; SUPER_SIZE];
    let read = device.read_at(SUPER_OFFSET, &mut bytes);
    read.map_err(|error| Failure::local(image, error).with_code(IMAGE))?;
    let super_block =
        SuperBlock::parse(&bytes).map_err(|error| Failure::local(image, error).with_code(IMAGE))?;
    let unit = 1024_u64.checked_shl(super_block.log_block_size.get());
    let unit = unit.unwrap_or_default();
    let blocks = super_block.blocks_count();
    let free = super_block.free_blocks_count();
    let features = super_block.features();
    let journal = match features.compat.contains(Compat::HAS_JOURNAL) {
        true => json!(features.incompat.contains(Incompat::RECOVER)),
        false => Value::Null,
    };
    Ok(vec![
        ("kind", json!("ext4")),
        ("label", json!(super_block.label())),
        ("uuid", json!(output::uuid(&super_block.uuid))),
        ("size", json!(blocks.saturating_mul(unit))),
        (
            "used",
            json!(blocks.saturating_sub(free).saturating_mul(unit)),
        ),
        ("free", json!(free.saturating_mul(unit))),
        ("blocksize", json!(unit)),
        ("inodesize", json!(super_block.inode_size.get())),
        ("inodes", json!(super_block.inodes_count.get())),
        ("freeinodes", json!(super_block.free_inodes_count.get())),
        ("features", json!(features.names())),
        ("journal", journal),
    ])
}
