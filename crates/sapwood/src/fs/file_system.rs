//! An open image.

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use sapwood_block::Device;

use super::dir::{ReadDir, Walk};
use super::file::{File, OpenOptions};
use super::handle::Handle;
use super::metadata::Metadata;
use super::operation::OperationError;
use crate::error::{Error, ErrorKind, Result};
use crate::image::{self, Mounted};
use crate::tree::{self, HeldInode};
use crate::vfs::{self, CopyMode, Credentials, FileKind, FsStat, Ino, NewInode, SetAttr};
use crate::{Kind, Options};

/// Most symbolic links that are followed to the path of a new file.
const LINKS_MAX: u32 = 40;

/// An open image. Clones share it.
///
/// [`close`](Self::close) makes everything durable and reports errors. When the last clone,
/// [`File`] and iterator is dropped without it, the same happens and an error is logged.
#[derive(Clone)]
pub struct FileSystem {
    inner: Arc<Inner>,
}

struct Inner {
    mounted: Mounted,
    devices: Vec<Arc<dyn Device>>,
    path: PathBuf,
    options: Options,
    creator: Mutex<Credentials>,
    closed: AtomicBool,
    /// When it was opened first.
    was_unmounted: bool,
}

impl Inner {
    /// Ends the work of the engine, once.
    fn close(&self) -> vfs::Result<()> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let ended = self.mounted.unmount();
        // A device that coalesces short writes writes them back when it is flushed. An engine may
        // write after its last flush.
        let coalesce = self.options.is_unflushed();
        let mut coalescing = self.devices.iter().filter(|_| coalesce);
        let written = coalescing.try_for_each(|device| device.flush());
        ended.and(written.map_err(vfs::Error::io))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            log::error!("{}: closing failed: {error}", self.path.display());
        }
    }
}

impl FileSystem {
    /// Opens an image file or block device, as [`Options::open`] does. No other process can open it
    /// meanwhile, unless both only read.
    ///
    /// # Errors
    /// The errors of [`open`](crate::open); an option is of the other format.
    pub fn open_with_options(path: impl AsRef<Path>, options: &Options) -> Result<Self> {
        let path = path.as_ref();
        let (mounted, devices) = image::open_file(path, options, |_| Ok(()))?;
        Ok(Self::of(path, mounted, devices, options))
    }

    /// Opens the file system on a device that is open already. Errors call it `path`. With
    /// [options](Options) that leave flushes out, the caller flushes the device after
    /// [`close`](Self::close).
    ///
    /// # Errors
    /// [`ErrorKind::NoFileSystem`]; [`ErrorKind::Corrupt`]; an option is of the other format.
    pub fn open_on(
        device: Arc<dyn Device>,
        path: impl AsRef<Path>,
        options: &Options,
    ) -> Result<Self> {
        let path = path.as_ref();
        let (mounted, devices) = image::open_on(device, path, options)?;
        Ok(Self::of(path, mounted, devices, options))
    }

    /// Opens a damaged image ([`Options::rescue`]). `on_scan` receives the progress of the scan:
    /// bytes done, and bytes in all. The scan ends if it returns false.
    ///
    /// # Errors
    /// The errors of [`open_with_options`](Self::open_with_options). [`ErrorKind::Interrupted`]:
    /// `on_scan` ended the scan.
    pub fn open_damaged(
        path: impl AsRef<Path>,
        options: &Options,
        on_scan: &(dyn Fn(u64, u64) -> bool + Sync),
    ) -> Result<Self> {
        let path = path.as_ref();
        let mounted = image::open_damaged(path, options, on_scan)?;
        Ok(Self::of(path, mounted, Vec::new(), options))
    }

    /// Opens a btrfs for work on subvolumes. Paths are in the subvolume that the options name, or
    /// in the default one; [`Options::top_level`] reaches all.
    ///
    /// # Errors
    /// The errors of [`open_with_options`](Self::open_with_options); the image is no btrfs.
    pub fn open_btrfs(path: impl AsRef<Path>, options: &Options) -> Result<Self> {
        let path = path.as_ref();
        let (mounted, devices) = image::open_btrfs(path, options, "a subvolume")?;
        Ok(Self::of(path, mounted, devices, options))
    }

    /// The engine that was opened on `devices`.
    pub(super) fn of(
        path: &Path,
        mounted: Mounted,
        devices: Vec<Arc<dyn Device>>,
        options: &Options,
    ) -> Self {
        let creator = Credentials {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            umask: 0,
            keep_setgid: true,
        };
        Self {
            inner: Arc::new(Inner {
                was_unmounted: match &mounted {
                    Mounted::Ext4(ext4) => ext4.was_unmounted(),
                    _ => true,
                },
                mounted,
                devices,
                path: path.to_owned(),
                options: options.clone(),
                creator: Mutex::new(creator),
                closed: AtomicBool::new(false),
            }),
        }
    }

