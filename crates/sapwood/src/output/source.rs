//! The raw image that is converted.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::{Failed, OutputError, Result};
use crate::new_file::NewFile;

/// Bytes that are read at a time, at least.
const PIECE: usize = 1 << 20;

/// Takes a unit with its offset.
pub(super) type Write<'w> = dyn FnMut(u64, &[u8]) -> std::result::Result<(), Failed> + 'w;

/// See the module.
pub(super) struct Source {
    file: File,
    len: u64,
    path: PathBuf,
}

impl Source {
    pub(super) fn of(raw: &NewFile) -> Result<Self> {
        let path = raw.path().to_owned();
        let failed = |source| OutputError::Read {
            path: path.clone(),
            source,
        };
        let file = raw.file().try_clone().map_err(failed)?;
        let len = file.metadata().map_err(failed)?.len();
        Ok(Self { file, len, path })
    }

    /// Bytes of the image.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Calls `write` for each unit that is not zero, in order, with its offset.
    pub(super) fn each(
        &self,
        unit: usize,
        write: &mut Write<'_>,
    ) -> std::result::Result<(), Failed> {
        let step = unit as u64;
        let mut piece = vec![0; unit.max(PIECE)];
        let mut at = 0;
        while at < self.len {
            at = match rustix::fs::seek(&self.file, SeekFrom::Data(at)) {
                // The unit may begin in the hole before. It was not written yet.
                Ok(data) => at.max(data / step * step),
                Err(Errno::NXIO) => return Ok(()),
                // A file system that knows no holes.
                Err(_) => at,
            };
            let left = self.len.saturating_sub(at).min(piece.len() as u64) as usize;
            let bytes = piece.get_mut(..left).unwrap_or_default();
            let read = self.file.read_exact_at(bytes, at);
            read.map_err(|source| OutputError::Read {
                path: self.path.clone(),
                source,
            })?;
            for (unit, start) in bytes.chunks(unit).zip((at..).step_by(unit)) {
                if unit.iter().any(|byte| *byte != 0) {
                    write(start, unit)?;
                }
            }
            at += left as u64;
        }
        Ok(())
    }
}
