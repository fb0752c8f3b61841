//! The header of a qcow2 file.

use crate::Qcow2Error;
use crate::{Device, Result};

/// The first bytes of a file.
pub(super) const MAGIC: [u8; 4] = *b"QFI\xfb";
/// Bytes of a header of version 3 that are read.
const LEN: usize = 112;
/// Largest L1 table, and largest table of reference-count blocks, in bytes.
const MOST_TABLE: u64 = 32 << 20;
/// Largest table of snapshots, and fields of one, that are read.
const MOST_SNAPSHOTS: u32 = 65_536;
/// Offset of the incompatible features, and of the ones that a writer clears.
pub(super) const INCOMPATIBLE_AT: usize = 72;
pub(super) const AUTOCLEAR_AT: usize = 88;
/// Offset of place and clusters of the table of reference-count blocks.
pub(super) const COUNTS_AT: usize = 48;

/// Counts are to be computed from the tables.
pub(super) const DIRTY: u64 = 1;
/// The tables contradict each other.
pub(super) const CORRUPT: u64 = 2;
/// The field for the type of compression is used.
const COMPRESSION: u64 = 8;
const KNOWN: u64 = DIRTY | CORRUPT | COMPRESSION;

/// Type of the header extension that has the format of the backing file.
const BACKING_FORMAT: u32 = 0xe279_2aca;

/// A validated header.
#[derive(Debug, Clone)]
pub(super) struct Header {
    pub(super) version: u32,
    /// Bytes of the disk.
    pub(super) size: u64,
    pub(super) cluster_bits: u32,
    pub(super) l1_offset: u64,
    pub(super) l1_entries: usize,
    pub(super) counts_offset: u64,
    pub(super) counts_clusters: u64,
    /// Bits of a count: 2 to this power.
    pub(super) count_order: u32,
    pub(super) snapshots: u32,
    pub(super) incompatible: u64,
    pub(super) autoclear: u64,
    pub(super) zstd: bool,
    pub(super) backing: Option<String>,
    pub(super) backing_format: Option<String>,
}

/// Whether a file begins as a qcow2 file does.
///
/// # Errors
/// I/O errors of the device.
pub fn is_qcow2(device: &dyn Device) -> Result<bool> {
    let mut magic = [0; 4];
    if device.size() < LEN as u64 {
        return Ok(false);
    }
    device.read_at(0, &mut magic)?;
    Ok(magic == MAGIC)
}

/// Reasons to refuse a header.
enum Refused {
    Device(crate::Error),
    Header(Qcow2Error),
}

impl From<crate::Error> for Refused {
    fn from(error: crate::Error) -> Self {
        Self::Device(error)
    }
}

impl From<Qcow2Error> for Refused {
    fn from(error: Qcow2Error) -> Self {
        Self::Header(error)
    }
}

impl Header {
    /// Reads and validates the header of a file.
    pub(super) fn open(device: &dyn Device) -> Result<Self> {
        Self::read(device).map_err(|refused| match refused {
            Refused::Device(error) => error,
            Refused::Header(why) => crate::Error::qcow2(device.name(), why),
        })
    }

    fn read(device: &dyn Device) -> std::result::Result<Self, Refused> {
        let mut bytes = [0; LEN];
        if device.size() < LEN as u64 {
            return Err(Qcow2Error::Short.into());
        }
        device.read_at(0, &mut bytes)?;
        if !bytes.starts_with(&MAGIC) {
            return Err(Qcow2Error::NoQcow2.into());
        }
        let word = |at: usize| u64::from(be32(&bytes, at));
        let long = |at: usize| be64(&bytes, at);
        let version = be32(&bytes, 4);
        if ![2, 3].contains(&version) {
            return Err(Qcow2Error::Version(version).into());
        }
        let new = |value: u64| if version == 3 { value } else { 0 };
        let mut header = Self {
            version,
            size: long(24),
            cluster_bits: be32(&bytes, 20),
            l1_offset: long(40),
            l1_entries: be32(&bytes, 36) as usize,
            counts_offset: long(48),
            counts_clusters: word(56),
            count_order: if version == 3 { be32(&bytes, 96) } else { 4 },
            snapshots: be32(&bytes, 60),
            incompatible: new(long(72)),
            autoclear: new(long(88)),
            zstd: false,
            backing: None,
            backing_format: None,
        };
        if word(32) != 0 {
            return Err(Qcow2Error::Feature("encryption".to_owned()).into());
        }
        header.features(&bytes)?;
        header.validate(device.size())?;
        header.backing = backing(device, long(8), be32(&bytes, 16))?;
        if header.backing.is_some() {
            let first = if version == 3 { be32(&bytes, 100) } else { 72 };
            header.backing_format = backing_format(device, first.into(), header.cluster())?;
        }
        Ok(header)
    }

