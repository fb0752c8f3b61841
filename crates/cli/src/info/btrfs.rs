//! What `sapwood info` says of a btrfs.

use std::path::Path;
use std::sync::Arc;

use sapwood_block::Device;
use sapwood_btrfs::{Options, SubvolumeChoice};
use sapwood_vfs::FileSystem;
use serde_json::json;

use super::super::failure::{Failure, IMAGE, Result};
use super::super::output;
use super::Rows;

pub(super) fn rows(image: &Path, device: Arc<dyn Device>) -> Result<Rows> {
    let super_block = sapwood_btrfs::inspect::super_block(&[device])
        .map_err(|error| Failure::local(image, error).with_code(IMAGE))?;
    let options = Options {
        read_only: true,
        no_log_replay: true,
        subvolume: SubvolumeChoice::Id(5),
        ..Options::default()
    };
    let fs = sapwood::image::open_btrfs(image, options, "this")?;
    let stat = fs.statfs().map_err(|error| Failure::local(image, error))?;
    let unit = u64::from(stat.block_size);
    let subvolumes = fs
        .subvolumes()
        .map(|all| all.list())
        .transpose()?
        .map_or(0, |list| list.len());
    fs.unmount()?;
    let features: Vec<String> = super_block
        .incompat()
        .to_string()
        .split('|')
        .chain(super_block.compat_ro().to_string().split('|'))
        .filter(|name| *name != "none")
        .map(str::to_owned)
        .collect();
    let checksum = super_block
        .checksum_kind()
        .map_or_else(|| "unknown".to_owned(), |kind| kind.to_string());
    Ok(vec![
        ("kind", json!("btrfs")),
        ("label", json!(output::name(super_block.label_bytes()))),
        ("uuid", json!(output::uuid(&super_block.fsid))),
        ("size", json!(super_block.total_bytes.get())),
        ("used", json!(super_block.bytes_used.get())),
        ("free", json!(stat.blocks_available.saturating_mul(unit))),
        ("devices", json!(super_block.num_devices.get())),
        ("generation", json!(super_block.generation.get())),
        ("sectorsize", json!(super_block.sectorsize.get())),
        ("nodesize", json!(super_block.nodesize.get())),
        ("checksum", json!(checksum)),
        ("features", json!(features)),
        ("subvolumes", json!(subvolumes)),
        ("log", json!(super_block.log_root.get() != 0)),
    ])
}
