//! Container images: OCI layouts, archives of them, and archives of `docker save`.
//!
//! # How it works
//! `index.json` names manifests, or further indexes; an image for this machine is chosen among
//! them (`choice`). The manifest names layers, which are tar archives. Each is extracted over the
//! ones below it. The whiteouts of a layer are applied first, in a pass of their own, because they
//! concern only lower layers, whatever their order in the layer. Blobs come from a directory or an
//! archive (`store`) and are verified against their digest. A layer that is used again is kept
//! decompressed, so every blob is read, verified and decompressed once.

mod choice;
mod digest;
mod store;

use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::archive::{ArchiveError, Entries, Kept, Scratch, TarReader, buffered, decompressed};
use choice::Chosen;
use digest::{Digest, Hashing};
use store::Store;

/// Why an image of a container was not read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OciError {
    /// The layout or archive cannot be opened.
    #[error("{}: {source}", path.display())]
    Open {
        /// Its path.
        path: PathBuf,
        /// Error of the host.
        source: io::Error,
    },
    /// The archive that contains the image.
    #[error("{}: {source}", path.display())]
    Archive {
        /// Its path.
        path: PathBuf,
        /// The defect.
        source: Box<ArchiveError>,
    },
    /// There is neither `index.json` nor `manifest.json`.
    #[error("{}: neither an OCI layout nor an archive of docker save", .0.display())]
    NoImage(PathBuf),
    /// A blob or file does not exist, although another one names it.
    #[error("{blob}: is named, but is not there")]
    Missing {
        /// The blob.
        blob: String,
    },
    /// A blob cannot be read.
    #[error("{blob}: {source}")]
    Read {
        /// The blob.
        blob: String,
        /// Error of the host.
        source: io::Error,
    },
    /// A blob is not the JSON that it must be.
    #[error("{blob}: {source}")]
    Json {
        /// The blob.
        blob: String,
        /// The defect.
        source: serde_json::Error,
    },
    /// A blob is neither an index nor a manifest.
    #[error("{blob}: is neither an index nor a manifest")]
    Document {
        /// The blob.
        blob: String,
    },
    /// A blob is larger than any index, manifest or configuration.
    #[error("{blob}: has {size} bytes; at most {limit} are read")]
    TooLarge {
        /// The blob.
        blob: String,
        /// Its size.
        size: u64,
        /// The limit.
        limit: u64,
    },
    /// The name of a blob is no digest, or one of an unknown algorithm.
    #[error("{blob}: {text} is no sha256 or sha512 digest")]
    NoDigest {
        /// The blob that names it.
        blob: String,
        /// The name, escaped.
        text: String,
    },
    /// The content of a blob does not have its digest.
    #[error("{blob}: the content has another digest: {found}")]
    Digest {
        /// The blob.
        blob: String,
        /// The actual digest.
        found: String,
    },
    /// A blob whose size differs from its descriptor.
    #[error("{blob}: has {found} bytes instead of {expected}")]
    Size {
        /// The blob.
        blob: String,
        /// Bytes that it should have.
        expected: u64,
        /// Bytes that it has.
        found: u64,
    },
    /// The name of a file leads out of the image.
    #[error("{blob}: {text} leads out of the image")]
    Outside {
        /// The file that names it.
        blob: String,
        /// The name, escaped.
        text: String,
    },
    /// No image has the tag.
    #[error("no image has the tag {tag}; there are: {available}")]
    NoTag {
        /// The tag.
        tag: String,
        /// Tags that exist.
        available: String,
    },
    /// There are several images, and none was named.
    #[error("there are several images, name one as FILE:TAG: {available}")]
    Several {
        /// Tags that exist.
        available: String,
    },
    /// No image is for this machine.
    #[error("{blob}: no image is for {wanted}; there are: {available}")]
    Platform {
        /// The index.
        blob: String,
        /// The platform of this machine.
        wanted: String,
        /// Platforms that exist.
        available: String,
    },
    /// Indexes are nested without end.
    #[error("{blob}: indexes are nested more than {limit} times")]
    Nested {
        /// The last index.
        blob: String,
        /// The limit.
        limit: usize,
    },
    /// A layer of a type that is no archive of files.
    #[error("{blob}: a layer of the type {media_type} has no files")]
    MediaType {
        /// The blob.
        blob: String,
        /// Its type, escaped.
        media_type: String,
    },
    /// A layer that is encrypted.
    #[error("{blob}: the layer is encrypted ({media_type}); decrypt the image first")]
    Encrypted {
        /// The blob.
        blob: String,
        /// Its type, escaped.
        media_type: String,
    },
    /// An image with more layers than any tool makes.
    #[error("{blob}: has {count} layers; at most {limit} are read")]
    TooManyLayers {
        /// The manifest.
        blob: String,
        /// Its layers.
        count: usize,
        /// The limit.
        limit: usize,
    },
    /// The configuration and the manifest disagree on the number of layers.
    #[error("{blob}: names {found} layers instead of {expected}")]
    Layers {
        /// The configuration.
        blob: String,
        /// Layers of the manifest.
        expected: usize,
        /// Layers of the configuration.
        found: usize,
    },
    /// The archive of a layer.
    #[error("layer {blob}: {source}")]
    Layer {
        /// The blob.
        blob: String,
        /// The defect.
        source: Box<ArchiveError>,
    },
}

