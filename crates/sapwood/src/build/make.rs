//! From a builder to an image file: its layers, the file system, and the files in it.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use sapwood_block::Device;

use super::{BuildError, BuiltImage, ImageBuilder, make_reproducible};
use crate::Kind;
use crate::copy::{CopyError, CopyReport};
use crate::error::ErrorKind;
use crate::fs::FileSystem;
use crate::image::Mounted;
use crate::like::{LikeError, Older, Zeroed, adapt, erase};
use crate::luks::{self, HEADER_SIZE};
use crate::mkfs::{MkfsOptions, MkfsReport, mkfs};
use crate::new_file::{NewFile, NewFileError};
use crate::options::Options;
use crate::output::{Identity, OutputFormat, convert};
use crate::progress::{OnProgress, Progress};
use crate::resize::{NewSize, resize_new};
use crate::sources::{Counts, Filled, Growth, Need, Sources};
use crate::vfs::{self, FileSystem as _, Timestamp, TrimRange};
use crate::{unused, verity};

/// Times that an image is made again with more room.
const MORE_ROOM: u32 = 5;
/// The files for which an image that grows has room at first.
const FIRST: Need = Need {
    entries: 1 << 16,
    bytes: 256 << 20,
};

impl ImageBuilder {
    /// Makes the image, and gives it its name. `strict`: every name is copied.
    pub(super) fn make(
        &self,
        path: &Path,
        strict: bool,
        progress: &mut OnProgress<'_>,
    ) -> Result<BuiltImage, BuildError> {
        let new = NewFile::create(path, self.replace)?;
        let mut hashes = None;
        if let Some((path, _)) = &self.verity {
            if path == new.path() {
                return Err(NewFileError::Exists(path.clone()).into());
            }
            hashes = Some(NewFile::create(path, self.replace)?);
        }
        let fixed = self.fixed(&new)?;
        let raw = match self.format {
            OutputFormat::Raw => None,
            _ => Some(new.scratch()?),
        };
        let mut built = fixed.make_whole(raw.as_ref().unwrap_or(&new), strict, progress)?;
        self.sources.check_stop()?;
        if let (Some(hashes), Some((_, params))) = (&hashes, &self.verity) {
            let data = raw.as_ref().unwrap_or(&new).device()?;
            let tree = verity::build_of_new(path, &*data, &*hashes.device()?, params, progress)?;
            built.root_hash = Some(tree.root);
        }
        self.sources.check_stop()?;
        if let Some(raw) = raw {
            let identity = Identity {
                uuid: built.report.uuid(),
                time: fixed.options.time().unwrap_or_else(SystemTime::now),
            };
            convert(&raw, &new, self.format, identity, progress)?;
        }
        self.sources.check_stop()?;
        if let Some(hashes) = hashes {
            hashes.finish()?;
        }
        new.finish()?;
        Ok(built)
    }

    /// Makes the raw image, encrypted if it is to be.
    fn make_whole(
        &self,
        new: &NewFile,
        strict: bool,
        progress: &mut OnProgress<'_>,
    ) -> Result<BuiltImage, BuildError> {
        let Some((key, options)) = &self.encryption else {
            return self.make_fixed(new, strict, progress);
        };
        if self.reproducible {
            return Err(BuildError::Encrypted(
                "differs each time, so it is not reproducible",
            ));
        }
        if self.verity.is_some() {
            return Err(BuildError::Encrypted("has no hash tree here"));
        }
        let mut inner = self.clone();
        if let Some(size) = self.options.size() {
            inner.options.set_size(size.saturating_sub(HEADER_SIZE));
        }
        let plain = new.scratch()?;
        let mut built = inner.make_fixed(&plain, strict, progress)?;
        self.sources.check_stop()?;
        let (file, size) = (plain.file(), built.size);
        let content = (file, size, &unused::ranges(&plain));
        luks::encrypt(content, new.path(), new, (key, options), progress)?;
        built.size = size.saturating_add(HEADER_SIZE);
        Ok(built)
    }

