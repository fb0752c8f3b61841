//! Opens damaged images, and surveys their recoverable contents.

use std::ops::ControlFlow;
use std::sync::Arc;

use sapwood_block::Device;
pub use sapwood_rescue::Error as Failed;
pub use sapwood_rescue::btrfs::{CopyState, Origin, State, SuperCopy, TreeState};
pub use sapwood_rescue::ext4::{DescSource, JournalState, SuperPlace, Survey as Ext4Survey};
use sapwood_rescue::{Collected, Error, Found as FoundFile, Rescued, Scanning, btrfs, ext4};
pub use sapwood_rescue::{Deleted, NameSource};

use crate::kind::{DetectError, Kind, detect};
use crate::options::{DeletedFiles, Rescue};
use crate::vfs::Timestamp;

/// States of a btrfs that a survey describes.
const STATES: usize = 32;

/// Receives the progress of a scan in bytes: done and in all. False ends it.
pub type OnScan<'s> = dyn Fn(u64, u64) -> bool + Sync + 's;

/// A survey of a damaged image.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Survey {
    /// Of a btrfs.
    Btrfs(BtrfsSurvey),
    /// Of an ext4.
    Ext4(Ext4Survey),
}

/// A survey of a damaged btrfs.
#[derive(Debug, Clone)]
pub struct BtrfsSurvey {
    /// fsid of its tree blocks.
    pub fsid: [u8; 16],
    /// The places of superblocks.
    pub supers: Vec<SuperCopy>,
    /// The newest states.
    pub states: Vec<State>,
    /// Generations whose tree of roots was found.
    pub generations: u64,
    /// The oldest of these generations.
    pub oldest: Option<u64>,
    /// Tree blocks that were found.
    pub blocks: u64,
    /// Bytes that were scanned.
    pub scanned: u64,
    /// Bytes that could not be read.
    pub unreadable: u64,
    /// Old tree blocks that the index had no room for.
    pub dropped: u64,
}

/// The format of a damaged image: from its superblocks, else from a search.
fn kind_of(device: &dyn Device, rescue: &Rescue) -> Result<Option<Kind>, Error> {
    if rescue.kind.is_some() {
        return Ok(rescue.kind);
    }
    match detect(device) {
        Ok(kind) => Ok(Some(kind)),
        Err(DetectError::Device(error)) => Err(error.into()),
        // Two superblocks: the option `kind` decides. The older one is usually a remainder.
        Err(DetectError::Both) => Ok(Some(Kind::Btrfs)),
        Err(DetectError::Neither | DetectError::Encrypted) => Ok(None),
    }
}

fn ext4_image(
    device: &Arc<dyn Device>,
    rescue: &Rescue,
    on_scan: &OnScan<'_>,
) -> Result<ext4::Image, Error> {
    let mut options = ext4::Options::default();
    options.super_block = rescue.super_block;
    options.ignore_journal = rescue.ignore_journal;
    let watch = |at: Scanning| on_scan(at.done, at.total);
    ext4::Image::open(Arc::clone(device), options, &watch)
}

fn btrfs_image(
    devices: Vec<Arc<dyn Device>>,
    rescue: &Rescue,
    on_scan: &OnScan<'_>,
) -> Result<btrfs::Image, Error> {
    let mut options = btrfs::Options::default();
    options.super_copy = rescue.super_block;
    options.whole = rescue.whole;
    options.ignore_data_checksums = rescue.ignore_data_checksums;
    let watch = |at: Scanning| on_scan(at.done, at.total);
    btrfs::Image::open(devices, options, &watch)
}

/// A damaged image of either format.
enum Found {
    Btrfs(Box<btrfs::Image>),
    Ext4(Box<ext4::Image>),
}

fn find(
    devices: &[Arc<dyn Device>],
    rescue: &Rescue,
    on_scan: &OnScan<'_>,
) -> Result<Found, Error> {
    let none = Error::NoExt4 { bytes: 0 };
    let first = devices.first().ok_or(none)?;
    let btrfs = || btrfs_image(devices.to_vec(), rescue, on_scan);
    let ext4 = || ext4_image(first, rescue, on_scan);
    match kind_of(&**first, rescue)? {
        Some(Kind::Btrfs) => Ok(Found::Btrfs(Box::new(btrfs()?))),
        Some(Kind::Ext4) => Ok(Found::Ext4(Box::new(ext4()?))),
        None => match ext4() {
            Ok(image) => Ok(Found::Ext4(Box::new(image))),
            Err(Error::NoExt4 { .. }) => Ok(Found::Btrfs(Box::new(btrfs()?))),
            Err(error) => Err(error),
        },
    }
}