pub(crate) type Result<T> = std::result::Result<T, OciError>;

/// A layer of an image.
#[derive(Debug)]
struct Layer {
    /// Name in the store.
    name: String,
    /// Digest and size of the blob.
    stored: Option<(Digest, u64)>,
    /// Digest of the archive, decompressed.
    content: Option<Digest>,
    /// A verified copy of the archive.
    kept: OnceLock<Kept>,
}

/// A container image that is ready to be extracted.
pub(crate) struct OciImage {
    store: Store,
    layers: Vec<Layer>,
}

impl OciImage {
    /// Opens `DIR[:TAG]` or `ARCHIVE[:TAG]`.
    ///
    /// # Errors
    /// [`OciError`].
    pub(crate) fn open(operand: &Path) -> Result<Self> {
        let (path, tag) = split(operand);
        let store = Store::open(&path)?;
        let tag = tag.as_deref().map(OsStr::to_string_lossy);
        let Chosen { layers } = choice::choose(&store, &path, tag.as_deref())?;
        Ok(Self { store, layers })
    }

    /// Number of layers.
    pub(crate) fn layers(&self) -> usize {
        self.layers.len()
    }

    /// Passes the entries of a layer, counted from the lowest one, to `work`. The blob is verified
    /// when it returns; an error of a wrong blob takes precedence. A layer that is used `again` is
    /// kept.
    ///
    /// # Errors
    /// [`OciError`].
    pub(crate) fn layer(
        &self,
        index: usize,
        again: Option<&Scratch>,
        work: impl FnOnce(&mut dyn Entries) -> std::result::Result<(), ArchiveError>,
    ) -> Result<()> {
        let Some(layer) = self.layers.get(index) else {
            return Ok(());
        };
        let failed = |source| OciError::Layer {
            blob: layer.name.clone(),
            source: Box::new(source),
        };
        if let Some(kept) = layer.kept.get() {
            let plain = buffered(kept.reader());
            return work(&mut TarReader::new(plain).open_end()).map_err(failed);
        }
        let reader = self.store.open_blob(&layer.name)?;
        let algorithm = layer.stored.as_ref().map(|(digest, _)| digest.algorithm());
        let mut stored = Hashing::new(reader, algorithm);
        let algorithm = layer.content.as_ref().map(Digest::algorithm);
        let read = |plain: &mut dyn Read| {
            let mut content = Hashing::new(buffered(plain), algorithm);
            work(&mut TarReader::new(&mut content).open_end())?;
            io::copy(&mut content, &mut io::sink())?;
            Ok::<_, ArchiveError>(content.digest())
        };
        let worked = decompressed(&mut stored, |plain| match again {
            None => Ok((None, read(plain)?)),
            Some(scratch) => {
                let (kept, digest) = Kept::while_read(plain, scratch, read)?;
                Ok((Some(kept), digest))
            }
        });
        let rest = io::copy(&mut stored, &mut io::sink());
        rest.map_err(|source| OciError::Read {
            blob: layer.name.clone(),
            source,
        })?;
        if let Some((digest, size)) = &layer.stored {
            stored.verify(&layer.name, digest, *size)?;
        }
        let (kept, digest) = worked.map_err(failed)?;
        match (&layer.content, digest) {
            (Some(expected), Some(found)) if *expected != found => Err(OciError::Digest {
                blob: layer.name.clone(),
                found: found.to_string(),
            }),
            _ => {
                kept.map(|kept| layer.kept.set(kept));
                Ok(())
            }
        }
    }
}

/// Separates the tag from a path. A path that exists has none; else the longest part before a colon
/// that exists is the path.
fn split(operand: &Path) -> (PathBuf, Option<OsString>) {
    let bytes = operand.as_os_str().as_bytes();
    if operand.symlink_metadata().is_ok() {
        return (operand.to_owned(), None);
    }
    let colons = bytes.iter().enumerate().rev();
    for (at, _) in colons.filter(|(_, byte)| **byte == b':') {
        let (Some(path), Some(tag)) = (bytes.get(..at), bytes.get(at + 1..)) else {
            continue;
        };
        let path = Path::new(OsStr::from_bytes(path));
        if path.symlink_metadata().is_ok() {
            return (path.to_owned(), Some(OsStr::from_bytes(tag).to_owned()));
        }
    }
    (operand.to_owned(), None)
}

/// Reads a blob of JSON whole.
fn document(store: &Store, name: &str, stored: Option<&(Digest, u64)>) -> Result<Vec<u8>> {
    const LIMIT: u64 = 4 << 20;
    let reader = store.open_blob(name)?;
    let mut hashing = Hashing::new(reader, stored.map(|(digest, _)| digest.algorithm()));
    let mut content = Vec::new();
    let read = hashing.by_ref().take(LIMIT + 1).read_to_end(&mut content);
    read.map_err(|source| OciError::Read {
        blob: name.to_owned(),
        source,
    })?;
    if content.len() as u64 > LIMIT {
        return Err(OciError::TooLarge {
            blob: name.to_owned(),
            size: stored.map_or(content.len() as u64, |(_, size)| *size),
            limit: LIMIT,
        });
    }
    if let Some((digest, size)) = stored {
        hashing.verify(name, digest, *size)?;
    }
    Ok(content)
}
