//! Reads everything that an image stores, and repairs bad copies from good ones.

mod from;
#[cfg(feature = "fuse")]
mod mounted;

use std::io::Write as _;
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io, thread};

use sapwood_base::Pace;
use sapwood_block::Device;
use sapwood_btrfs::scrub as btrfs;
use serde::{Deserialize, Serialize};

use crate::check::{CheckFinding, CheckOptions, check};
use crate::daemon::DaemonError;
use crate::image::{self, OpenError, named};
use crate::options::Options;
use crate::progress::{OnProgress, Progress, Stop};
use crate::{Kind, Result};

/// Bytes of an ext4 that are read at a time.
const STEP: usize = 1 << 20;
/// Granularity, in bytes, of unreadable ranges.
const UNIT: usize = 4096;
/// Phases of the progress.
pub(crate) const READING: &str = "copies";

/// How an image is scrubbed.
#[derive(Debug, Clone, Default)]
pub struct ScrubOptions {
    /// Repairs nothing.
    pub read_only: bool,
    /// Most bytes that are read in a second, on all devices together.
    pub limit: Option<u64>,
    /// File with the position of the scrub of a btrfs. A scrub that finds the file continues there;
    /// a complete one removes it.
    pub state: Option<PathBuf>,
    /// Files, images and streams that have sectors of data without a good copy in the btrfs, by
    /// their checksums.
    pub from: Vec<PathBuf>,
    /// Ends the scrub early.
    pub stop: Stop,
}

/// One device of a scrubbed image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ScrubbedDevice {
    /// Name of the device.
    pub name: String,
    /// Id of the device in its btrfs.
    pub devid: Option<u64>,
    /// It missed changes while the file system was mounted without it.
    pub was_stale: bool,
    /// Bytes read.
    pub bytes: u64,
    /// Sectors or blocks that the device did not return.
    pub unreadable: u64,
    /// Sectors of data that differ from their checksum.
    pub data: u64,
    /// Tree blocks that are not valid.
    pub trees: u64,
    /// Superblocks that are not valid.
    pub superblocks: u64,
    /// Errors that were repaired.
    pub repaired: u64,
    /// Errors that could not be repaired.
    pub lost: u64,
}

/// A file with bad sectors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ScrubbedFile {
    /// Path from the top level of all subvolumes; empty if no name leads to the file.
    pub path: Vec<u8>,
    /// Subvolume.
    pub subvolume: u64,
    /// Inode.
    pub inode: u64,
    /// Bytes of the file.
    pub range: Range<u64>,
    /// A good copy of all of it exists.
    pub repaired: bool,
    /// The source that it was repaired from, as an index of [`ScrubReport::sources`].
    pub source: Option<usize>,
}

/// A source of lost sectors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ScrubSource {
    /// The file, image or stream.
    pub path: PathBuf,
    /// Sectors that were repaired from it.
    pub sectors: u64,
    /// Why not all of it was read.
    pub error: Option<String>,
}

/// The result of a scrub.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ScrubReport {
    /// Every byte has a good copy, and every copy is good now.
    pub clean: bool,
    /// All devices.
    pub devices: Vec<ScrubbedDevice>,
    /// Files with bad sectors, also with those that were repaired (btrfs).
    pub files: Vec<ScrubbedFile>,
    /// Logical addresses of tree blocks without a good copy (btrfs).
    pub lost_blocks: Vec<u64>,
    /// Bytes of data without checksums, whose copies cannot be verified (btrfs).
    pub unverified: u64,
    /// Findings of the check of all metadata (ext4).
    #[serde(with = "wire")]
    pub findings: Vec<CheckFinding>,
    /// The sources of lost sectors.
    pub sources: Vec<ScrubSource>,
    /// It ended early.
    pub interrupted: bool,
}

/// Findings between the daemon of a mount and its client.
mod wire {
    use serde::{Deserialize, Deserializer, Serializer};

    use super::CheckFinding;

    pub(super) fn serialize<S: Serializer>(
        findings: &[CheckFinding],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(findings.iter().map(|finding| &finding.text))
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(
        deserializer: D,
    ) -> Result<Vec<CheckFinding>, D::Error> {
        let texts = Vec::<String>::deserialize(deserializer)?;
        Ok(texts.into_iter().map(super::finding).collect())
    }
}

/// A finding of the scrub of a mounted ext4.
fn finding(text: String) -> CheckFinding {
    CheckFinding {
        code: "mounted-metadata",
        warning: false,
        text,
    }
}

/// Why an image could not be scrubbed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScrubError {
    /// A btrfs that cannot be opened, or whose trees of extents or checksums are unreadable.
    #[error("{}", named(path, source))]
    Btrfs {
        /// The image.
        path: PathBuf,
        /// The error of the engine.
        source: Box<sapwood_btrfs::Error>,
    },
    /// The file that records the position.
    #[error("{}: {source}", path.display())]
    State {
        /// The file.
        path: PathBuf,
        /// The error of the host.
        source: io::Error,
    },
    /// The daemon of a mount did not scrub.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// A source of lost sectors cannot be opened.
    #[error("{}", named(path, source))]
    Source {
        /// The source.
        path: PathBuf,
        /// Why.
        source: Box<OpenError>,
    },
    /// Sources are given for a mount, or for an ext4.
    #[error("{}: {why}", path.display())]
    NoSources {
        /// The image or directory.
        path: PathBuf,
        /// The reason.
        why: &'static str,
    },
}