/// The files of a damaged image.
pub(crate) fn open(
    devices: &[Arc<dyn Device>],
    rescue: &Rescue,
    on_scan: &OnScan<'_>,
) -> Result<(Rescued, Kind), Error> {
    if let Some(wanted) = &rescue.deleted {
        return open_deleted(devices, rescue, wanted, on_scan);
    }
    match find(devices, rescue, on_scan)? {
        Found::Ext4(image) => Ok((Rescued::new(image.files()), Kind::Ext4)),
        Found::Btrfs(image) => {
            let choice = match (rescue.generation, rescue.root) {
                (_, Some(root)) => btrfs::Choice::Root(root),
                (Some(generation), None) => btrfs::Choice::Generation(generation),
                (None, None) => btrfs::Choice::Newest,
            };
            Ok((Rescued::new(image.files(choice)?), Kind::Btrfs))
        }
    }
}

/// The deleted files of an image, as a file system.
fn open_deleted(
    devices: &[Arc<dyn Device>],
    rescue: &Rescue,
    wanted: &DeletedFiles,
    on_scan: &OnScan<'_>,
) -> Result<(Rescued, Kind), Error> {
    let image = find(devices, rescue, on_scan)?;
    let kind = image.kind();
    let mut files = Collected::new(match kind {
        Kind::Btrfs => "btrfs",
        Kind::Ext4 => "ext4",
    });
    image.deleted(wanted, &mut |found| {
        found.collect(&mut files);
        ControlFlow::Continue(())
    })?;
    Ok((Rescued::new(files), kind))
}

impl Found {
    fn kind(&self) -> Kind {
        match self {
            Self::Btrfs(_) => Kind::Btrfs,
            Self::Ext4(_) => Kind::Ext4,
        }
    }

    /// Passes the wanted deleted files to `each`, until it breaks.
    fn deleted(
        self,
        wanted: &DeletedFiles,
        each: &mut dyn FnMut(FoundFile<'_>) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        let since = wanted.since.map(Timestamp::from);
        let mut chosen = |found: FoundFile<'_>| {
            if since.is_some_and(|since| found.unread().mtime < since) {
                return ControlFlow::Continue(());
            }
            each(found)
        };
        match self {
            Self::Btrfs(image) => image.deleted(wanted.states, &mut chosen),
            Self::Ext4(image) => {
                image.deleted(&mut chosen);
                Ok(())
            }
        }
    }
}

/// Receives deleted files, until it breaks.
pub type OnDeleted<'d> = dyn FnMut(Deleted) -> ControlFlow<()> + 'd;

/// Lists the deleted files of an image.
pub(crate) fn deleted(
    devices: &[Arc<dyn Device>],
    rescue: &Rescue,
    wanted: &DeletedFiles,
    on_scan: &OnScan<'_>,
    each: &mut OnDeleted<'_>,
) -> Result<(), Error> {
    let image = find(devices, rescue, on_scan)?;
    image.deleted(wanted, &mut |found| each(found.counted()))
}

/// Surveys a damaged image.
pub(crate) fn survey(
    devices: &[Arc<dyn Device>],
    rescue: &Rescue,
    on_scan: &OnScan<'_>,
) -> Result<Survey, Error> {
    let image = match find(devices, rescue, on_scan)? {
        Found::Ext4(image) => return Ok(Survey::Ext4(image.survey())),
        Found::Btrfs(image) => image,
    };
    let (blocks, scanned) = image.scanned();
    let (unreadable, dropped) = image.omitted();
    let (generations, oldest) = image.oldest_state();
    Ok(Survey::Btrfs(BtrfsSurvey {
        fsid: image.identity().fsid,
        supers: image.copies().to_vec(),
        states: image.states(STATES),
        generations,
        oldest,
        blocks,
        scanned,
        unreadable,
        dropped,
    }))
}
