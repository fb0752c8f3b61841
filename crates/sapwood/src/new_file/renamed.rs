//! A device under another name.

use std::path::Path;
use std::sync::Arc;

use sapwood_block::{Device, Error, FileDevice, Result};

/// Passes on all requests. Errors contain the future name of the file in place of its temporary
/// one.
#[derive(Debug)]
pub(super) struct Renamed {
    device: FileDevice,
    name: String,
}

impl Renamed {
    pub(super) fn over(opened: Result<FileDevice>, path: &Path) -> Result<Arc<dyn Device>> {
        let name = path.display().to_string();
        match opened {
            Ok(device) => Ok(Arc::new(Self { device, name })),
            Err(error) => Err(renamed(error, &name)),
        }
    }

    fn renamed<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| renamed(error, &self.name))
    }
}

fn renamed(mut error: Error, name: &str) -> Error {
    match &mut error {
        Error::Io { device, .. }
        | Error::OutOfRange { device, .. }
        | Error::Shrunk { device, .. }
        | Error::ReadOnly { device }
        | Error::Busy { device, .. }
        | Error::Nbd { device, .. }
        | Error::Qcow2 { device, .. }
        | Error::StagedTooMuch { device, .. }
        | Error::TakenOver { device, .. }
        | Error::Open { device, .. } => name.clone_into(device),
    }
    error
}

impl sapwood_block::Layer for Renamed {
    type Below = FileDevice;

    fn below(&self) -> &FileDevice {
        &self.device
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.renamed(self.device.read_at(offset, buf))
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.renamed(self.device.write_at(offset, buf))
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> Result<()> {
        self.renamed(self.device.write_vectored_at(offset, bufs))
    }

    fn write_fua(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.renamed(self.device.write_fua(offset, buf))
    }

    fn flush(&self) -> Result<()> {
        self.renamed(self.device.flush())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.renamed(self.device.discard(offset, len))
    }

    fn grow(&self, size: u64) -> Result<()> {
        self.renamed(self.device.grow(size))
    }

    fn release_lock(&self) -> Result<()> {
        self.renamed(self.device.release_lock())
    }
}