/// Reads all used space of an image that nothing else uses, in every copy, and repairs bad copies.
/// The options name further devices, and whether devices may be missing. A device that missed
/// changes is brought up to date. A directory in a mount by Sapwood is scrubbed by the daemon of
/// the mount, which stays in use. On ext4, which has no copies and no checksums of data, it checks
/// the metadata and reads every block.
///
/// # Errors
/// The image cannot be opened ([`open`](crate::open)), or a device fails. The directory is in no
/// mount by Sapwood, or the caller is neither its owner nor root. Damage is in the report.
pub fn scrub(
    path: impl AsRef<Path>,
    opening: &Options,
    options: &ScrubOptions,
    progress: &mut OnProgress<'_>,
) -> Result<ScrubReport> {
    let path = path.as_ref();
    #[cfg(feature = "fuse")]
    if path.is_dir() {
        check_sources(
            path,
            options,
            "lost sectors of a mount come from no other source: unmount it",
        )?;
        let report = mounted::scrub_by_daemon(path, options, progress);
        return Ok(report.map_err(ScrubError::from)?);
    }
    let (devices, kind) = image::open_devices(path, opening, options.read_only)?;
    match (kind, &*devices) {
        (Kind::Ext4, [device, ..]) => {
            let why = "an ext4 has no checksums of data, by which lost sectors could be found";
            check_sources(path, options, why)?;
            let (scrubbed, interrupted) = read_all(&**device, options, progress);
            drop(devices);
            ext4(path, opening, scrubbed, interrupted, progress)
        }
        _ => Ok(btrfs(path, &devices, opening, options, progress)?),
    }
}

/// Refuses sources of lost sectors.
fn check_sources(
    path: &Path,
    options: &ScrubOptions,
    why: &'static str,
) -> std::result::Result<(), ScrubError> {
    if options.from.is_empty() {
        return Ok(());
    }
    let path = path.to_owned();
    Err(ScrubError::NoSources { path, why })
}