    /// Makes everything durable and ends. Operations on other clones and on open files fail after
    /// that.
    ///
    /// # Errors
    /// Some changes did not become durable.
    pub fn close(self) -> Result<()> {
        self.inner.close().map_err(Error::whole("close"))
    }

    /// Owner and group of inodes that are created from now on, through any clone.
    pub fn set_creator(&self, uid: u32, gid: u32) {
        let mut creator = self.inner.creator.lock();
        (creator.uid, creator.gid) = (uid, gid);
    }

    /// Sets the permission bits that new inodes do not get, through any clone; none at first. If
    /// the directory has a default ACL, that applies instead, as for umask(2).
    pub fn set_umask(&self, umask: u32) {
        self.inner.creator.lock().umask = umask & 0o777;
    }

    /// The path that the image was opened by.
    #[must_use]
    pub fn image_path(&self) -> &Path {
        &self.inner.path
    }

    /// Whether the same operations give the same image ([`Options::reproducible`]).
    #[must_use]
    pub fn is_reproducible(&self) -> bool {
        self.inner.options.is_reproducible()
    }

    /// Whether both are the same open image.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// The format of the image.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.inner.mounted.image_kind()
    }

    /// Whether the image was unmounted properly before it was opened. Otherwise the data of an ext4
    /// may be newer than its inodes. Opening for writing recovers the image, so a later one does not
    /// find that out. True for a btrfs, which has no such state.
    #[must_use]
    pub fn was_unmounted(&self) -> bool {
        self.inner.was_unmounted
    }

    /// The engine, for operations that this interface lacks.
    #[doc(hidden)]
    #[must_use]
    pub fn engine(&self) -> &Mounted {
        &self.inner.mounted
    }

    /// Opens a file for reading. [`open_with`](Self::open_with) opens it in other ways.
    ///
    /// ```no_run
    /// use std::io::{BufRead, BufReader};
    ///
    /// let fs = sapwood::open("disk.img")?;
    /// for line in BufReader::new(fs.open("etc/passwd")?).lines() {
    ///     println!("{}", line?);
    /// }
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// The path does not exist; the device fails.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File> {
        self.open_with(path, OpenOptions::new().read(true))
    }

    /// Opens a file for writing; creates it, or empties it if it exists.
    ///
    /// # Errors
    /// Its directory does not exist; it is a directory; no space.
    pub fn create(&self, path: impl AsRef<Path>) -> Result<File> {
        self.open_with(
            path,
            OpenOptions::new().write(true).create(true).truncate(true),
        )
    }

    /// Opens a file with options.
    ///
    /// # Errors
    /// The options contradict each other; the directory does not exist; the path is a directory; no
    /// space.
    pub fn open_with(&self, path: impl AsRef<Path>, options: &OpenOptions) -> Result<File> {
        let path = path.as_ref();
        let handle = self.find_or_create(path.as_os_str().as_bytes(), options);
        let handle = handle.map_err(Error::at("open", path))?;
        Ok(File::new(handle, path, options))
    }

    fn find_or_create(&self, path: &[u8], options: &OpenOptions) -> vfs::Result<Handle> {
        if !options.is_valid() {
            return Err(vfs::Error::Invalid);
        }
        let fs = self.vfs();
        let (found, made) = if !(options.create || options.create_new) {
            (tree::resolve(fs, path, true)?, false)
        } else {
            self.found_or_made(path, options)?
        };
        let kind = found.attr().kind;
        match kind {
            FileKind::Regular => {}
            FileKind::Directory if options.writes() => return Err(vfs::Error::IsDirectory),
            FileKind::Directory => {}
            _ => return Err(vfs::Error::Invalid),
        }
        if options.truncate && !made {
            let size = Some(0);
            let changes = SetAttr {
                size,
                ..SetAttr::default()
            };
            fs.setattr(found.ino(), &changes)?;
        }
        Handle::of(self, &found)
    }

    /// The file at `path`, or a new one. True if the file is new.
    fn found_or_made(
        &self,
        path: &[u8],
        options: &OpenOptions,
    ) -> vfs::Result<(HeldInode<'_>, bool)> {
        let fs = self.vfs();
        let mut path = path.to_vec();
        for _ in 0..LINKS_MAX {
            let (dir, name) = tree::resolve_parent(fs, &path)?;
            match dir.child(&name) {
                Ok(_) if options.create_new => return Err(vfs::Error::Exists),
                Ok(node) if node.attr().kind == FileKind::Symlink => {
                    path = beside(&path, &fs.readlink(node.ino())?);
                }
                Ok(node) => return Ok((node, false)),
                Err(vfs::Error::NotFound) => {
                    let (who, what) = (self.creator(), NewInode::Regular);
                    match fs.create(&who, dir.ino(), &name, what, options.mode & 0o7777) {
                        // Another thread made it meanwhile.
                        Err(vfs::Error::Exists) if !options.create_new => {}
                        made => return Ok((HeldInode::new(fs, made?), true)),
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Err(vfs::Error::SymlinkLoop)
    }

    /// The content of a file.
    ///
    /// # Errors
    /// The path does not exist; the device fails.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let path = path.as_ref();
        let file = self.open(path)?;
        let mut content = Vec::new();
        let read = std::io::Read::read_to_end(&mut &file, &mut content);
        match read {
            Ok(_) => Ok(content),
            Err(error) => Err(error
                .downcast::<Error>()
                .unwrap_or_else(|error| Error::at("read", path)(vfs::Error::io(error)))),
        }
    }

    /// The content of a file that is UTF-8.
    ///
    /// # Errors
    /// The path does not exist; the content is not UTF-8
    /// ([`InvalidData`](crate::ErrorKind::InvalidData)); the device fails.
    pub fn read_to_string(&self, path: impl AsRef<Path>) -> Result<String> {
        let path = path.as_ref();
        let content = String::from_utf8(self.read(path)?);
        Ok(content.map_err(|_| OperationError::NotUtf8(path.to_owned()))?)
    }

    /// Writes a whole file; creates it, or replaces its content.
    ///
    /// # Errors
    /// The directory does not exist; the path is a directory; no space.
    pub fn write(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> Result<()> {
        self.create(path)?.write_at(content.as_ref(), 0)
    }

    /// The entries of a directory, in the image's order, without `.` and `..`.
    ///
    /// # Errors
    /// The path does not exist, or is not a directory.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir> {
        let path = path.as_ref();
        let handle = self.directory(path);
        let handle = handle.map_err(Error::at("list", path))?;
        Ok(ReadDir::new(handle, path))
    }

    /// Everything below a directory, depth first, each directory before its content. Symbolic links
    /// are not followed.
    ///
    /// # Errors
    /// The path does not exist, or is not a directory.
    pub fn walk(&self, path: impl AsRef<Path>) -> Result<Walk> {
        let path = path.as_ref();
        let handle = self.directory(path);
        let handle = handle.map_err(Error::at("list", path))?;
        Ok(Walk::new(handle, path))
    }

    fn directory(&self, path: &Path) -> vfs::Result<Handle> {
        let node = tree::resolve(self.vfs(), path.as_os_str().as_bytes(), true)?;
        if node.is_dir() {
            Handle::of(self, &node)
        } else {
            Err(vfs::Error::NotDirectory)
        }
    }

    /// Metadata of a file. Follows symbolic links.
    ///
    /// # Errors
    /// The path does not exist; the device fails.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.with("stat", path.as_ref(), true, |_, node| {
            Ok(Metadata::new(*node.attr()))
        })
    }

    /// Metadata of a file. A symbolic link at the end is not followed.
    ///
    /// # Errors
    /// The path does not exist; the device fails.
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.with("stat", path.as_ref(), false, |_, node| {
            Ok(Metadata::new(*node.attr()))
        })
    }

    /// Whether a path exists. Symbolic links are followed.
    ///
    /// # Errors
    /// Any failure but a missing name, such as an error of the device.
    pub fn exists(&self, path: impl AsRef<Path>) -> Result<bool> {
        match self.metadata(path) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Copies a file's content and permission bits within the image; shares the content where the
    /// format can (btrfs). Returns the number of bytes.
    ///
    /// # Errors
    /// The source does not exist; the target cannot be created; both are the same file.
    pub fn copy(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<u64> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let source = self.open(from)?;
        let metadata = source.metadata()?;
        if !metadata.is_file() {
            return Err(Error::at("copy", from)(vfs::Error::IsDirectory));
        }
        let options = OpenOptions::new().write(true).create(true).clone();
        let target = self.open_with(to, &options)?;
        let (source, ino) = (Ino(metadata.ino()), Ino(target.metadata()?.ino()));
        if source == ino {
            return Err(Error::at("copy onto itself", from)(vfs::Error::Invalid));
        }
        target.set_len(0)?;
        let mut done = 0;
        while done < metadata.len() {
            let left = metadata.len() - done;
            let copied = self
                .vfs()
                .copy_range(source, done, ino, done, left, CopyMode::Any);
            match copied.map_err(Error::at("copy", from))? {
                0 => break,
                count => done += count,
            }
        }
        target.set_permissions(metadata.mode() & 0o777)?;
        Ok(done)
    }

    /// Sizes and counts.
    ///
    /// # Errors
    /// The device fails.
    pub fn statfs(&self) -> Result<FsStat> {
        self.vfs().statfs().map_err(Error::whole("stat"))
    }

    /// Makes everything durable.
    ///
    /// # Errors
    /// Some changes did not become durable.
    pub fn sync(&self) -> Result<()> {
        self.vfs().sync().map_err(Error::whole("sync"))
    }

    /// The options with which it was opened.
    pub(super) fn options(&self) -> &Options {
        &self.inner.options
    }

    /// Makes everything durable and ends the engine until [`resume`](Self::resume). Returns the
    /// devices; `None` if clones exist or files are open.
    ///
    /// # Errors
    /// Some changes did not become durable.
    pub(super) fn suspend(&mut self) -> Result<Option<Vec<Arc<dyn Device>>>> {
        let Some(inner) = Arc::get_mut(&mut self.inner) else {
            return Ok(None);
        };
        inner.close().map_err(Error::whole("close"))?;
        Ok(Some(inner.devices.clone()))
    }

    /// Opens the devices again after [`suspend`](Self::suspend).
    ///
    /// # Errors
    /// The errors of [`open_on`](Self::open_on). Every later operation fails then.
    pub(super) fn resume(&mut self) -> Result<()> {
        let Some(inner) = Arc::get_mut(&mut self.inner) else {
            return Ok(());
        };
        let kind = inner.mounted.image_kind();
        inner.mounted = image::reopen(&inner.path, kind, inner.devices.clone(), &inner.options)?;
        *inner.closed.get_mut() = false;
        Ok(())
    }

    pub(super) fn vfs(&self) -> &dyn vfs::FileSystem {
        &*self.inner.mounted
    }

    pub(crate) fn creator(&self) -> Credentials {
        *self.inner.creator.lock()
    }

    pub(super) fn with<T>(
        &self,
        action: &'static str,
        path: &Path,
        follow: bool,
        work: impl FnOnce(&dyn vfs::FileSystem, &HeldInode<'_>) -> vfs::Result<T>,
    ) -> Result<T> {
        let fs = self.vfs();
        let node = tree::resolve(fs, path.as_os_str().as_bytes(), follow);
        node.and_then(|node| work(fs, &node))
            .map_err(Error::at(action, path))
    }
}

impl Options {
    /// Opens an image with these options; see [`FileSystem::open_with_options`].
    ///
    /// # Errors
    /// The errors of [`FileSystem::open_with_options`].
    pub fn open(&self, path: impl AsRef<Path>) -> Result<FileSystem> {
        FileSystem::open_with_options(path, self)
    }
}

impl fmt::Debug for FileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileSystem")
            .field("path", &self.inner.path)
            .field("kind", &self.kind())
            .finish_non_exhaustive()
    }
}