    fn features(&mut self, bytes: &[u8]) -> std::result::Result<(), Qcow2Error> {
        let unknown = self.incompatible & !KNOWN;
        if unknown != 0 {
            return Err(Qcow2Error::Feature(match unknown {
                4 => "an external data file".to_owned(),
                16 => "extended L2 entries".to_owned(),
                bits => format!("incompatible features {bits:#x}"),
            }));
        }
        let length = be32(bytes, 100);
        if self.incompatible & COMPRESSION != 0 && length > 104 {
            self.zstd = match bytes.get(104).copied() {
                Some(0) => false,
                Some(1) => true,
                kind => {
                    let kind = kind.unwrap_or_default();
                    return Err(Qcow2Error::Feature(format!("compression of type {kind}")));
                }
            };
        }
        Ok(())
    }

    fn validate(&self, file: u64) -> std::result::Result<(), Qcow2Error> {
        let field = |field: &'static str, value: u64, valid: bool| {
            if valid {
                Ok(())
            } else {
                Err(Qcow2Error::Field { field, value })
            }
        };
        let bits = self.cluster_bits;
        field("cluster_bits", bits.into(), (9..=21).contains(&bits))?;
        field(
            "refcount_order",
            self.count_order.into(),
            self.count_order <= 6,
        )?;
        field("size", self.size, self.size <= 1 << 56)?;
        let l1_bytes = self.l1_entries as u64 * 8;
        field("l1_size", self.l1_entries as u64, l1_bytes <= MOST_TABLE)?;
        let needed = self.size.div_ceil(1 << (2 * bits - 3));
        field(
            "l1_size",
            self.l1_entries as u64,
            self.l1_entries as u64 >= needed,
        )?;
        let counts_bytes = self.counts_clusters << bits;
        field(
            "refcount_table_clusters",
            self.counts_clusters,
            (1..=MOST_TABLE).contains(&counts_bytes),
        )?;
        field(
            "nb_snapshots",
            self.snapshots.into(),
            self.snapshots <= MOST_SNAPSHOTS,
        )?;
        let places = [
            ("l1_table_offset", self.l1_offset, l1_bytes),
            ("refcount_table_offset", self.counts_offset, counts_bytes),
        ];
        for (name, offset, bytes) in places {
            let aligned = offset.is_multiple_of(1 << bits);
            let inside = offset.checked_add(bytes).is_some_and(|end| end <= file);
            field(
                name,
                offset,
                aligned && inside && (offset > 0 || bytes == 0),
            )?;
        }
        Ok(())
    }

    /// Bytes of a cluster.
    pub(super) fn cluster(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// Entries of an L2 table.
    pub(super) fn l2_entries(&self) -> u64 {
        self.cluster() / 8
    }
}

/// The cluster of the file that a table refers to; `what` names it in errors.
pub(super) fn read_cluster(
    device: &dyn Device,
    what: &'static str,
    offset: u64,
    size: u64,
) -> Result<Vec<u8>> {
    let end = offset.checked_add(size);
    let inside = end.is_some_and(|end| end <= device.size());
    if !inside || !offset.is_multiple_of(size) {
        let why = Qcow2Error::Place { what, offset };
        return Err(crate::Error::qcow2(device.name(), why));
    }
    let mut cluster = vec![0; size as usize];
    device.read_at(offset, &mut cluster)?;
    Ok(cluster)
}

fn backing(
    device: &dyn Device,
    offset: u64,
    len: u32,
) -> std::result::Result<Option<String>, Refused> {
    if offset == 0 {
        return Ok(None);
    }
    let inside = offset
        .checked_add(len.into())
        .is_some_and(|end| end <= device.size());
    if len > 1023 || !inside {
        let field = "backing_file_size";
        let value = len.into();
        return Err(Qcow2Error::Field { field, value }.into());
    }
    let mut name = vec![0; len as usize];
    device.read_at(offset, &mut name)?;
    Ok(Some(String::from_utf8_lossy(&name).into_owned()))
}

/// The format of the backing file: the header extension of that type, in the first cluster.
fn backing_format(device: &dyn Device, first: u64, cluster: u64) -> Result<Option<String>> {
    let end = cluster.min(device.size());
    let mut at = first;
    while at.saturating_add(8) <= end {
        let mut head = [0; 8];
        device.read_at(at, &mut head)?;
        let (kind, len) = (be32(&head, 0), u64::from(be32(&head, 4)));
        at += 8;
        if kind == 0 || at.saturating_add(len) > end {
            break;
        }
        if kind == BACKING_FORMAT {
            let mut name = vec![0; len.min(64) as usize];
            device.read_at(at, &mut name)?;
            return Ok(Some(String::from_utf8_lossy(&name).into_owned()));
        }
        at += len.next_multiple_of(8);
    }
    Ok(None)
}

/// Replaces a field in the first sector of the file, durably.
pub(super) fn set_field(device: &dyn Device, at: usize, value: &[u8]) -> Result<()> {
    let mut sector = [0; 512];
    device.read_at(0, &mut sector)?;
    sector[at..at + value.len()].copy_from_slice(value);
    device.write_fua(0, &sector)
}

pub(super) fn be32(bytes: &[u8], at: usize) -> u32 {
    let part = bytes.get(at..).and_then(|rest| rest.first_chunk());
    u32::from_be_bytes(part.copied().unwrap_or_default())
}

pub(super) fn be64(bytes: &[u8], at: usize) -> u64 {
    let part = bytes.get(at..).and_then(|rest| rest.first_chunk());
    u64::from_be_bytes(part.copied().unwrap_or_default())
}
