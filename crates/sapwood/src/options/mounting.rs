//! Options of the mount itself, for both kinds of mounts: by a command and by a program.

use std::path::{Path, PathBuf};

use log::LevelFilter;
use sapwood_block::{DiskFormat, Operand, OperandError};
use sapwood_verity::RootHash;
pub use sapwood_vfs::{Access, Choice};

/// Options of the mount itself. The fields have the names of the options; `false` and `None` are
/// the defaults.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "the table of options explains them")]
pub struct Mounting {
    pub access: Access,
    pub read_only: bool,
    pub no_default_permissions: bool,
    pub auto_unmount: bool,
    pub noatime: bool,
    pub strictatime: bool,
    pub nodiratime: bool,
    pub lazytime: bool,
    pub nosymfollow: bool,
    pub nosuid: Option<bool>,
    pub nodev: Option<bool>,
    pub noexec: bool,
    pub sync: bool,
    pub dirsync: bool,
    pub threads: Option<usize>,
    pub io_uring: Choice,
    pub polling: Choice,
    pub fuseblk: Choice,
    pub sandbox: Choice,
    pub log: Option<LevelFilter>,
    pub writeback_cache: bool,
    pub fsname: Option<String>,
    pub offset: Option<u64>,
    pub length: Option<u64>,
    pub partition: Option<String>,
    pub format: Option<DiskFormat>,
    pub backing_files: bool,
    pub root_hash: Option<RootHash>,
    pub hash_device: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
    pub journal_path: Option<PathBuf>,
}

impl Mounting {
    /// The operand for the part of `image` that `offset`, `length` and `partition` name, in a file
    /// of the `format`.
    ///
    /// # Errors
    /// [`OperandError::TwoRanges`]: two of them, or one of them and `image`, name a part.
    pub fn operand(&self, image: &Path) -> Result<PathBuf, OperandError> {
        let image = match &self.partition {
            Some(wanted) => Operand::with_partition(image, wanted)?,
            None => image.to_owned(),
        };
        let image = Operand::with_range(&image, self.offset, self.length)?;
        Ok(Operand::with_format(
            &image,
            self.format,
            self.backing_files,
        ))
    }
}

#[cfg(feature = "fuse")]
impl Mounting {
    /// The options of a FUSE mount of `image`.
    #[must_use]
    pub fn for_fuse(&self, image: &Path) -> sapwood_fuse::MountOptions {
        use sapwood_fuse::MountOptions;

        let ordinary = MountOptions::default();
        // The type `fuseblk` needs a block device over a file of this machine.
        let is_export = Operand::parse(image).is_ok_and(|operand| operand.is_export());
        let anchored = !is_export || self.fuseblk == Choice::On;
        MountOptions {
            access: self.access,
            default_permissions: !self.no_default_permissions,
            read_only: self.read_only,
            fsname: match &self.fsname {
                Some(name) => name.clone(),
                None => image.to_string_lossy().into_owned(),
            },
            auto_unmount: self.auto_unmount,
            nosuid: self.nosuid.unwrap_or(ordinary.nosuid),
            nodev: self.nodev.unwrap_or(ordinary.nodev),
            noexec: self.noexec,
            noatime: self.noatime,
            strictatime: self.strictatime,
            nodiratime: self.nodiratime,
            lazytime: self.lazytime,
            nosymfollow: self.nosymfollow,
            sync: self.sync,
            dirsync: self.dirsync,
            threads: self.threads,
            io_uring: self.io_uring,
            polling: self.polling,
            fuseblk: self.fuseblk,
            anchor: anchored.then(|| Operand::file_of(image)),
            writeback_cache: self.writeback_cache,
            ..ordinary
        }
    }
}

#[cfg(all(test, feature = "fuse"))]
mod tests {
    use super::*;

    #[test]
    fn an_export_carries_no_block_device_unless_it_is_demanded() {
        let anchor = |fuseblk, image: &str| {
            let mounting = Mounting {
                fuseblk,
                ..Mounting::default()
            };
            mounting.for_fuse(Path::new(image)).anchor
        };
        assert_eq!(anchor(Choice::Auto, "nbd://host/disk#2"), None);
        assert!(anchor(Choice::On, "nbd://host/disk").is_some());
        let file = anchor(Choice::Auto, "/srv/disk.img");
        assert_eq!(file.as_deref(), Some(Path::new("/srv/disk.img")));
    }
}