/// The path of `target`, the content of a symbolic link at `link`.
fn beside(link: &[u8], target: &[u8]) -> Vec<u8> {
    if target.first() == Some(&b'/') {
        return target.to_vec();
    }
    let end = link
        .iter()
        .rposition(|byte| *byte != b'/')
        .map_or(0, |last| last + 1);
    let name = link.get(..end).unwrap_or_default();
    let dir = name
        .iter()
        .rposition(|byte| *byte == b'/')
        .map_or(0, |at| at + 1);
    [name.get(..dir).unwrap_or_default(), target].concat()
}

#[cfg(test)]
mod tests {
    use sapwood_block::MemoryDevice;
    use sapwood_testing::{FaultDevice, RequestKinds};

    use super::*;

    #[test]
    fn a_close_returns_the_error_of_a_coalesced_write() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let image = crate::ImageBuilder::ext4().size(16 << 20);
        image.write_to(&path).unwrap();
        let closed = |refuses: bool| {
            let mut options = Options::default();
            options.set_unflushed();
            let device = Arc::new(FaultDevice::new(MemoryDevice::new(4096)));
            if refuses {
                device.fail_all(RequestKinds::FLUSH);
            }
            let mounted = image::open(&path, &Options::default()).unwrap();
            FileSystem::of(&path, mounted, vec![device], &options).close()
        };
        assert!(closed(false).is_ok());
        assert!(closed(true).is_err());
    }

    #[test]
    fn targets_are_relative_to_the_directory_of_the_link() {
        assert_eq!(beside(b"a/b/link", b"x"), b"a/b/x");
        assert_eq!(beside(b"a/b/link//", b"../x"), b"a/b/../x");
        assert_eq!(beside(b"link", b"x"), b"x");
        assert_eq!(beside(b"/link", b"x"), b"/x");
        assert_eq!(beside(b"a/link", b"/x"), b"/x");
        assert_eq!(beside(b"a/link ", b"x"), b"a/x");
    }
}
