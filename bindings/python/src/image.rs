//! An open image.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use sapwood::{CopyOptions, Existing, FileSystem, Options, Place, Stop, Times};

use crate::error::{closed, exception, invalid};
use crate::file::{self, File, Opening};
use crate::metadata::{Numbers, numbers, time};
use crate::work::{Callback, Raised, Stream, long};

/// An open image.
#[pyclass(frozen, module = "sapwood._sapwood")]
pub(crate) struct Image {
    fs: Mutex<Option<FileSystem>>,
}

/// A name of a directory: its bytes, its type as in `st_mode`, and its inode number.
type Entry = (Py<PyBytes>, u32, u64);

/// How a copy is made.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Copying {
    recursive: bool,
    archive: bool,
    owner: Option<(u32, u32)>,
    permissions: Option<u32>,
    existing: String,
    progress: Callback,
}

impl Copying {
    fn options(&self, stop: &Stop) -> PyResult<CopyOptions> {
        let mut options = CopyOptions::default();
        options.recursive = self.recursive;
        options.archive = self.archive;
        options.owner = self.owner;
        options.mode = self.permissions;
        options.stop = stop.clone();
        options.existing = match &*self.existing {
            "replace" => Existing::Replace,
            "keep" => Existing::Keep,
            "keep-newer" => Existing::KeepNewer,
            other => {
                let text = format!("existing={other:?}: replace, keep or keep-newer");
                return Err(invalid(text));
            }
        };
        Ok(options)
    }
}

pub(crate) fn path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

fn host(bytes: &[u8]) -> Place<'static> {
    Place::Host(path(bytes).to_owned())
}

pub(crate) fn name(py: Python<'_>, text: &OsStr) -> Py<PyBytes> {
    PyBytes::new(py, text.as_bytes()).unbind()
}

impl Image {
    /// The open image.
    ///
    /// # Errors
    /// `ValueError` if it is closed.
    pub(crate) fn get(&self) -> PyResult<FileSystem> {
        self.fs.lock().clone().ok_or_else(|| closed("image"))
    }

    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&FileSystem) -> sapwood::Result<T> + Send,
    ) -> PyResult<T> {
        let fs = self.get()?;
        let done = py.detach(move || work(&fs));
        done.map_err(|error| exception(&error))
    }

    /// Copies `from` to `to`; the first name that cannot be copied is an error after the others
    /// were copied.
    fn copied(py: Python<'_>, from: &[Place<'_>], to: &Place<'_>, how: &Copying) -> PyResult<u64> {
        let stop = Stop::new();
        let options = how.options(&stop)?;
        long(py, &how.progress, &stop, |progress| {
            sapwood::copy(from, to, &options, progress)?.complete()
        })
    }
}

#[pymethods]
impl Image {
    /// Opens an image file or block device.
    #[new]
    fn open(
        py: Python<'_>,
        image: &[u8],
        writable: bool,
        options: &str,
        subvolume: Option<&[u8]>,
    ) -> PyResult<Self> {
        let mut opening = Options::new().read_only(!writable);
        if !options.is_empty() {
            let taken = opening.set_list(options);
            taken.map_err(|error| exception(&error))?;
        }
        if let Some(subvolume) = subvolume {
            opening = opening.subvolume(path(subvolume));
        }
        let opened = py.detach(|| opening.open(path(image)));
        let fs = opened.map_err(|error| exception(&error))?;
        let fs = Mutex::new(Some(fs));
        Ok(Self { fs })
    }

