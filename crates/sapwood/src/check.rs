//! Checking images, whatever their format.

use std::fmt;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sapwood_base::finding;
use sapwood_block::Device;
use sapwood_btrfs::check as btrfs;
use sapwood_ext4::JournalDevice;
use sapwood_ext4::check as ext4;

use crate::Kind;
use crate::image::{self, named};
use crate::options::Options;
use crate::progress::{OnProgress, Progress};

/// The extent of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckOptions {
    /// Read all data too, and compare every copy with its checksums. Only btrfs has checksums of
    /// data.
    pub data: bool,
    /// Number of findings that are kept; further ones are counted.
    pub max_findings: usize,
    /// How the image is opened: the other devices of a btrfs, the key of an encrypted image.
    pub opening: Options,
}

impl Default for CheckOptions {
    fn default() -> Self {
        Self {
            data: false,
            max_findings: 1000,
            opening: Options::new(),
        }
    }
}

/// The result of a check.
#[derive(Debug, Clone)]
pub struct CheckReport {
    /// Nothing is wrong. There may be warnings.
    pub clean: bool,
    /// All findings, including warnings.
    pub findings: Vec<CheckFinding>,
    /// Number of further findings.
    pub suppressed: u64,
}

/// A finding of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckFinding {
    /// Kind of the finding, as a word that stays the same from version to version.
    pub code: &'static str,
    /// Every reader copes with it: nothing is lost or in danger.
    pub warning: bool,
    /// Description, with the block, key or inode.
    pub text: String,
}

impl fmt::Display for CheckFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Why an image could not be checked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// A btrfs that is too damaged for a check.
    #[error("{}", named(path, source))]
    Btrfs {
        /// The image.
        path: PathBuf,
        /// The missing part.
        source: Box<btrfs::CheckError>,
    },
    /// An ext4 that is too damaged for a check.
    #[error("{}", named(path, source))]
    Ext4 {
        /// The image.
        path: PathBuf,
        /// The missing part.
        source: Box<ext4::CheckError>,
    },
}

impl CheckError {
    /// Whether the image is one of several devices, and others are missing.
    #[must_use]
    pub fn needs_devices(&self) -> bool {
        let Self::Btrfs { source, .. } = self else {
            return false;
        };
        matches!(**source, btrfs::CheckError::MissingDevices { .. })
    }
}

/// Checks an image, which must not be open for writing. Changes nothing.
///
/// # Errors
/// The image cannot be opened ([`open`](crate::open)), or is too damaged for a check. All other
/// damage is in the report.
pub fn check(
    path: impl AsRef<Path>,
    options: &CheckOptions,
    progress: &mut OnProgress<'_>,
) -> crate::Result<CheckReport> {
    let path = path.as_ref();
    let (devices, kind) = image::open_all(path, &options.opening)?;
    Ok(match (kind, &*devices) {
        (Kind::Ext4, [device, others @ ..]) => {
            let journal = others
                .first()
                .map(|device| JournalDevice::new(Arc::clone(device)));
            check_ext4(path, device, journal, options, progress)?
        }
        _ => check_btrfs(path, &devices, options, progress)?,
    })
}

fn check_btrfs(
    path: &Path,
    devices: &[Arc<dyn Device>],
    options: &CheckOptions,
    progress: &mut OnProgress<'_>,
) -> Result<CheckReport, CheckError> {
    let engine = btrfs::CheckOptions {
        check_data_csum: options.data,
        max_findings: options.max_findings,
    };
    let devices: Vec<&dyn Device> = devices.iter().map(|device| &**device).collect();
    let report = btrfs::check(&devices, &engine, &mut on_btrfs(progress));
    let report = report.map_err(|source| of_btrfs(path, source))?;
    Ok(btrfs_report(&report))
}

/// The error for an image.
pub(crate) fn of_btrfs(path: &Path, source: btrfs::CheckError) -> CheckError {
    CheckError::Btrfs {
        path: path.to_owned(),
        source: Box::new(source),
    }
}

/// Passes on the progress of a check. `name` names a phase.
fn on_phases<P: Copy + PartialEq>(
    progress: &mut OnProgress<'_>,
    name: fn(P) -> &'static str,
) -> impl FnMut(finding::Progress<P>) {
    let mut current = None;
    move |step| {
        if current.replace(step.phase) != Some(step.phase) {
            progress(Progress::Total(step.total));
        }
        let (phase, done) = (name(step.phase), step.done);
        progress(Progress::Done { phase, done });
    }
}

/// Passes on the progress of a check of a btrfs.
pub(crate) fn on_btrfs(progress: &mut OnProgress<'_>) -> impl FnMut(btrfs::Progress) {
    on_phases(progress, |phase| match phase {
        btrfs::Phase::Space => "space",
        btrfs::Phase::Trees => "trees",
        btrfs::Phase::Compare => "cross references",
        btrfs::Phase::Data => "data",
    })
}

fn report_of<F: finding::Finding + fmt::Display, S>(
    report: &finding::CheckReport<F, S>,
    code: fn(&F) -> &'static str,
) -> CheckReport {
    let findings = report.findings.iter().map(|finding| CheckFinding {
        code: code(finding),
        warning: finding.severity() == finding::Severity::Warning,
        text: finding.to_string(),
    });
    CheckReport {
        clean: report.is_clean(),
        findings: findings.collect(),
        suppressed: report.suppressed,
    }
}

pub(crate) fn btrfs_report(report: &btrfs::CheckReport) -> CheckReport {
    report_of(report, btrfs::Finding::code)
}

fn check_ext4(
    path: &Path,
    device: &Arc<dyn Device>,
    journal: Option<JournalDevice>,
    options: &CheckOptions,
    progress: &mut OnProgress<'_>,
) -> Result<CheckReport, CheckError> {
    let engine = ext4::CheckOptions {
        journal,
        max_findings: options.max_findings,
        protected: false,
    };
    let report = ext4::check(device, &engine, &mut on_ext4(progress));
    let report = report.map_err(|source| of_ext4(path, source))?;
    Ok(ext4_report(&report))
}

/// The error for an image.
pub(crate) fn of_ext4(path: &Path, source: ext4::CheckError) -> CheckError {
    CheckError::Ext4 {
        path: path.to_owned(),
        source: Box::new(source),
    }
}

/// Passes on the progress of a check of an ext4.
pub(crate) fn on_ext4(
    progress: &mut OnProgress<'_>,
) -> impl FnMut(ext4::Progress) -> ControlFlow<()> {
    let mut pass_on = on_phases(progress, |phase| match phase {
        ext4::Phase::Groups => "groups",
        ext4::Phase::Inodes => "inodes",
        ext4::Phase::Directories => "directories",
        ext4::Phase::Compare => "bitmaps",
    });
    move |step| {
        pass_on(step);
        ControlFlow::Continue(())
    }
}

pub(crate) fn ext4_report(report: &ext4::CheckReport) -> CheckReport {
    report_of(report, ext4::Finding::code)
}
