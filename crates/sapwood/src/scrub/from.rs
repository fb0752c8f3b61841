//! Sources of lost sectors: files, images of any kind, and streams of `btrfs send`.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sapwood_block::Device;
use sapwood_btrfs::scrub::{Donor, Offer, TakeOffer};
use sapwood_btrfs_format::stream::{
    self, StreamError, attribute as attr, command as cmd, encoding,
};

use super::ScrubError;
use crate::image::{OpenError, open_device};
use crate::receive::{ReceiveError, read_stream};

/// Bytes that are read at a time.
const STEP: usize = 1 << 20;
/// Offset of bytes that are at no known place: higher than all offsets in files.
const NO_PLACE: u64 = 1 << 63;

/// Opens a source: a stream by its first bytes, a regular file or block device, or any other
/// operand that names an image.
///
/// # Errors
/// It cannot be opened.
pub(super) fn open(path: &Path) -> Result<Box<dyn Donor>, OpenError> {
    let Ok(mut file) = File::open(path) else {
        let device = open_device(path, true)?;
        return Ok(Box::new(Bytes(Reads::Device(device))));
    };
    let mut head = [0; stream::MAGIC.len()];
    let whole = file.read_exact(&mut head).is_ok();
    let unreadable = |error: io::Error| {
        let name = path.display().to_string();
        OpenError::from(sapwood_block::Error::io(&name, "read", 0, 0, error))
    };
    if file.metadata().map_err(unreadable)?.is_dir() {
        return Err(unreadable(io::ErrorKind::IsADirectory.into()));
    }
    file.rewind().map_err(unreadable)?;
    if whole && head == *stream::MAGIC {
        return Ok(Box::new(Stream(BufReader::new(file))));
    }
    if head.starts_with(QCOW2) {
        let device = open_device(path, true)?;
        return Ok(Box::new(Bytes(Reads::Device(device))));
    }
    let size = file.seek(SeekFrom::End(0)).map_err(unreadable)?;
    Ok(Box::new(Bytes(Reads::File { file, size })))
}

/// The first bytes of a qcow2 file.
const QCOW2: &[u8] = b"QFI\xfb";

/// Bytes at offsets.
enum Reads {
    File { file: File, size: u64 },
    Device(Arc<dyn Device>),
}

impl Reads {
    fn size(&self) -> u64 {
        match self {
            Self::File { size, .. } => *size,
            Self::Device(device) => device.size(),
        }
    }

    fn read(&mut self, at: u64, buf: &mut [u8]) -> io::Result<()> {
        match self {
            Self::File { file, .. } => {
                file.seek(SeekFrom::Start(at))?;
                file.read_exact(buf)
            }
            Self::Device(device) => device.read_at(at, buf).map_err(io::Error::other),
        }
    }
}

/// A file, or an image as its bytes.
struct Bytes(Reads);

impl Donor for Bytes {
    fn each(&mut self, sector: usize, take: &mut TakeOffer<'_>) -> io::Result<()> {
        let (size, mut buf, mut at) = (self.0.size(), vec![0; STEP], 0);
        let mut failed = Ok(());
        while at < size {
            let len = (size - at).min(STEP as u64) as usize;
            // The rest of a file's last sector is zeros.
            buf.fill(0);
            let part = buf.get_mut(..len).unwrap_or_default();
            let whole = self.0.read(at, part).is_ok();
            for (nth, bytes) in buf.chunks_mut(sector).enumerate() {
                let offset = at + (nth * sector) as u64;
                if offset >= size {
                    break;
                }
                let there = (size - offset).min(sector as u64) as usize;
                let part = bytes.get_mut(..there).unwrap_or_default();
                // A sector that the source has lost, too, is left out.
                if !whole && let Err(error) = self.0.read(offset, part) {
                    failed = Err(error);
                    continue;
                }
                let path = None;
                if take(Offer {
                    bytes,
                    path,
                    offset,
                })
                .is_break()
                {
                    return Ok(());
                }
            }
            at += len as u64;
        }
        failed
    }
}

/// A stream of `btrfs send`.
struct Stream(BufReader<File>);

impl Donor for Stream {
    fn each(&mut self, sector: usize, take: &mut TakeOffer<'_>) -> io::Result<()> {
        self.0.rewind()?;
        let mut unplaced = NO_PLACE;
        let read = read_stream(&mut self.0, |command| {
            let compressed = command.number == cmd::ENCODED_WRITE
                && command.u32(attr::COMPRESSION).unwrap_or(encoding::NONE) != encoding::NONE;
            if !matches!(command.number, cmd::WRITE | cmd::ENCODED_WRITE) {
                return Ok(());
            }
            let data = command.get(attr::DATA)?;
            let (path, offset) = if compressed {
                // The bytes belong to the compressed extent.
                let offset = unplaced;
                // A gap, so that two extents are no neighbours.
                let sectors = (data.len() / sector) as u64 + 2;
                unplaced = unplaced.saturating_add(sectors * sector as u64);
                (None, offset)
            } else {
                let offset = command.u64(attr::FILE_OFFSET)?;
                (Some(command.path(attr::PATH)?), offset)
            };
            match sectors(data, path, offset, sector, take) {
                ControlFlow::Continue(()) => Ok(()),
                ControlFlow::Break(()) => Err(End::Stopped),
            }
        });
        match read {
            Ok(()) | Err(End::Stopped) => Ok(()),
            Err(End::Failed(error)) => Err(io::Error::other(error)),
        }
    }
}

/// The end of a stream before its last command.
enum End {
    Stopped,
    Failed(ReceiveError),
}

impl From<ReceiveError> for End {
    fn from(error: ReceiveError) -> Self {
        Self::Failed(error)
    }
}

impl From<StreamError> for End {
    fn from(error: StreamError) -> Self {
        Self::Failed(error.into())
    }
}

/// Passes the sectors of a write. The rest of the last one is zeros.
fn sectors(
    data: &[u8],
    path: Option<&[u8]>,
    offset: u64,
    sector: usize,
    take: &mut TakeOffer<'_>,
) -> ControlFlow<()> {
    let Some(first) = offset.checked_next_multiple_of(sector as u64) else {
        return ControlFlow::Continue(());
    };
    let skipped = usize::try_from(first - offset).unwrap_or(usize::MAX);
    let mut last = vec![0; sector];
    let parts = data.get(skipped..).unwrap_or_default().chunks(sector);
    for (offset, part) in (first..).step_by(sector).zip(parts) {
        let bytes = if part.len() == sector {
            part
        } else {
            if let Some(filled) = last.get_mut(..part.len()) {
                filled.copy_from_slice(part);
            }
            &last
        };
        take(Offer {
            bytes,
            path,
            offset,
        })?;
    }
    ControlFlow::Continue(())
}

/// Opens all sources.
///
/// # Errors
/// [`ScrubError::Source`].
pub(super) fn open_all(paths: &[PathBuf]) -> Result<Vec<Box<dyn Donor>>, ScrubError> {
    let each = paths.iter().map(|path| {
        open(path).map_err(|source| ScrubError::Source {
            path: path.clone(),
            source: Box::new(source),
        })
    });
    each.collect()
}
