//! `sapwood info`.

mod partitions;

use std::path::PathBuf;

use sapwood::block::DiskFormat;
use sapwood::internal::image::OpenError;
use sapwood::internal::{DetectError, InspectError, btrfs};
use sapwood::{Details, Info};
use serde_json::{Value, json};

use super::failure::{DEVICES, FAILED, Failure, IMAGE, Result, USAGE};
use super::{choice, output};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Image
    pub(super) image: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The printed rows, in this order.
type Rows = Vec<(&'static str, Value)>;

pub(super) fn run(args: &Args) -> Result<()> {
    let device = sapwood::internal::image::open_device(&args.image, true)?;
    match sapwood::internal::image::known(&args.image, &*device) {
        Ok(_) => {}
        Err(OpenError::Kind {
            source: DetectError::Encrypted,
            ..
        }) if choice::has_key() => {}
        // A whole disk: shows its partitions.
        Err(error) => {
            return match (partitions::table(&device)?, &error) {
                (Some(table), _) => partitions::print(&table, device.format(), args.json),
                (
                    None,
                    OpenError::Kind {
                        source: DetectError::Encrypted,
                        ..
                    },
                ) => Err(error.into()),
                (None, _) => Err(Failure::new(IMAGE, error)),
            };
        }
    }
    let format = device.format();
    drop(device);
    let info = sapwood::info_with_options(&args.image, &choice::opening(true));
    let info = info.map_err(failure)?;
    let mut rows = rows(&info);
    if format != DiskFormat::Raw {
        rows.insert(0, ("format", json!(format.name())));
    }
    if args.json {
        return output::object(
            &rows
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value))
                .collect::<serde_json::Map<_, _>>(),
        );
    }
    for (key, value) in rows {
        output::line(format!("{key:<11} {}", shown(key, &value)))?;
    }
    Ok(())
}

/// The failure of a command that inspects an image.
pub(super) fn failure(error: sapwood::Error) -> Failure {
    let code = match error.downcast_ref() {
        None => return error.into(),
        Some(InspectError::Unknown { .. }) => USAGE,
        Some(InspectError::FileSystem { .. }) => FAILED,
        Some(InspectError::Btrfs { source, .. })
            if matches!(**source, btrfs::Error::MissingDevice { .. }) =>
        {
            return Failure::new(IMAGE, error).advise(DEVICES);
        }
        Some(_) => IMAGE,
    };
    Failure::new(code, error)
}

fn rows(info: &Info) -> Rows {
    let kind = match info.details {
        Details::Btrfs { .. } => "btrfs",
        _ => "ext4",
    };
    let mut rows = vec![
        ("kind", json!(kind)),
        ("label", json!(info.label)),
        ("uuid", json!(output::uuid(&info.uuid))),
        ("size", json!(info.size)),
        ("used", json!(info.used)),
        ("free", json!(info.free)),
    ];
    match &info.details {
        Details::Btrfs {
            devices,
            generation,
            sector_size,
            node_size,
            checksum,
            subvolumes,
            log,
        } => rows.extend([
            ("devices", json!(devices)),
            ("generation", json!(generation)),
            ("sectorsize", json!(sector_size)),
            ("nodesize", json!(node_size)),
            ("checksum", json!(checksum)),
            ("features", json!(info.features)),
            ("subvolumes", json!(subvolumes)),
            ("log", json!(log)),
        ]),
        Details::Ext4 {
            block_size,
            inode_size,
            inodes,
            free_inodes,
            journal,
        } => rows.extend([
            ("blocksize", json!(block_size)),
            ("inodesize", json!(inode_size)),
            ("inodes", json!(inodes)),
            ("freeinodes", json!(free_inodes)),
            ("features", json!(info.features)),
            ("journal", json!(journal)),
        ]),
        _ => {}
    }
    rows
}

fn shown(key: &str, value: &Value) -> String {
    match (key, value) {
        ("size" | "used" | "free", value) => {
            let bytes = value.as_u64().unwrap_or_default();
            format!("{} ({bytes} bytes)", output::size(bytes))
        }
        ("log" | "journal", Value::Bool(true)) => "needs replay".to_owned(),
        ("journal", Value::Bool(false)) => "nothing to replay".to_owned(),
        ("log" | "journal", _) => "none".to_owned(),
        (_, Value::String(text)) => text.clone(),
        (_, Value::Array(all)) => all
            .iter()
            .filter_map(|one| one.as_str())
            .map(str::to_lowercase)
            .collect::<Vec<_>>()
            .join(", "),
        (_, other) => other.to_string(),
    }
}