fn btrfs(
    path: &Path,
    devices: &[Arc<dyn Device>],
    opening: &Options,
    options: &ScrubOptions,
    progress: &mut OnProgress<'_>,
) -> std::result::Result<ScrubReport, ScrubError> {
    let failed = |source| ScrubError::Btrfs {
        path: path.to_owned(),
        source: Box::new(source),
    };
    let state = options.state.as_deref();
    let engine = btrfs::ScrubOptions {
        read_only: options.read_only,
        degraded: opening.is_degraded(),
        limit: options.limit,
        resume: state.and_then(read_state),
        time: opening.fixed_time(),
    };
    let mut donors = from::open_all(&options.from)?;
    let (mut total, mut written) = (None, Ok(()));
    let report = btrfs::scrub_with(devices, &engine, &mut donors, &mut |step| {
        if total.replace(step.total) != Some(step.total) {
            progress(Progress::Total(step.total));
        }
        progress(Progress::Done {
            phase: READING,
            done: step.done,
        });
        if let (Some(path), Some(position)) = (state, step.position) {
            written = write_state(path, position);
        }
        if options.stop.is_stopped() || written.is_err() {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    });
    let mut report = report.map_err(failed)?;
    if let Some(path) = state {
        let ended = written.and_then(|()| {
            if report.interrupted {
                return Ok(());
            }
            fs::remove_file(path)
        });
        if let Err(source) = ended
            && source.kind() != io::ErrorKind::NotFound
        {
            let path = path.to_owned();
            return Err(ScrubError::State { path, source });
        }
    }
    let mut donated = std::mem::take(&mut report.donated).into_iter();
    let mut shown = shown(report);
    shown.sources = options
        .from
        .iter()
        .map(|path| {
            let donated = donated.next().unwrap_or_default();
            ScrubSource {
                path: path.clone(),
                sectors: donated.sectors,
                error: donated.error,
            }
        })
        .collect();
    Ok(shown)
}

pub(crate) fn shown(report: btrfs::ScrubReport) -> ScrubReport {
    let clean = report.is_clean() && !report.interrupted;
    let device = |(devid, errors): (u64, btrfs::DeviceErrors)| ScrubbedDevice {
        name: errors.name,
        devid: Some(devid),
        was_stale: errors.was_stale,
        bytes: errors.bytes,
        unreadable: errors.unreadable,
        data: errors.data,
        trees: errors.trees,
        superblocks: errors.superblocks,
        repaired: errors.repaired,
        lost: errors.lost,
    };
    let file = |file: btrfs::DamagedFile| ScrubbedFile {
        path: file.path,
        subvolume: file.subvolume,
        inode: file.inode,
        range: file.offset..file.offset.saturating_add(file.len),
        repaired: file.repaired,
        source: file.donor,
    };
    ScrubReport {
        clean,
        devices: report.devices.into_iter().map(device).collect(),
        files: report.files.into_iter().map(file).collect(),
        lost_blocks: report.lost_blocks,
        unverified: report.unverified,
        findings: Vec::new(),
        sources: Vec::new(),
        interrupted: report.interrupted,
    }
}

/// The position that a state file records; `None` if it is missing or malformed.
fn read_state(path: &Path) -> Option<btrfs::Position> {
    let text = fs::read_to_string(path).ok()?;
    let mut words = text.split_whitespace();
    let (generation, logical) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    Some(btrfs::Position {
        generation,
        logical,
    })
}

fn write_state(path: &Path, position: btrfs::Position) -> io::Result<()> {
    let directory = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    let mut new = tempfile::NamedTempFile::new_in(directory.unwrap_or(Path::new(".")))?;
    writeln!(new, "{} {}", position.generation, position.logical)?;
    new.persist(path)?;
    Ok(())
}

/// Reads a whole device. Returns the device's report, and whether the read ended early.
fn read_all(
    device: &dyn Device,
    options: &ScrubOptions,
    progress: &mut OnProgress<'_>,
) -> (ScrubbedDevice, bool) {
    let size = device.size();
    let mut scrubbed = ScrubbedDevice {
        name: device.name().to_owned(),
        ..ScrubbedDevice::default()
    };
    progress(Progress::Total(size));
    let (pace, mut buf) = (options.limit.map(Pace::new), vec![0; STEP]);
    while scrubbed.bytes < size {
        let at = scrubbed.bytes;
        let len = (size - at).min(STEP as u64) as usize;
        let part = buf.get_mut(..len).unwrap_or_default();
        if device.read_at(at, part).is_err() {
            for (nth, unit) in part.chunks_mut(UNIT).enumerate() {
                let failed = device.read_at(at + (nth * UNIT) as u64, unit).is_err();
                scrubbed.unreadable += u64::from(failed);
            }
        }
        scrubbed.bytes += len as u64;
        progress(Progress::Done {
            phase: READING,
            done: scrubbed.bytes,
        });
        if options.stop.is_stopped() {
            return (scrubbed, true);
        }
        while let Some(pause) = pace.as_ref().and_then(|pace| pace.pause(scrubbed.bytes)) {
            thread::sleep(pause);
            progress(Progress::Done {
                phase: READING,
                done: scrubbed.bytes,
            });
            if options.stop.is_stopped() {
                return (scrubbed, true);
            }
        }
    }
    scrubbed.lost = scrubbed.unreadable;
    (scrubbed, false)
}

/// Reads the device of a mounted ext4, and verifies the checksums of its metadata.
///
/// # Errors
/// The error that made the mount read-only.
#[cfg(feature = "fuse")]
pub(crate) fn mounted_ext4(
    fs: &sapwood_ext4::Ext4,
    device: &dyn Device,
    options: &ScrubOptions,
    progress: &mut OnProgress<'_>,
) -> std::result::Result<ScrubReport, sapwood_ext4::Error> {
    let (scrubbed, interrupted) = read_all(device, options, progress);
    let mut report = ScrubReport {
        interrupted,
        ..ScrubReport::default()
    };
    if !interrupted {
        let done = scrubbed.bytes;
        let metadata = sapwood_ext4::scrub::scrub_mounted(fs, &mut |_, _| {
            // Shows that it goes on.
            let phase = READING;
            progress(Progress::Done { phase, done });
            if options.stop.is_stopped() {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        report.interrupted = metadata.interrupted;
        report.findings = metadata.findings.into_iter().map(finding).collect();
    }
    let bad = scrubbed.unreadable > 0 || !report.findings.is_empty();
    report.clean = !bad && !report.interrupted;
    report.devices.push(scrubbed);
    Ok(report)
}

/// Checks the metadata of an ext4 whose device was read.
fn ext4(
    path: &Path,
    opening: &Options,
    device: ScrubbedDevice,
    interrupted: bool,
    progress: &mut OnProgress<'_>,
) -> Result<ScrubReport> {
    let mut report = ScrubReport {
        interrupted,
        ..ScrubReport::default()
    };
    if !interrupted {
        let how = CheckOptions {
            opening: opening.clone(),
            ..CheckOptions::default()
        };
        let checked = check(path, &how, progress)?;
        report.clean = checked.clean && device.unreadable == 0;
        report.findings = checked.findings;
    }
    report.devices.push(device);
    Ok(report)
}
