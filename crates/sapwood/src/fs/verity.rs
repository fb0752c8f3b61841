//! Hash trees of single files (fs-verity).

use std::path::Path;

use sapwood_verity::{Descriptor, FileDigest, FileParams, ReadFailure, build_file};

use super::file_system::FileSystem;
use crate::error::Result;
use crate::vfs::{self, Ino};

impl FileSystem {
    /// Gives a file a hash tree of fs-verity, and returns the digest of the file. Its content can
    /// never change again, and every read verifies what it returns: a wrong byte is an
    /// [`Io`](crate::ErrorKind::Io) error. Names, owner, mode and attributes can still change.
    ///
    /// `signature` is a built-in signature of the digest, in DER, as `fsverity sign` makes it; it is
    /// stored and not verified. The tree is built in memory: a 127th of the file.
    ///
    /// ```no_run
    /// let fs = sapwood::open("root.img")?;
    /// let digest = fs.enable_verity("usr/bin/app", &Default::default(), &[])?;
    /// println!("{digest}");
    /// fs.close()?;
    /// # Ok::<(), sapwood::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Unsupported`](crate::ErrorKind::Unsupported): a file of ext4 without an extent tree.
    /// [`AlreadyExists`](crate::ErrorKind::AlreadyExists): it has a tree.
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput): the block is larger than a block of the
    /// file system; the salt or the signature is too long.
    pub fn enable_verity(
        &self,
        path: impl AsRef<Path>,
        params: &FileParams,
        signature: &[u8],
    ) -> Result<FileDigest> {
        let action = "make the hash tree of";
        self.with(action, path.as_ref(), true, |fs, node| {
            enable(fs, node.ino(), params, signature)
        })
    }

    /// Bytes of a block of a hash tree that suit the file system: 4096, or its block size if that is
    /// smaller.
    ///
    /// # Errors
    /// The file system cannot be read.
    pub fn verity_block_size(&self) -> Result<u32> {
        let action = "read the size of blocks of";
        self.with(action, Path::new("/"), true, |fs, _| usual_block(fs))
    }

    /// The digest of a file with a hash tree, as `fsverity measure` prints it; `None` for a file
    /// without one. The tree is not verified.
    ///
    /// # Errors
    /// The path does not exist or is no regular file; the descriptor is damaged.
    pub fn measure_verity(&self, path: impl AsRef<Path>) -> Result<Option<FileDigest>> {
        let action = "read the hash tree of";
        self.with(action, path.as_ref(), true, |fs, node| {
            let stored = stored(fs, node.ino())?;
            let parsed = stored.as_deref().map(Descriptor::parse).transpose();
            Ok(parsed.map_err(vfs::Error::corrupt)?.map(|one| one.digest()))
        })
    }
}

/// See [`FileSystem::verity_block_size`].
pub(crate) fn usual_block(fs: &dyn vfs::FileSystem) -> vfs::Result<u32> {
    let usual = FileParams::default().block_size;
    Ok(fs.statfs()?.block_size.min(usual))
}

/// The descriptor of a file as it is stored; `None` for a file without a hash tree.
pub(crate) fn stored(fs: &dyn vfs::FileSystem, ino: Ino) -> vfs::Result<Option<Vec<u8>>> {
    match fs.verity_descriptor(ino) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(vfs::Error::NoAttribute | vfs::Error::NotSupported) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Gives a file a hash tree.
pub(crate) fn enable(
    fs: &dyn vfs::FileSystem,
    ino: Ino,
    params: &FileParams,
    signature: &[u8],
) -> vfs::Result<FileDigest> {
    params.check().map_err(|_| vfs::Error::Invalid)?;
    let size = fs.getattr(ino)?.size;
    if stored(fs, ino)?.is_some() {
        return Err(vfs::Error::Exists);
    }
    let built = build_file(params, size, &mut |at, buf| {
        vfs::read_padded(fs, ino, at, buf).map_err(ReadFailure::Read)
    });
    let (tree, mut descriptor) = built.map_err(|failure| match failure {
        ReadFailure::Read(error) => error,
        ReadFailure::Verity(_) => vfs::Error::Invalid,
    })?;
    descriptor.signature = signature.to_vec();
    fs.store_verity(ino, &tree, &descriptor.bytes())?;
    Ok(descriptor.digest())
}

/// Copies the hash tree of a file to a file with the same content.
pub(crate) fn copy(
    (from, source): (&dyn vfs::FileSystem, Ino),
    (to, target): (&dyn vfs::FileSystem, Ino),
    descriptor: &[u8],
) -> vfs::Result<()> {
    let parsed = Descriptor::parse(descriptor).map_err(vfs::Error::corrupt)?;
    let size = sapwood_verity::FileLayout::new(&parsed.params, parsed.data_size).size();
    let mut tree = vec![0; usize::try_from(size).map_err(|_| vfs::Error::FileTooLarge)?];
    from.read_verity_tree(source, 0, &mut tree)?;
    to.store_verity(target, &tree, descriptor)
}
