//! `sapwood info` of a disk image: its partitions.

use std::sync::Arc;

use sapwood::block::partition::{Partition, PartitionError, PartitionTable};
use sapwood::block::{Device, DiskFormat, PartDevice};
use sapwood::internal::detect;
use serde_json::{Value, json};

use crate::failure::{Failure, IMAGE, Result};
use crate::output;

/// The partition table, and the content of each partition.
pub(super) struct Disk {
    table: PartitionTable,
    /// The kind of file system in each partition.
    kinds: Vec<Option<&'static str>>,
}

/// Reads the partition table of a device; `None` if it has none.
pub(super) fn table(device: &Arc<dyn Device>) -> Result<Option<Disk>> {
    match PartitionTable::read(&**device) {
        Ok(table) => {
            let kinds = table.partitions.iter();
            let kinds = kinds.map(|part| kind(device, part)).collect();
            Ok(Some(Disk { table, kinds }))
        }
        Err(PartitionError::NoTable { .. }) => Ok(None),
        Err(error) => Err(Failure::new(IMAGE, error)),
    }
}

/// The format of the file system in a partition, if Sapwood knows it.
fn kind(device: &Arc<dyn Device>, part: &Partition) -> Option<&'static str> {
    if part.flaw.is_some() {
        return None;
    }
    let device = Arc::clone(device);
    let part = PartDevice::new(device, part.number.to_string(), part.start, part.len).ok()?;
    detect(&part).ok().map(sapwood::Kind::name)
}

/// Prints the partitions; `format` is the format of the file that holds the disk.
pub(super) fn print(disk: &Disk, format: DiskFormat, json: bool) -> Result<()> {
    let partitions = disk.table.partitions.iter().zip(&disk.kinds);
    if json {
        let shown: Vec<Value> = partitions.map(|(part, kind)| object(part, *kind)).collect();
        let table = disk.table.scheme.to_string();
        let damage = disk.table.damage.as_ref().map(ToString::to_string);
        return output::object(&json!({
            "format": format.name(), "table": table.to_lowercase(), "partitions": shown,
            "damage": damage,
        }));
    }
    if format != DiskFormat::Raw {
        output::line(format!("{:<11} {}", "format", format.name()))?;
    }
    output::line(format!("{:<11} {}", "table", disk.table.scheme))?;
    for (part, kind) in partitions {
        output::line(row(part, *kind))?;
    }
    if let Some(damage) = &disk.table.damage {
        output::line(format!("{:<11} {damage}", "damage"))?;
    }
    Ok(())
}

fn object(part: &Partition, kind: Option<&str>) -> Value {
    json!({
        "number": part.number,
        "name": part.label,
        "type": part.kind,
        "offset": part.start,
        "length": part.len,
        "kind": kind,
        "flaw": part.flaw.as_ref().map(ToString::to_string),
    })
}

fn row(part: &Partition, kind: Option<&str>) -> String {
    let (start, size) = (part.start, output::size(part.len));
    let label = part.label.as_deref().unwrap_or_default().escape_debug();
    let mut row = format!(
        "#{:<10} {size} ({} bytes) at {start}, type {}",
        part.number, part.len, part.kind
    );
    if !part.label.as_deref().unwrap_or_default().is_empty() {
        row.push_str(&format!(", name {label}"));
    }
    if let Some(kind) = kind {
        row.push_str(&format!(", {kind}"));
    }
    if let Some(flaw) = &part.flaw {
        row.push_str(&format!(": {flaw}"));
    }
    row
}
