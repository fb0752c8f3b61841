//! `sapwood info`.

use std::path::PathBuf;

use sapwood_btrfs::{Options, SubvolumeChoice};
use sapwood_btrfs_format::SuperBlock;
use sapwood_vfs::FileSystem;
use serde_json::json;

use super::failure::{Failure, IMAGE, Result};
use super::output;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Image
    image: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let super_block = read_super(args)?;
    let options = Options {
        read_only: true,
        no_log_replay: true,
        subvolume: SubvolumeChoice::Id(5),
        ..Options::default()
    };
    let fs = sapwood::image::open(&args.image, options)?;
    let stat = fs
        .statfs()
        .map_err(|error| Failure::local(&args.image, error))?;
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
    let rows = [
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
    ];
    if args.json {
        output::json(
            &rows
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value))
                .collect::<serde_json::Map<_, _>>(),
        );
        return Ok(());
    }
    for (key, value) in rows {
        output::line(format!("{key:<11} {}", shown(key, &value)));
    }
    Ok(())
}

fn shown(key: &str, value: &serde_json::Value) -> String {
    match (key, value) {
        ("size" | "used" | "free", value) => {
            let bytes = value.as_u64().unwrap_or_default();
            format!("{} ({bytes} bytes)", output::size(bytes))
        }
        ("log", serde_json::Value::Bool(true)) => "needs replay".to_owned(),
        ("log", _) => "none".to_owned(),
        (_, serde_json::Value::String(text)) => text.clone(),
        (_, serde_json::Value::Array(all)) => all
            .iter()
            .filter_map(|one| one.as_str())
            .map(str::to_lowercase)
            .collect::<Vec<_>>()
            .join(", "),
        (_, other) => other.to_string(),
    }
}

fn read_super(args: &Args) -> Result<SuperBlock> {
    let device = sapwood::image::open_device(&args.image, true)?;
    sapwood_btrfs::inspect::super_block(&[device])
        .map_err(|error| Failure::local(&args.image, error).with_code(IMAGE))
}
