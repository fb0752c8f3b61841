//! dm-verity: hash trees of images, as `veritysetup` makes them. For single files see
//! [`FileSystem::enable_verity`](crate::FileSystem::enable_verity).
//!
//! ```standalone_crate
//! use sapwood::verity;
//!
//! # let dir = tempfile::tempdir()?;
//! # std::env::set_current_dir(&dir)?;
//! # std::fs::create_dir_all("tree/etc")?;
//! # std::fs::write("tree/etc/os-release", "ID=test\n")?;
//! # sapwood::ImageBuilder::ext4().from_dir("tree")?.write_to("root.img")?;
//! let params = verity::Params::default();
//! let tree = verity::format("root.img", "root.hash", &params, None, &mut |_| {})?;
//! let fs = sapwood::Options::new().verified("root.hash", tree.root.clone()).open("root.img")?;
//! println!("{}: {}", tree.root, fs.read_to_string("etc/os-release")?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sapwood_block::{Device, Operand};
use sapwood_ext4_format::{SUPER_OFFSET, SUPER_SIZE, SuperBlock};
pub use sapwood_verity::{Algorithm, FileDigest, FileParams, Header, Params, RootHash};

use crate::error::Result;
use crate::image::{self, OpenError};
use crate::new_file::{NewFile, NewFileError};
use crate::progress::{OnProgress, Progress};

/// The phase of [`Progress::Done`] in which an image is hashed; its unit is the byte.
#[doc(hidden)]
pub const HASHING: &str = "hashing";
/// The phase in which an image is verified; its unit is the byte.
const VERIFYING: &str = "verifying";

/// A hash tree that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerityTree {
    /// Its superblock.
    pub header: Header,
    /// Its root hash.
    pub root: RootHash,
}

/// Why a hash tree was not made, or does not fit.
#[derive(Debug, thiserror::Error)]
pub enum VerityError {
    /// The image or the hash device.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The new file for the hashes.
    #[error(transparent)]
    NewFile(#[from] NewFileError),
    /// The tree cannot be made, or does not verify the image.
    #[error("{}", image::named(path, source))]
    Tree {
        /// Image or hash device.
        path: PathBuf,
        /// The reason.
        source: sapwood_verity::Error,
    },
}

/// The error of a hash tree with the path of the image or the hash device.
fn tree(path: &Path) -> impl FnOnce(sapwood_verity::Error) -> VerityError {
    move |source| VerityError::Tree {
        path: path.to_owned(),
        source,
    }
}

/// Writes the hash tree of an image to `hashes`: a file, which is made or replaced, or an existing
/// device or partition. Without a `uuid`, the first bytes of the root hash are the UUID of the
/// tree, so that the same image and parameters give the same bytes.
///
/// # Errors
/// The image is no multiple of the block size, or in use; the parameters make no sense; the hash
/// device is too small.
pub fn format(
    image: impl AsRef<Path>,
    hashes: impl AsRef<Path>,
    params: &Params,
    uuid: Option<[u8; 16]>,
    progress: &mut OnProgress<'_>,
) -> Result<VerityTree> {
    let (image, hashes) = (image.as_ref(), hashes.as_ref());
    Ok(make(image, hashes, params, uuid, progress)?)
}

fn make(
    image: &Path,
    hashes: &Path,
    params: &Params,
    uuid: Option<[u8; 16]>,
    progress: &mut OnProgress<'_>,
) -> Result<VerityTree, VerityError> {
    let data = image::open_device(image, true)?;
    let is_file = !Operand::is_fixed(hashes) && !is_device(hashes);
    if is_file {
        let new = NewFile::create(hashes, true)?;
        let device = new.device().map_err(OpenError::Device)?;
        let made = build(image, &*data, &*device, params, uuid, progress)?;
        drop(device);
        new.finish()?;
        return Ok(made);
    }
    let device = image::open_device(hashes, false)?;
    build(image, &*data, &*device, params, uuid, progress)
}

fn is_device(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;

    path.metadata()
        .is_ok_and(|found| found.file_type().is_block_device())
}

/// Writes the hash tree of a device, which errors call `image`.
pub(crate) fn build(
    image: &Path,
    data: &dyn Device,
    hashes: &dyn Device,
    params: &Params,
    uuid: Option<[u8; 16]>,
    progress: &mut OnProgress<'_>,
) -> Result<VerityTree, VerityError> {
    progress(Progress::Total(data.size()));
    let mut hashed = |done| {
        let phase = HASHING;
        progress(Progress::Done { phase, done });
    };
    let built = sapwood_verity::build(data, hashes, params, uuid, &mut hashed);
    let (header, root) = built.map_err(tree(image))?;
    Ok(VerityTree { header, root })
}

/// Like [`build`], for the content of a new image or partition. Blocks of data are at most as large
/// as the blocks of its ext4: a file system cannot be mounted from a device with larger ones.
pub(crate) fn build_of_new(
    image: &Path,
    data: &dyn Device,
    hashes: &dyn Device,
    params: &Params,
    progress: &mut OnProgress<'_>,
) -> Result<VerityTree, VerityError> {
    let mut params = params.clone();
    if let Some(block) = block_of_ext4(data) {
        params.data_block = params.data_block.min(block);
    }
    build(image, data, hashes, &params, None, progress)
}

/// Bytes of a block of the ext4 on a device, if it has one.
fn block_of_ext4(device: &dyn Device) -> Option<u32> {
    let mut bytes = [0; SUPER_SIZE];
    device.read_at(SUPER_OFFSET, &mut bytes).ok()?;
    let sb = SuperBlock::parse(&bytes).ok()?;
    1024_u32.checked_shl(sb.log_block_size.get())
}

/// A salt of 32 random bytes.
#[must_use]
pub fn random_salt() -> Vec<u8> {
    let half = || uuid::Uuid::new_v4().into_bytes();
    [half(), half()].concat()
}

/// Verifies all data of an image.
///
/// # Errors
/// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) with the number of a block that differs; the
/// root hash differs from the tree's.
pub fn verify(
    image: impl AsRef<Path>,
    hashes: impl AsRef<Path>,
    root: &RootHash,
    progress: &mut OnProgress<'_>,
) -> Result<()> {
    let (image, hashes) = (image.as_ref(), hashes.as_ref());
    let mut verify = || {
        let data = image::open_device(image, true)?;
        let tree_device = image::open_device(hashes, true)?;
        let device = sapwood_verity::VerityDevice::open(data, tree_device, root.clone());
        let device = Arc::new(device.map_err(tree(image))?);
        progress(Progress::Total(device.size()));
        let mut verified = |done| {
            let phase = VERIFYING;
            progress(Progress::Done { phase, done });
        };
        device.verify_all(&mut verified).map_err(tree(image))
    };
    Ok(verify()?)
}

/// The superblock of a hash device.
///
/// # Errors
/// The device has no superblock, or a malformed one.
pub fn header(hashes: impl AsRef<Path>) -> Result<Header> {
    let hashes = hashes.as_ref();
    let device = image::open_device(hashes, true).map_err(VerityError::from)?;
    Ok(Header::read(&*device).map_err(tree(hashes))?)
}
