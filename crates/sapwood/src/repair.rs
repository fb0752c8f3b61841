//! Repairs images, and undoes repairs.
//!
//! # How it works
//! 1. The engine repairs the image in memory, over the device, and checks the result.
//! 2. The undo file gets every changed page, before and after, is made durable, and gets its name.
//!    Until then a power cut changes nothing.
//! 3. The changed pages are written from the undo file, and flushed. After a power cut the next
//!    repair, or an undo, continues from the undo file.
//!
//! A dry run ends after step 1.
//!
//! Several devices are joined to one, so that one undo file has the pages of all. An encrypted
//! device is decrypted above the memory: the undo file has pages as they are stored, encrypted.

use std::fs::{self, Permissions};
use std::io::{BufWriter, Write as _};
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sapwood_base::finding::Repair;
use sapwood_block::{
    Device, FileDevice, JoinedDevice, OVERLAY_PAGE, OpenOptions, Operand, PartDevice, StagedDevice,
    UndoError, UndoFile, UndoSide, UndoState, record_undo,
};
use sapwood_btrfs::check::CheckError as EngineError;
use sapwood_btrfs::check::repair as btrfs;
use sapwood_ext4::Protection;
use sapwood_ext4::check::repair as ext4;
use sapwood_luks::Key;

use crate::check::{CheckReport, btrfs_report, ext4_report, of_btrfs, of_ext4, on_btrfs, on_ext4};
use crate::image::{self, OpenError};
use crate::kind::{DetectError, Kind, detect};
use crate::new_file::NewFile;
use crate::options::Options;
use crate::progress::OnProgress;

/// Most bytes that a repair changes.
const CHANGED: u64 = 1 << 30;
/// The places of superblocks. An undo file always has their pages, because each mount for writing
/// changes one.
const SUPERS: [u64; 2] = [0, 64 << 10];
/// Most undo files next to an image.
const FILES: u32 = 1000;

/// How an image is repaired.
#[derive(Debug, Clone)]
pub struct RepairOptions {
    /// Reports the repairs, and writes nothing.
    pub dry_run: bool,
    /// The undo file. Without one it is next to the image, with the suffix `.undo`; next to the
    /// first device by name, if there are several.
    pub undo: Option<PathBuf>,
    /// Drops the log of a btrfs, with the last fsyncs before a crash.
    pub drop_log: bool,
    /// Number of findings that are kept; further ones are counted.
    pub max_findings: usize,
    /// How the image is opened: the other devices of a btrfs, the key of an encrypted image.
    pub opening: Options,
}

impl Default for RepairOptions {
    fn default() -> Self {
        Self {
            dry_run: false,
            undo: None,
            drop_log: false,
            max_findings: 1000,
            opening: Options::new(),
        }
    }
}

/// A change that a repair made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageRepair {
    /// Kind of the repair, as a word that stays the same from version to version.
    pub code: &'static str,
    /// The damage, and what the repair did.
    pub text: String,
}

impl From<Repair> for ImageRepair {
    fn from(repair: Repair) -> Self {
        Self {
            code: repair.code,
            text: repair.text,
        }
    }
}

/// The result of a repair.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RepairReport {
    /// An interrupted repair was completed first, from its undo file.
    pub resumed: Option<PathBuf>,
    /// The repairs that were made; in a dry run, the repairs that would be.
    pub repairs: Vec<ImageRepair>,
    /// The parts that were not repaired, each with the reason.
    pub left: Vec<String>,
    /// The check of the result.
    pub after: CheckReport,
    /// The undo file, if the image was changed.
    pub undo: Option<PathBuf>,
}

/// How a repair is undone.
#[derive(Debug, Clone, Default)]
pub struct UndoOptions {
    /// The image, if it has another name now.
    pub image: Option<PathBuf>,
    /// The other devices of the image, if they have other names now, in the order of the repair.
    pub devices: Vec<PathBuf>,
    /// Overwrites an image that was changed since the repair.
    pub force: bool,
}

