//! Opens volumes of both versions.

use std::sync::Arc;

use sapwood_block::Device;

use crate::device::CryptDevice;
use crate::key::Key;
use crate::layout::{MAGIC, text};
use crate::luks1::Luks1;
use crate::luks2::Luks2;
use crate::slot::SlotDescription;
use crate::{Error, Result};

/// The fields of a header that can be read without a key.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Description {
    /// Version of LUKS: 1 or 2.
    pub version: u16,
    /// UUID of the volume.
    pub uuid: String,
    /// Label; empty if it has none. LUKS1 has no labels.
    pub label: String,
    /// Cipher.
    pub cipher: String,
    /// Bytes of a sector.
    pub sector: u64,
    /// Bytes from the start of the device to the data.
    pub offset: u64,
    /// Key slots in use.
    pub slots: Vec<SlotDescription>,
}

/// Whether a device begins as a LUKS volume.
///
/// # Errors
/// I/O errors of the device.
pub fn is_luks(device: &dyn Device) -> sapwood_block::Result<bool> {
    Ok(version(device)?.is_some())
}

/// The version in the header; `None` without a header.
fn version(device: &dyn Device) -> sapwood_block::Result<Option<u16>> {
    let mut start = [0; 8];
    if device.size() < start.len() as u64 {
        return Ok(None);
    }
    device.read_at(0, &mut start)?;
    let [magic @ .., high, low] = start;
    Ok((magic == MAGIC).then(|| u16::from_be_bytes([high, low])))
}

/// A header of one of the two versions.
enum Header {
    Luks1(Box<Luks1>),
    Luks2(Box<Luks2>),
}

impl Header {
    fn read(device: &dyn Device) -> Result<Self> {
        let name = || device.name().to_owned();
        match version(device)? {
            Some(1) => Ok(Self::Luks1(Box::new(Luks1::read(device)?))),
            Some(2) => Ok(Self::Luks2(Box::new(Luks2::read(device)?))),
            Some(version) => Err(Error::Version {
                device: name(),
                version,
            }),
            None => Err(Error::NoHeader { device: name() }),
        }
    }
}

/// Opens a volume: tries the key slots in the order of their numbers.
///
/// # Errors
/// [`Error::NoHeader`], [`Error::WrongKey`], [`Error::Unsupported`], [`Error::Cost`]; the header is
/// damaged; I/O errors of the device.
pub fn open(device: Arc<dyn Device>, key: &Key) -> Result<Arc<CryptDevice>> {
    let (volume_key, place) = match Header::read(&*device)? {
        Header::Luks1(header) => header.unlock(&*device, key)?,
        Header::Luks2(header) => header.unlock(&*device, key)?,
    };
    Ok(Arc::new(CryptDevice::new(device, &volume_key, &place)?))
}

/// Describes the volume on a device.
///
/// # Errors
/// The errors of [`open`], except those for the key.
pub fn describe(device: &dyn Device) -> Result<Description> {
    match Header::read(device)? {
        Header::Luks1(luks) => Ok(Description {
            version: 1,
            uuid: text(&luks.header.uuid),
            label: String::new(),
            cipher: luks.cipher(),
            sector: 512,
            offset: u64::from(luks.header.payload.get()) * 512,
            slots: luks.slots(),
        }),
        Header::Luks2(luks) => {
            let (_, segment) = luks.metadata.segment()?;
            Ok(Description {
                version: 2,
                uuid: text(&luks.binary.uuid),
                label: text(&luks.binary.label),
                cipher: segment.encryption,
                sector: segment.sector_size,
                offset: segment.offset,
                slots: luks.slots()?,
            })
        }
    }
}
