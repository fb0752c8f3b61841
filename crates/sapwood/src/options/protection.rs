//! Options of images that are verified or encrypted.

use std::path::{Path, PathBuf};

use super::Options;

impl Options {
    /// Verifies every block that is read with the hash tree of dm-verity in `hashes`
    /// (`verity.roothash=`, `verity.hashdevice=`). Nothing can be changed. A block that differs is an
    /// error of the device.
    #[must_use]
    pub fn verified(mut self, hashes: impl AsRef<Path>, root: sapwood_verity::RootHash) -> Self {
        let hashes = hashes.as_ref();
        self.record(None, format!("verity.roothash={root}"));
        self.record(None, format!("verity.hashdevice={}", hashes.display()));
        self.mount.root_hash = Some(root);
        self.mount.hash_device = Some(hashes.to_owned());
        self
    }

    /// Decrypts the image with a key: all of its devices are LUKS volumes that the key opens.
    #[must_use]
    pub fn key(mut self, key: sapwood_luks::Key) -> Self {
        self.key = Some(key);
        self
    }

    /// Decrypts the image with the content of a key file (`luks.keyfile=`), as
    /// [`key`](Self::key).
    #[must_use]
    pub fn key_file(mut self, path: impl AsRef<Path>) -> Self {
        let path = path.as_ref();
        self.record(None, format!("luks.keyfile={}", path.display()));
        self.mount.key_file = Some(path.to_owned());
        self
    }

    /// The key that the program gave.
    pub(crate) fn given_key(&self) -> Option<&sapwood_luks::Key> {
        self.key.as_ref()
    }

    /// Replaces the paths of the hash device and of the key file.
    ///
    /// # Errors
    /// The error of `real`.
    pub(crate) fn relocate<E>(
        &mut self,
        real: impl Fn(&Path) -> Result<PathBuf, E>,
    ) -> Result<(), E> {
        let paths = [&mut self.mount.hash_device, &mut self.mount.key_file];
        for path in paths.into_iter().flatten() {
            *path = real(path)?;
        }
        Ok(())
    }
}