    /// Makes the image in a file that never has a name. Every name is copied.
    pub(crate) fn make_in_scratch(
        &self,
        raw: &NewFile,
        progress: &mut OnProgress<'_>,
    ) -> Result<(), BuildError> {
        self.fixed(raw)?.make_fixed(raw, true, progress).map(drop)
    }

    /// The builder with UUID and time decided, for an image in this file.
    fn fixed(&self, new: &NewFile) -> Result<Self, BuildError> {
        let mut fixed = self.clone();
        fixed.sources.keep_in(new.directory());
        if self.reproducible || self.like.is_some() {
            make_reproducible(&mut fixed.options, &mut fixed.sources)?;
        }
        if let Some(time) = fixed.options.time() {
            fixed.sources.set_time(time);
        }
        Ok(fixed)
    }

    /// Makes the raw image, when UUID and time are decided.
    fn make_fixed(
        &self,
        new: &NewFile,
        strict: bool,
        progress: &mut OnProgress<'_>,
    ) -> Result<BuiltImage, BuildError> {
        if let Some(older) = &self.like {
            return self.make_like(older, new, strict, progress);
        }
        let (size, path) = (self.options.size(), || new.path().to_owned());
        if size.is_none() && self.sources.is_empty() {
            return Err(BuildError::NoSize(path()));
        }
        if self.options.is_journal_device() && !self.sources.is_empty() {
            return Err(BuildError::JournalDevice(path()));
        }
        if let Some(what) = self.options.fixes_size().filter(|_| size.is_none()) {
            return Err(BuildError::FixedSize { path: path(), what });
        }
        let need = self.sources.need(match (size, self.options.kind()) {
            (None, _) if !self.grows() => Counts::All,
            (Some(_), Kind::Ext4) if !self.options.has_inodes() => Counts::Files,
            // No size in the image depends on the archives.
            _ => Counts::Directories,
        })?;
        progress(Progress::Total(need.entries));
        let Some(size) = size else {
            return self.make_fitting(new, need, strict, progress);
        };
        let device = Zeroed::over(new, new.device_of(size)?)?;
        let report = self.make_in(&*device, new.path(), &self.options, size, need)?;
        let filling = filling(&self.sources)?.past_journal();
        let left_out = self.fill(device, new.path(), strict, &filling, None, progress)?;
        Ok(BuiltImage {
            report,
            size,
            left_out,
            root_hash: None,
        })
    }

    /// Makes the raw image from a copy of an older one.
    fn make_like(
        &self,
        older: &Path,
        new: &NewFile,
        strict: bool,
        progress: &mut OnProgress<'_>,
    ) -> Result<BuiltImage, BuildError> {
        if self.sources.is_empty() {
            return Err(LikeError::NoSources(older.to_owned()).into());
        }
        let found = Older::open(older, self.options.kind())?;
        let mut plain = self.clone();
        plain.like = None;
        found.adjust(&mut plain.options);
        let scratch = new.scratch()?;
        let built = plain.make_fixed(&scratch, strict, progress)?;
        let mut filling = filling(&self.sources)?.in_place();
        // Files are read for comparison.
        filling.take("noatime", None).map_err(BuildError::Option)?;
        let (stop, time) = (self.sources.stop_request(), filling.fixed_time());
        let size = found.copy_to(new, stop)?;
        let wanted = self.options.size().unwrap_or(size);
        let exactly = NewSize::Exactly(wanted);
        if wanted > size {
            resize_new(new, exactly, 0, time, progress)?;
        }
        adapt(&found, new, &scratch, &filling, stop, progress)?;
        if wanted < size {
            resize_new(new, exactly, 0, time, progress)?;
            erase(new, &filling)?;
        }
        Ok(BuiltImage {
            size: wanted,
            ..built
        })
    }

