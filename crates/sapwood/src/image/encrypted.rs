//! LUKS volumes and dm-verity: an image is decrypted, or verified, before its format is detected.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::{fs, io};

use sapwood_block::Device;
use sapwood_luks::Key;
use sapwood_verity::{RootHash, VerityDevice};

use super::OpenError;
use crate::options::Options;

/// Reads a key file: all of its bytes are the key. `-` is standard input.
///
/// # Errors
/// [`OpenError::KeyFile`]: it cannot be read, is empty, or is larger than 8 MiB.
pub(crate) fn read_key(path: &Path) -> Result<Key, OpenError> {
    let read = || -> io::Result<Key> {
        let mut bytes = Vec::new();
        // A vector that grows leaves copies behind.
        bytes.try_reserve_exact(Key::MAX as usize + 1)?;
        let most = Key::MAX + 1;
        if path == Path::new("-") {
            io::stdin().lock().take(most).read_to_end(&mut bytes)?;
        } else {
            fs::File::open(path)?.take(most).read_to_end(&mut bytes)?;
        }
        let (len, key) = (bytes.len() as u64, Key::new(bytes));
        match len {
            0 => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "no key: it is empty",
            )),
            len if len > Key::MAX => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "larger than 8 MiB, which is the most that a key has",
            )),
            _ => Ok(key),
        }
    };
    read().map_err(|source| OpenError::KeyFile {
        path: path.to_owned(),
        source,
    })
}

/// The key that the options name.
///
/// # Errors
/// [`OpenError::KeyFile`]: the key file cannot be read, is empty, or is larger than 8 MiB.
pub(super) fn key_of(options: &Options) -> Result<Option<Key>, OpenError> {
    if let Some(key) = options.given_key() {
        return Ok(Some(key.clone()));
    }
    let file = options.mounting().key_file.as_deref();
    file.map(read_key).transpose()
}

/// Opens another device of an image, for writing.
///
/// # Errors
/// The errors of [`open_device`](super::open_device) and of [`decrypted`].
pub(crate) fn open_member(path: &Path, opening: &Options) -> Result<Arc<dyn Device>, OpenError> {
    let device = super::open_device(path, false)?;
    decrypted(path, device, key_of(opening)?.as_ref())
}

/// The content of the volume on a device, if there is a key.
///
/// # Errors
/// [`OpenError::Luks`]: it is no volume, or the key is wrong.
pub fn decrypted(
    path: &Path,
    device: Arc<dyn Device>,
    key: Option<&Key>,
) -> Result<Arc<dyn Device>, OpenError> {
    let Some(key) = key else {
        return Ok(device);
    };
    let opened = sapwood_luks::open(device, key);
    let opened = opened.map_err(|source| OpenError::Luks {
        path: path.to_owned(),
        source: Box::new(source),
    })?;
    Ok(opened)
}

/// A device that verifies all reads of the image, if there is a hash tree.
pub(super) fn verified(
    path: &Path,
    file: Arc<dyn Device>,
    hashes: Option<(Arc<dyn Device>, RootHash)>,
) -> Result<Arc<dyn Device>, OpenError> {
    let Some((hashes, root)) = hashes else {
        return Ok(file);
    };
    let failed = |source| OpenError::Verity {
        path: path.to_owned(),
        source: Box::new(source),
    };
    let verified = VerityDevice::open(file, hashes, root).map_err(failed)?;
    Ok(Arc::new(verified))
}