/// The result of undoing a repair.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UndoReport {
    /// The image.
    pub image: PathBuf,
    /// Pages of 4096 bytes that were written.
    pub pages: u64,
}

/// Why an image was not repaired, or a repair not undone.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RepairError {
    /// A device failed, or the repair changes too much.
    #[error(transparent)]
    Device(#[from] sapwood_block::Error),
    /// There is no place for an undo file next to the image.
    #[error("{}: no regular file: name the undo file (--undo FILE)", .0.display())]
    NoPlace(PathBuf),
    /// The undo file exists, and a repair that may have to be undone needs it.
    #[error("{}: exists", .0.display())]
    Taken(PathBuf),
    /// The undo file.
    #[error(transparent)]
    Undo(#[from] UndoError),
}

/// Repairs what can be derived from intact parts of an image, which must not be in use. Everything
/// else stays as it is. The undo file contains every changed page before the image is changed, and
/// [`undo`] restores the exact bytes.
///
/// ```no_run
/// let options = sapwood::RepairOptions::default();
/// let report = sapwood::repair("disk.img", &options, &mut |_| {})?;
/// for repair in &report.repairs {
///     println!("{}", repair.text);
/// }
/// # Ok::<(), sapwood::Error>(())
/// ```
///
/// # Errors
/// The errors of [`check`](crate::check()): the image cannot be opened, or is too damaged. The undo
/// file exists ([`ErrorKind::AlreadyExists`](crate::ErrorKind::AlreadyExists)) or cannot be
/// written: the image is as before. If the image's device fails, another repair continues, and
/// [`undo`] reverts.
pub fn repair(
    path: impl AsRef<Path>,
    options: &RepairOptions,
    progress: &mut OnProgress<'_>,
) -> crate::Result<RepairReport> {
    let path = path.as_ref();
    let (mut stored, key) = image::OpenFiles::stored(path, &options.opening, options.dry_run)?;
    // The undo file and its name are the same in whatever order the devices are given.
    let canonical = |path: &PathBuf| Operand::canonical(path).unwrap_or_else(|_| path.clone());
    if stored.len() > 1 {
        stored.sort_by_cached_key(|(name, _)| canonical(name));
    }
    let first = stored.first().filter(|_| stored.len() > 1);
    let first = first.map(|(name, _)| canonical(name));
    let beside = first.as_deref().unwrap_or(path);
    let (names, devices): (Vec<PathBuf>, Vec<_>) = stored.into_iter().unzip();
    let (device, ranges) = joined(devices);
    let (device, protection) = if options.dry_run {
        (device, None)
    } else {
        protected(path, device, key.as_ref(), None)?
    };
    let staged = StagedDevice::new(Arc::clone(&device), CHANGED, Box::new(|_| false));
    let staged = Arc::new(staged);
    let own = own_bytes(protection.as_ref(), key.as_ref());
    let place = Place::find(beside, &*device, options, &own)?;
    if let Some(unfinished) = &place.unfinished {
        let on: &dyn Device = if options.dry_run { &*staged } else { &*device };
        unfinished
            .apply(on, UndoSide::After, false)
            .map_err(RepairError::from)?;
    }
    let mut work = Vec::new();
    for (name, (start, len)) in names.iter().zip(ranges) {
        let whole: Arc<dyn Device> = Arc::clone(&staged) as Arc<dyn Device>;
        let shown = name.display().to_string();
        let part = PartDevice::new(whole, shown, start, len).map_err(RepairError::from)?;
        work.push(image::decrypted(name, Arc::new(part), key.as_ref())?);
    }
    let supers = touch_supers(&work, &staged)?;
    let mut report = in_memory(path, &work, options, protection.is_some(), progress)?;
    report.resumed = place.unfinished.as_ref().map(|_| place.file.clone());
    staged.check().map_err(RepairError::from)?;
    if options.dry_run {
        return Ok(report);
    }
    let changed = changed_pages(&staged)?;
    if !changed.is_empty() {
        let file = place.next(beside)?;
        let names: Vec<PathBuf> = names.iter().map(canonical).collect();
        let pages = changed.into_iter().chain(supers).collect();
        // The repaired superblock may name a protection that the damaged one did not.
        let repaired = work
            .first()
            .filter(|_| protection.is_none() && work.len() == 1);
        let (device, late) = match repaired {
            Some(repaired) => protected(path, device, key.as_ref(), Some(&**repaired))?,
            None => (device, None),
        };
        let own = own_bytes(late.as_ref().or(protection.as_ref()), key.as_ref());
        write((&names, &*device), &staged, pages, (&file, own))?;
        report.undo = Some(file);
    } else if place.unfinished.is_some() {
        report.undo = Some(place.file);
    }
    Ok(report)
}

/// Takes the multiple mount protection of an ext4, which its superblock names, or the one on the
/// device `superblock`. Returns the device to write to. A damaged superblock, or a damaged block of
/// the protection, protects nothing.
fn protected(
    path: &Path,
    device: Arc<dyn Device>,
    key: Option<&Key>,
    superblock: Option<&dyn Device>,
) -> crate::Result<(Arc<dyn Device>, Option<Protection>)> {
    use sapwood_ext4::Error;

    let Ok(readable) = image::decrypted(path, Arc::clone(&device), key) else {
        return Ok((device, None));
    };
    let superblock = superblock.unwrap_or(&*readable);
    match sapwood_ext4::protect_as(&readable, superblock, None) {
        Ok((fenced, protection)) if key.is_none() => Ok((fenced, protection)),
        Ok((_, protection)) => Ok((device, protection)),
        Err(
            source @ (Error::InUse { .. }
            | Error::CheckRunning { .. }
            | Error::UnknownMmpSequence { .. }),
        ) => Err(OpenError::Ext4 {
            path: path.to_owned(),
            source: Box::new(source),
        }
        .into()),
        Err(_) => Ok((device, None)),
    }
}

/// The bytes of the image that record the use of its file system. They change while it is used, so
/// an undo file does not count.
fn own_bytes(protection: Option<&Protection>, key: Option<&Key>) -> Range<u64> {
    let protection = protection.filter(|_| key.is_none());
    protection.map_or(0..0, Protection::place)
}

/// The devices as one, and the range of each in it.
fn joined(mut devices: Vec<Arc<dyn Device>>) -> (Arc<dyn Device>, Vec<(u64, u64)>) {
    if devices.len() == 1
        && let Some(only) = devices.pop()
    {
        let range = (0, only.size());
        return (only, vec![range]);
    }
    let joined = JoinedDevice::new(devices);
    let ranges = joined.ranges();
    (Arc::new(joined), ranges)
}

/// Returns the pages that contain the superblocks of the file system: writes them as they are.
fn touch_supers(
    devices: &[Arc<dyn Device>],
    staged: &StagedDevice,
) -> Result<Vec<u64>, RepairError> {
    let before = staged.kept();
    for device in devices {
        for offset in SUPERS {
            let len = device.size().saturating_sub(offset).min(OVERLAY_PAGE) as usize;
            let mut page = vec![0; len];
            device.read_at(offset.min(device.size()), &mut page)?;
            device.write_at(offset.min(device.size()), &page)?;
        }
    }
    let mut pages = staged.kept();
    pages.retain(|page| !before.contains(page));
    Ok(pages)
}

/// Restores the bytes of an image from before a repair. The undo file stays. An encrypted image
/// needs no key.
///
/// # Errors
/// The file is no undo file, or damaged
/// ([`ErrorKind::InvalidData`](crate::ErrorKind::InvalidData)). The image was changed since the
/// repair, or is another one ([`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput)): nothing
/// was written. Another machine has the image
/// ([`ErrorKind::ResourceBusy`](crate::ErrorKind::ResourceBusy)). If the image's device fails, the
/// call can be repeated.
pub fn undo(file: impl AsRef<Path>, options: &UndoOptions) -> crate::Result<UndoReport> {
    let undo = open_undo(file.as_ref())?;
    let mut names = undo.devices().to_vec();
    let others = names.iter_mut().skip(1).zip(&options.devices);
    others.for_each(|(name, now)| name.clone_from(now));
    if let (Some(first), Some(now)) = (names.first_mut(), &options.image) {
        first.clone_from(now);
    }
    let mut devices = Vec::new();
    for name in &names {
        devices.push(image::open_device(name, false)?);
    }
    let (device, _) = joined(devices);
    let image = names.into_iter().next().unwrap_or_default();
    let (device, protection) = protected(&image, device, None, None)?;
    let undo = undo.leaving(own_bytes(protection.as_ref(), None));
    let applied = undo.apply(&*device, UndoSide::Before, options.force);
    let pages = applied.map_err(RepairError::from)?;
    Ok(UndoReport { image, pages })
}

fn open_undo(file: &Path) -> Result<UndoFile, RepairError> {
    let file = FileDevice::open(file, OpenOptions::read_only())?;
    Ok(UndoFile::open(Arc::new(file))?)
}

/// Repairs the image on `work` and checks the result.
fn in_memory(
    path: &Path,
    devices: &[Arc<dyn Device>],
    options: &RepairOptions,
    protected: bool,
    progress: &mut OnProgress<'_>,
) -> crate::Result<RepairReport> {
    let first = devices.first();
    let work = first.ok_or_else(|| of_btrfs(path, EngineError::NoDevice))?;
    let kind = match detect(&**work) {
        // The repair restores the magic number with the superblock.
        Err(DetectError::Neither) if ext4::has_backup(&**work) => Kind::Ext4,
        Err(source) => {
            let path = path.to_owned();
            return Err(OpenError::Kind { path, source }.into());
        }
        Ok(kind) => kind,
    };
    options
        .opening
        .refuse_foreign(kind)
        .map_err(|source| OpenError::Option {
            path: path.to_owned(),
            source,
        })?;
    let (repairs, left, after) = match kind {
        Kind::Ext4 => {
            let engine = sapwood_ext4::check::CheckOptions {
                max_findings: options.max_findings.max(FINDINGS),
                journal: None,
                protected,
            };
            let done = ext4::repair(work, &engine, &mut on_ext4(progress));
            let done = done.map_err(|source| of_ext4(path, source))?;
            (done.repairs, done.left, ext4_report(&done.report))
        }
        Kind::Btrfs => {
            let engine = sapwood_btrfs::check::CheckOptions {
                check_data_csum: false,
                max_findings: options.max_findings.max(FINDINGS),
            };
            let done = btrfs::repair(devices, options.drop_log, &engine, &mut on_btrfs(progress));
            let done = done.map_err(|source| of_btrfs(path, source))?;
            (done.repairs, done.left, btrfs_report(&done.report))
        }
    };
    let mut after = after;
    if after.findings.len() > options.max_findings {
        after.suppressed += (after.findings.len() - options.max_findings) as u64;
        after.findings.truncate(options.max_findings);
    }
    Ok(RepairReport {
        resumed: None,
        repairs: repairs.into_iter().map(ImageRepair::from).collect(),
        left,
        after,
        undo: None,
    })
}

/// Findings that one round of a repair handles at least.
const FINDINGS: usize = 10_000;

/// Offsets of the pages that the repair changed.
fn changed_pages(staged: &StagedDevice) -> Result<Vec<u64>, RepairError> {
    let mut changed = Vec::new();
    for offset in staged.kept() {
        let len = staged.size().saturating_sub(offset).min(OVERLAY_PAGE) as usize;
        let (mut old, mut new) = (vec![0; len], vec![0; len]);
        staged.below().read_at(offset, &mut old)?;
        staged.read_at(offset, &mut new)?;
        if old != new {
            changed.push(offset);
        }
    }
    Ok(changed)
}

/// Writes the undo file, then the changes: to `device`, which has the name `devices`. The bytes
/// `own` stay as they are.
fn write(
    (devices, device): (&[PathBuf], &dyn Device),
    staged: &StagedDevice,
    pages: Vec<u64>,
    (file, own): (&Path, Range<u64>),
) -> crate::Result<()> {
    let new = NewFile::create(file, file.exists())?;
    // The undo file contains pages of the devices, so it gets their permissions.
    let mode = |path: &PathBuf| match fs::metadata(Operand::file_of(path)) {
        Ok(found) => found.mode() & 0o666,
        Err(_) => 0o600,
    };
    let mode = devices.iter().map(mode).fold(0o666, |all, one| all & one);
    let set = new.file().set_permissions(Permissions::from_mode(mode));
    set.map_err(UndoError::from).map_err(RepairError::from)?;
    let mut to = BufWriter::with_capacity(1 << 20, new.file());
    let recorded = record_undo(devices, &**staged.below(), staged, &pages, &mut to);
    recorded.map_err(RepairError::from)?;
    to.flush()
        .map_err(UndoError::from)
        .map_err(RepairError::from)?;
    drop(to);
    new.finish()?;
    let undo = open_undo(file)?.leaving(own);
    undo.apply(device, UndoSide::After, false)
        .map_err(RepairError::from)?;
    Ok(())
}

/// The path for the undo file of a repair.
struct Place {
    file: PathBuf,
    /// The name is the default one, so that another number can be appended.
    default: bool,
    /// The file belongs to another repair, which can still be undone.
    taken: bool,
    /// The file belongs to an interrupted repair of this image.
    unfinished: Option<UndoFile>,
}

impl Place {
    fn find(
        path: &Path,
        device: &dyn Device,
        options: &RepairOptions,
        own: &Range<u64>,
    ) -> Result<Self, RepairError> {
        let default = options.undo.is_none();
        let file = match &options.undo {
            Some(file) => file.clone(),
            None if options.dry_run || fs::metadata(path).is_ok_and(|found| found.is_file()) => {
                numbered(path, 0)
            }
            None => return Err(RepairError::NoPlace(path.to_owned())),
        };
        let mut place = Self {
            file,
            default,
            taken: false,
            unfinished: None,
        };
        let mut number = 0;
        while place.file.symlink_metadata().is_ok() {
            let opened = open_undo(&place.file).map(|undo| undo.leaving(own.clone()));
            match opened.and_then(|undo| Ok((undo.state(device)?, undo))) {
                Ok((UndoState::Between, undo)) => {
                    place.unfinished = Some(undo);
                    place.taken = true;
                    return Ok(place);
                }
                // The repair was undone, or never began.
                Ok((UndoState::Before, _)) => return Ok(place),
                _ if default && number < FILES => {
                    number += 1;
                    place.file = numbered(path, number);
                }
                _ => return Err(RepairError::Taken(place.file)),
            }
        }
        Ok(place)
    }

    /// The name for the undo file of one more repair.
    fn next(&self, path: &Path) -> Result<PathBuf, RepairError> {
        if !self.taken {
            return Ok(self.file.clone());
        }
        let mut free = (1..FILES).map(|number| numbered(path, number));
        let free = free.find(|file| self.default && file.symlink_metadata().is_err());
        free.ok_or_else(|| RepairError::Taken(self.file.clone()))
    }
}

/// The default name of an undo file: `IMAGE.undo`, then `IMAGE.undo.1` and so on.
fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".undo");
    if number > 0 {
        name.push(format!(".{number}"));
    }
    PathBuf::from(name)
}
