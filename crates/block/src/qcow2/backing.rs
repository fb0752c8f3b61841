//! Backing files: the chain of files below a qcow2 file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::device::Qcow2Device;
use super::header::{Header, is_qcow2};
use crate::{Device, Error, FileDevice, OpenOptions, Qcow2Error, Result};

/// Longest chain. A loop is longer.
const MOST: usize = 16;

/// A file of a chain.
#[derive(Debug)]
pub struct BackingFile {
    file: Arc<dyn Device>,
    qcow2: bool,
}

/// Opens the backing files of a qcow2 file at `path`, the first one first, read-only and locked
/// against writers. Of each file only the header is read.
///
/// A hostile file can name any file of the machine, so the caller needs the consent of its user.
///
/// # Errors
/// [`Error::Qcow2`]; [`Error::Open`]: a file of the chain cannot be opened.
pub fn open_backing(path: &Path, file: &dyn Device) -> Result<Vec<BackingFile>> {
    let mut chain: Vec<BackingFile> = Vec::new();
    let mut at = path.to_owned();
    loop {
        let above = chain.last();
        if above.is_some_and(|above| !above.qcow2) {
            return Ok(chain);
        }
        let above = above.map_or(file, |above| &*above.file);
        let header = Header::open(above)?;
        let Some(name) = header.backing else {
            return Ok(chain);
        };
        if chain.len() >= MOST {
            let why = Qcow2Error::Chain { most: MOST };
            return Err(Error::qcow2(file.name(), why));
        }
        let next = beside(&at, &name);
        let device = FileDevice::open(&next, OpenOptions::read_only())?;
        let qcow2 = match header.backing_format.as_deref() {
            Some("raw") => false,
            Some("qcow2") => true,
            None => is_qcow2(&device)?,
            Some(other) => {
                let what = format!("a backing file in the format {other:?}");
                return Err(Error::qcow2(above.name(), Qcow2Error::Feature(what)));
            }
        };
        chain.push(BackingFile {
            file: Arc::new(device),
            qcow2,
        });
        at = next;
    }
}

/// The path that `name`, in a file at `path`, refers to.
fn beside(path: &Path, name: &str) -> PathBuf {
    path.parent()
        .map_or_else(|| name.into(), |dir| dir.join(name))
}

/// The disk that the chain shows to the file above it.
///
/// # Errors
/// [`Error::Qcow2`], [`Error::Io`] for a file of the chain.
pub fn backing_disk(chain: Vec<BackingFile>) -> Result<Option<Arc<dyn Device>>> {
    let mut disk: Option<Arc<dyn Device>> = None;
    for BackingFile { file, qcow2 } in chain.into_iter().rev() {
        disk = Some(if qcow2 {
            Arc::new(Qcow2Device::open(file, disk)?)
        } else {
            file
        });
    }
    Ok(disk)
}