    /// Whether the image grows while it is filled. The layout of an ext4 depends on its files from
    /// the start. A file of a directory may take more than the host reports; then the image is made
    /// again.
    fn grows(&self) -> bool {
        self.options.kind() == Kind::Btrfs && !self.sources.has_dir()
    }

    /// Makes the image with more room than it should need, and shrinks it. If the files take more
    /// space than estimated, it begins again with more room.
    fn make_fitting(
        &self,
        new: &NewFile,
        need: Need,
        strict: bool,
        progress: &mut OnProgress<'_>,
    ) -> Result<BuiltImage, BuildError> {
        let mut content = need.bytes;
        for attempt in 0.. {
            let mut options = self.options.clone();
            let inodes = need
                .entries
                .saturating_add(self.free_inodes)
                .saturating_add(16);
            let grows = self.grows();
            let size = if grows {
                options.size_to_shrink(content.max(FIRST.bytes), inodes.max(FIRST.entries))
            } else {
                options.size_to_shrink(content, inodes)
            };
            let device = Zeroed::over(new, new.device_of(size)?)?;
            let report = self.make_in(&*device, new.path(), &options, size, need)?;
            let filling = filling(&self.sources)?
                .past_journal()
                .shrinking_later(content);
            let in_it = Need {
                entries: inodes,
                bytes: content,
            };
            let growth = grows.then(|| Growth::new(Arc::clone(&device), in_it));
            match self.fill(device, new.path(), strict, &filling, growth, progress) {
                Ok(left_out) => {
                    self.sources.check_stop()?;
                    progress(Progress::Total(0));
                    let min = NewSize::Min(self.free);
                    let time = filling.fixed_time();
                    let resized = resize_new(new, min, self.free_inodes, time, progress)?;
                    return Ok(BuiltImage {
                        report,
                        size: resized.after,
                        left_out,
                        root_hash: None,
                    });
                }
                Err(error) if attempt < MORE_ROOM && !grows && is_full(&error) => {
                    content = content.saturating_mul(4).saturating_add(1 << 30);
                }
                Err(error) => return Err(error),
            }
        }
        Err(BuildError::NoSize(new.path().to_owned()))
    }

    /// Makes the file system on a device of this size, which is called `path` in errors.
    fn make_in(
        &self,
        device: &dyn Device,
        path: &Path,
        options: &MkfsOptions,
        size: u64,
        Need { entries, .. }: Need,
    ) -> Result<MkfsReport, BuildError> {
        let mut options = options.clone();
        if options.root_owner().is_none() {
            let (uid, gid) = builder_of(self.sources.time());
            options.set_root_owner(uid, gid);
        }
        // More than an image of that size has.
        let needed = entries.saturating_add(entries / 8).saturating_add(64);
        if entries > 0 && needed > size / 16_384 {
            options.suggest_inodes(needed);
        }
        Ok(mkfs(device, path, &options, true)?)
    }

    /// Fills the image on a device, which is called `path` in errors, and gives the root its owner.
    /// Returns how many names could not be copied, unless that is an error.
    fn fill(
        &self,
        device: Arc<dyn Device>,
        path: &Path,
        strict: bool,
        filling: &Options,
        mut growth: Option<Growth>,
        progress: &mut OnProgress<'_>,
    ) -> Result<u64, BuildError> {
        let given = self.options.root_owner();
        if self.sources.is_empty() {
            // mkfs of ext4 gives the root its owner.
            let owner = given.unwrap_or_else(|| builder_of(self.sources.time()));
            if self.options.kind() == Kind::Ext4 || owner == (0, 0) {
                return Ok(0);
            }
        }
        let fs = FileSystem::open_on(Arc::clone(&device), path, filling)?;
        let report = fill_open(&fs, path, &self.sources, given, growth.as_mut(), progress)?.copied;
        let left_out = report.left_out;
        let ends = |error: &CopyError| error.ends() || is_full(error);
        if strict || report.first_error.as_ref().is_some_and(ends) {
            report.complete()?;
        }
        if let Mounted::Btrfs(btrfs) = fs.engine() {
            // Earlier states of tree blocks.
            let trimmed = btrfs
                .sync()
                .and_then(|()| btrfs.trim(&TrimRange::default()));
            trimmed.map_err(|source| LikeError::free_space(path, source))?;
        }
        close(fs, &*device)?;
        Ok(left_out)
    }
}

