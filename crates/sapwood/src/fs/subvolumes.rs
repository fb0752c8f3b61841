//! Subvolumes and snapshots, which btrfs has.
//!
//! Paths begin at the root of the open subvolume, as everywhere in [`FileSystem`]. That is the
//! default one, or the one that the options name. Only the paths of [`FileSystem::subvolumes`]
//! begin at the top level, which [`Options::top_level`](crate::Options::top_level) opens.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::file_system::FileSystem;
use crate::error::{Error, Result};
use crate::tree::{self, HeldInode};
use crate::vfs::{self, SetAttr, SubvolumeId, SubvolumeInfo, Subvolumes};

impl FileSystem {
    /// All subvolumes of the image, by id. Their paths begin at the top level, whatever subvolume
    /// is open.
    ///
    /// # Errors
    /// The format has no subvolumes ([`vfs::Error::NotSupported`]); the device fails.
    pub fn subvolumes(&self) -> Result<Vec<SubvolumeInfo>> {
        let listed = self.engine_subvolumes().and_then(Subvolumes::list);
        listed.map_err(Error::whole("list the subvolumes of"))
    }

    /// Creates an empty subvolume, which belongs to the [creator](Self::set_creator).
    ///
    /// # Errors
    /// The format has no subvolumes; the name exists.
    pub fn create_subvolume(&self, path: impl AsRef<Path>) -> Result<()> {
        self.in_parent("create subvolume", path.as_ref(), |fs, dir, name| {
            let made = self.engine_subvolumes()?.create_subvolume(dir, name)?;
            let (made, creator) = (HeldInode::new(fs, made), self.creator());
            let changes = SetAttr {
                uid: Some(creator.uid),
                gid: Some(creator.gid),
                ..SetAttr::default()
            };
            fs.setattr(made.ino(), &changes).map(drop)
        })
    }

    /// Creates a writable snapshot, at `to`, of the subvolume whose root is `from`; `/` is the
    /// subvolume that is open. Data that was written before the call is in it.
    ///
    /// ```no_run
    /// let fs = sapwood::open("disk.img")?;
    /// fs.snapshot("/", "/monday")?; // of the default subvolume, in it
    /// fs.close()?;
    /// let fs = sapwood::Options::new().top_level().open("disk.img")?;
    /// fs.snapshot("/home", "/snapshots/home")?; // of and in any subvolume
    /// # Ok::<(), sapwood::Error>(())
    /// ```
    ///
    /// # Errors
    /// The format has no snapshots; `from` is not the root of a subvolume; the name exists.
    pub fn snapshot(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.make_snapshot(from.as_ref(), to.as_ref(), false)
    }

    /// Like [`snapshot`](Self::snapshot), read-only.
    ///
    /// # Errors
    /// The format has no snapshots; `from` is not the root of a subvolume; the name exists.
    pub fn snapshot_read_only(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.make_snapshot(from.as_ref(), to.as_ref(), true)
    }

    fn make_snapshot(&self, from: &Path, to: &Path, read_only: bool) -> Result<()> {
        self.with("make a snapshot of", from, true, |fs, source| {
            let (dir, name) = tree::resolve_parent(fs, to.as_os_str().as_bytes())?;
            let subvolumes = self.engine_subvolumes()?;
            let made = subvolumes.snapshot(source.ino(), dir.ino(), &name, read_only)?;
            drop(HeldInode::new(fs, made));
            Ok(())
        })
    }

    /// Deletes a subvolume with everything in it. Its space returns over time.
    ///
    /// # Errors
    /// The path is not the root of a subvolume; the subvolume contains another one, or is the
    /// default.
    pub fn delete_subvolume(&self, path: impl AsRef<Path>) -> Result<()> {
        self.in_parent("delete subvolume", path.as_ref(), |_, dir, name| {
            self.engine_subvolumes()?.delete_subvolume(dir, name)
        })
    }

    /// Makes a subvolume read-only, or writable again.
    ///
    /// # Errors
    /// `path` is not the root of a subvolume.
    pub fn set_subvolume_read_only(&self, path: impl AsRef<Path>, read_only: bool) -> Result<()> {
        self.with("change subvolume", path.as_ref(), true, |_, node| {
            self.engine_subvolumes()?
                .set_read_only(node.ino(), read_only)
        })
    }

    /// The subvolume whose root is `path`.
    ///
    /// # Errors
    /// The format has no subvolumes; `path` is not the root of a subvolume.
    pub fn subvolume_at(&self, path: impl AsRef<Path>) -> Result<SubvolumeId> {
        self.with("find subvolume", path.as_ref(), true, |_, node| {
            self.engine_subvolumes()?.subvolume_at(node.ino())
        })
    }

    /// The subvolume that is mounted when none is named.
    ///
    /// # Errors
    /// The format has no subvolumes; the device fails.
    pub fn default_subvolume(&self) -> Result<SubvolumeId> {
        let found = self
            .engine_subvolumes()
            .and_then(Subvolumes::default_subvolume);
        found.map_err(Error::whole("read the default subvolume of"))
    }

    /// Sets the subvolume that is mounted when none is named.
    ///
    /// # Errors
    /// There is no such subvolume.
    pub fn set_default_subvolume(&self, id: SubvolumeId) -> Result<()> {
        let set = self
            .engine_subvolumes()
            .and_then(|all| all.set_default_subvolume(id));
        set.map_err(Error::whole("set the default subvolume of"))
    }

    fn engine_subvolumes(&self) -> vfs::Result<&dyn Subvolumes> {
        self.vfs().subvolumes().ok_or(vfs::Error::NotSupported)
    }
}
