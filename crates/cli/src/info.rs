//! `sapwood info`.

mod btrfs;
mod ext4;
mod partitions;

use std::path::PathBuf;

use sapwood::Kind;
use serde_json::Value;

use super::failure::Result;
use super::output;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Image
    pub(super) image: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What is shown, in this order.
type Rows = Vec<(&'static str, Value)>;

pub(super) fn run(args: &Args) -> Result<()> {
    let device = sapwood::image::open_device(&args.image, true)?;
    let kind = match sapwood::image::known(&args.image, &*device) {
        Ok(kind) => kind,
        // A whole disk: it shows what can be opened.
        Err(error) => match partitions::table(&device)? {
            Some(table) => return partitions::print(&table, args.json),
            None => return Err(error.into()),
        },
    };
    let rows = match kind {
        Kind::Btrfs => btrfs::rows(&args.image, device)?,
        Kind::Ext4 => ext4::rows(&args.image, &*device)?,
    };
    if args.json {
        return output::json(
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