/// Whether an error came from a lack of space.
fn is_full(error: &(dyn std::error::Error + 'static)) -> bool {
    let full = |error: &(dyn std::error::Error + 'static)| {
        let kind = |error: &io::Error| error.kind() == io::ErrorKind::StorageFull;
        let library = error.downcast_ref::<crate::Error>();
        library.is_some_and(|error| error.kind() == ErrorKind::StorageFull)
            || error.downcast_ref::<io::Error>().is_some_and(kind)
            || matches!(error.downcast_ref(), Some(vfs::Error::NoSpace))
    };
    std::iter::successors(Some(error), |error| error.source()).any(full)
}

/// Fills the image that `options` made on `device` from sources in their order. Errors call it
/// `image`. The root belongs to the given owner, else to the owner in the last source that has one,
/// else to the caller. Names that cannot be copied from a directory are reported to `progress` and left out.
///
/// # Errors
/// [`BuildError`]; the image keeps the files so far.
pub fn fill(
    device: &Arc<dyn Device>,
    image: &Path,
    sources: &Sources,
    options: &MkfsOptions,
    root_owner: Option<(u32, u32)>,
    progress: &mut OnProgress<'_>,
) -> Result<CopyReport, BuildError> {
    let filling = options.opening(filling(sources)?);
    let fs = FileSystem::open_on(Arc::clone(device), image, &filling)?;
    let filled = fill_open(&fs, image, sources, root_owner, None, progress);
    let ended = close(fs, &**device);
    let filled = filled?;
    ended.map(|()| filled.copied)
}

/// Ends the filling of the image on a device, which is durable then.
fn close(fs: FileSystem, device: &dyn Device) -> Result<(), BuildError> {
    fs.close()?;
    Ok(device.flush()?)
}

/// Fills the open file system of an image, and gives its root an owner, like [`fill`].
fn fill_open(
    fs: &FileSystem,
    image: &Path,
    sources: &Sources,
    root_owner: Option<(u32, u32)>,
    growth: Option<&mut Growth>,
    progress: &mut OnProgress<'_>,
) -> Result<Filled, BuildError> {
    let owner = root_owner.unwrap_or_else(|| builder_of(sources.time()));
    fs.set_owner("/", Some(owner.0), Some(owner.1))?;
    let filled = sources.fill(fs, image, owner, growth, progress)?;
    if let Some((uid, gid)) = root_owner.filter(|_| sources.has_root()) {
        fs.set_owner("/", Some(uid), Some(gid))?;
    }
    Ok(filled)
}

/// Options of an image while it is filled. Nothing has to be durable before the end, and data that
/// waits for writeback only takes memory. With a time the result is reproducible.
fn filling(sources: &Sources) -> Result<Options, BuildError> {
    let mut options = Options::default();
    options.set_unflushed();
    if let Some(time) = sources.time() {
        options.set_reproducible(time);
    }
    sources.storage().opening(&mut options)?;
    for (name, value) in [
        // For inodes: the next two options set the other caches.
        ("memory_size", "80M"),
        ("cache_size", "64M"),
        ("dirty_size", "32M"),
        ("commit", "4"),
    ] {
        options
            .take(name, Some(value))
            .map_err(BuildError::Option)?;
    }
    Ok(options)
}

/// The owner of files without one in a source: root in an image that depends on the sources alone,
/// else the caller.
fn builder_of(time: Option<Timestamp>) -> (u32, u32) {
    time.map_or_else(caller, |_| (0, 0))
}

fn caller() -> (u32, u32) {
    (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    )
}