    /// Makes everything durable and ends.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Some(fs) = self.fs.lock().take() else {
            return Ok(());
        };
        let closed = py.detach(move || fs.close());
        closed.map_err(|error| exception(&error))
    }

    /// Whether it is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.fs.lock().is_none()
    }

    /// The format.
    #[getter]
    fn format(&self) -> PyResult<&'static str> {
        Ok(self.get()?.kind().name())
    }

    /// Sets owner and group of new files.
    fn set_creator(&self, uid: u32, gid: u32) -> PyResult<()> {
        self.get()?.set_creator(uid, gid);
        Ok(())
    }

    /// Makes everything durable.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, FileSystem::sync)
    }

    /// Bytes of the file system, of its free space, and of the space for ordinary users.
    fn space(&self, py: Python<'_>) -> PyResult<(u64, u64, u64)> {
        self.with(py, |fs| {
            let found = fs.statfs()?;
            let counts = [found.blocks, found.blocks_free, found.blocks_available];
            let [all, free, available] =
                counts.map(|count| count.saturating_mul(found.block_size.into()));
            Ok((all, free, available))
        })
    }

    /// Opens a file.
    fn open_file(&self, py: Python<'_>, file: &[u8], how: Opening) -> PyResult<File> {
        file::open(py, &self.get()?, file, &how)
    }

    /// The names of a directory.
    fn entries(&self, py: Python<'_>, dir: &[u8]) -> PyResult<Vec<Entry>> {
        let entries = self.with(py, |fs| {
            let entries = fs.read_dir(path(dir))?;
            let entries = entries.map(|entry| {
                let entry = entry?;
                let kind = entry.file_type().kind().mode_bits();
                Ok((entry.file_name(), kind, entry.ino()))
            });
            entries.collect::<sapwood::Result<Vec<_>>>()
        })?;
        let entries = entries.into_iter();
        let entries = entries.map(|(text, kind, ino)| (name(py, &text), kind, ino));
        Ok(entries.collect())
    }

    /// Metadata.
    fn stat(&self, py: Python<'_>, file: &[u8], follow: bool) -> PyResult<Numbers> {
        self.with(py, |fs| {
            let found = if follow {
                fs.metadata(path(file))
            } else {
                fs.symlink_metadata(path(file))
            };
            Ok(numbers(&found?))
        })
    }

    /// The path without symbolic links.
    fn canonical(&self, py: Python<'_>, file: &[u8]) -> PyResult<Py<PyBytes>> {
        let found = self.with(py, |fs| fs.canonicalize(path(file)))?;
        Ok(name(py, found.as_os_str()))
    }

    /// Creates a directory.
    fn mkdir(&self, py: Python<'_>, dir: &[u8], permissions: u32) -> PyResult<()> {
        self.with(py, |fs| fs.create_dir_with(path(dir), permissions))
    }

    /// Creates the missing directories of a path.
    fn mkdir_all(&self, py: Python<'_>, dir: &[u8], permissions: u32) -> PyResult<()> {
        self.with(py, |fs| fs.create_dir_all_with(path(dir), permissions))
    }

    /// Removes an empty directory.
    fn rmdir(&self, py: Python<'_>, dir: &[u8]) -> PyResult<()> {
        self.with(py, |fs| fs.remove_dir(path(dir)))
    }

    /// Removes a name of anything but a directory.
    fn unlink(&self, py: Python<'_>, file: &[u8]) -> PyResult<()> {
        self.with(py, |fs| fs.remove_file(path(file)))
    }

    /// Removes a directory with all that is below it.
    fn remove_tree(&self, py: Python<'_>, dir: &[u8], progress: Callback) -> PyResult<()> {
        let (fs, stop) = (self.get()?, Stop::new());
        long(py, &progress, &stop, |progress| {
            fs.remove_dir_all_with(path(dir), &stop, progress)
        })
    }

    /// Renames as rename(2).
    fn rename(&self, py: Python<'_>, from: &[u8], to: &[u8], replace: bool) -> PyResult<()> {
        self.with(py, |fs| {
            if replace {
                fs.rename(path(from), path(to))
            } else {
                fs.rename_no_replace(path(from), path(to))
            }
        })
    }

    /// Creates a symbolic link.
    fn symlink(&self, py: Python<'_>, target: &[u8], link: &[u8]) -> PyResult<()> {
        self.with(py, |fs| fs.symlink(path(target), path(link)))
    }

    /// Gives a file one more name.
    fn link(&self, py: Python<'_>, original: &[u8], link: &[u8]) -> PyResult<()> {
        self.with(py, |fs| fs.hard_link(path(original), path(link)))
    }

    /// The target of a symbolic link.
    fn readlink(&self, py: Python<'_>, link: &[u8]) -> PyResult<Py<PyBytes>> {
        let target = self.with(py, |fs| fs.read_link(path(link)))?;
        Ok(name(py, target.as_os_str()))
    }

    /// Sets permission, set-id and sticky bits.
    fn chmod(&self, py: Python<'_>, file: &[u8], mode: u32) -> PyResult<()> {
        self.with(py, |fs| fs.set_permissions(path(file), mode))
    }

    /// Sets owner and group, of a symbolic link itself.
    fn chown(
        &self,
        py: Python<'_>,
        file: &[u8],
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> PyResult<()> {
        self.with(py, |fs| fs.set_owner(path(file), uid, gid))
    }

    /// Sets the times of the last access and of the last change, in nanoseconds since 1970.
    fn utime(&self, py: Python<'_>, file: &[u8], accessed: i64, modified: i64) -> PyResult<()> {
        let (Some(accessed), Some(modified)) = (time(accessed), time(modified)) else {
            return Err(invalid("no such time"));
        };
        let times = Times::new().accessed(accessed).modified(modified);
        self.with(py, |fs| fs.set_times(path(file), times))
    }

    /// The value of an extended attribute of a file, if there is one.
    fn xattr(&self, py: Python<'_>, file: &[u8], name: &[u8]) -> PyResult<Option<Py<PyBytes>>> {
        let value = self.with(py, |fs| fs.xattr(path(file), OsStr::from_bytes(name)))?;
        Ok(value.map(|value| PyBytes::new(py, &value).unbind()))
    }

    /// The names of all extended attributes of a file.
    fn xattrs(&self, py: Python<'_>, file: &[u8]) -> PyResult<Vec<Py<PyBytes>>> {
        let found = self.with(py, |fs| fs.xattrs(path(file)))?;
        Ok(found.iter().map(|text| name(py, text)).collect())
    }

    /// Sets an extended attribute of a file; `None` removes it.
    fn set_xattr(
        &self,
        py: Python<'_>,
        file: &[u8],
        name: &[u8],
        value: Option<&[u8]>,
    ) -> PyResult<()> {
        let name = OsStr::from_bytes(name);
        self.with(py, |fs| match value {
            Some(value) => fs.set_xattr(path(file), name, value),
            None => fs.remove_xattr(path(file), name),
        })
    }

    /// Copies the content and the permission bits of a file within the image.
    fn copy(&self, py: Python<'_>, from: &[u8], to: &[u8]) -> PyResult<u64> {
        self.with(py, |fs| fs.copy(path(from), path(to)))
    }

    /// Copies from this machine into the image.
    fn copy_in(&self, py: Python<'_>, from: &[u8], to: &[u8], how: Copying) -> PyResult<u64> {
        let fs = self.get()?;
        Self::copied(py, &[host(from)], &Place::image(&fs, path(to)), &how)
    }

    /// Copies from the image to this machine.
    fn copy_out(&self, py: Python<'_>, from: &[u8], to: &[u8], how: Copying) -> PyResult<u64> {
        let fs = self.get()?;
        Self::copied(py, &[Place::image(&fs, path(from))], &host(to), &how)
    }

    /// Puts the files of a tar archive into a directory.
    fn extract_tar(
        &self,
        py: Python<'_>,
        archive: Py<PyAny>,
        dir: &[u8],
        progress: Callback,
    ) -> PyResult<()> {
        let (fs, stop, raised) = (self.get()?, Stop::new(), Raised::default());
        let stream = Stream::new(archive, &stop, &raised);
        let extracted = long(py, &progress, &stop, |progress| {
            fs.extract_tar_into(path(dir), stream, progress)
        });
        raised.or(extracted)
    }

    /// Creates a snapshot of a subvolume.
    fn snapshot(&self, py: Python<'_>, from: &[u8], to: &[u8], read_only: bool) -> PyResult<()> {
        self.with(py, |fs| {
            if read_only {
                fs.snapshot_read_only(path(from), path(to))
            } else {
                fs.snapshot(path(from), path(to))
            }
        })
    }

    /// Creates an empty subvolume.
    fn create_subvolume(&self, py: Python<'_>, dir: &[u8]) -> PyResult<()> {
        self.with(py, |fs| fs.create_subvolume(path(dir)))
    }

    /// Deletes a subvolume with all that is in it.
    fn delete_subvolume(&self, py: Python<'_>, dir: &[u8]) -> PyResult<()> {
        self.with(py, |fs| fs.delete_subvolume(path(dir)))
    }

    /// Id, path from the top level, and whether it is read-only, of all subvolumes.
    fn subvolumes(&self, py: Python<'_>) -> PyResult<Vec<(u64, Py<PyBytes>, bool)>> {
        let found = self.with(py, FileSystem::subvolumes)?;
        let found = found.iter();
        let found = found.map(|it| (it.id.0, PyBytes::new(py, &it.path).unbind(), it.read_only));
        Ok(found.collect())
    }
}
