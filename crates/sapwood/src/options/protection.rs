//! Options of images that are verified or encrypted, or that have parts on other devices.

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

    /// The journal of an ext4 is on this device (`journal_path=`).
    #[must_use]
    pub fn journal(mut self, path: impl AsRef<Path>) -> Self {
        let path = path.as_ref();
        self.record(
            Some(crate::Kind::Ext4),
            format!("journal_path={}", path.display()),
        );
        self.mount.journal_path = Some(path.to_owned());
        self
    }

    /// The same options for work that leaves the journal on another device alone.
    pub(crate) fn without_journal(&self) -> Self {
        let mut options = self.clone();
        options.mount.journal_path = None;
        options
    }

    /// The key that the program gave.
    pub(crate) fn given_key(&self) -> Option<&sapwood_luks::Key> {
        self.key.as_ref()
    }

    /// Whether the image is decrypted with a key.
    #[cfg(feature = "fuse")]
    pub(crate) fn is_encrypted(&self) -> bool {
        self.key.is_some() || self.mount.key_file.is_some()
    }

    /// Replaces the paths of the hash device, of the key file and of the journal.
    ///
    /// # Errors
    /// The error of `real`.
    pub(crate) fn relocate<E>(
        &mut self,
        real: impl Fn(&Path) -> Result<PathBuf, E>,
    ) -> Result<(), E> {
        let mount = &mut self.mount;
        let paths = [
            &mut mount.hash_device,
            &mut mount.key_file,
            &mut mount.journal_path,
        ];
        for path in paths.into_iter().flatten() {
            *path = real(path)?;
        }
        Ok(())
    }
}
