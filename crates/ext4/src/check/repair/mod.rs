//! Repairs what can be derived from intact parts of the image.
//!
//! # How it works
//! A repair changes a device that the caller can throw away: an overlay in memory. It writes each
//! change at once, so an error leaves the image half repaired.
//! 1. A superblock that cannot be used is replaced by a backup, a group descriptor by its backup.
//!    Flags and counts of a backup are out of date; they are set to values that hide nothing.
//! 2. A journal that needs recovery is replayed by the engine, which also frees the orphans.
//! 3. The check runs, and each finding that names its right value is repaired. That repeats until
//!    a round repairs nothing, because a repair may show further findings. Single bytes that a
//!    checksum identifies (`restore`) are restored first.
//! 4. Only if nothing else is repaired in a round, checksums of good contents are written.
//! 5. Then a damaged quota file is written anew, with the limits that can be read.
//! 6. Only then inodes without a name get one in `lost+found`, from the engine.
//! 7. If the usage of quotas differs at the end, the engine counts it again.
//! 8. Last, backups get the values of the superblock and the descriptors, and a file system without
//!    errors is marked clean.
//!
//! The check reports no consequence of a part that it could not read (see `check`). So a bitmap
//! loses no bit while a map is unreadable, and a link count is not changed while names are missing.
//! Of an inode or a map whose checksum does not match nothing but the checksum is changed, and only
//! if its contents agree with everything else (`seal`).

mod attach;
mod backups;
mod blocks;
mod counts;
mod edit;
mod journal;
mod names;
mod quotas;
mod restore;
mod seal;

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use sapwood_block::Device;
use sapwood_ext4_format::SuperState;

use super::examine;
use super::finding::Finding;
use super::notes::Parents;
use super::report::{CheckError, CheckOptions, CheckReport, Progress};
use crate::{Ext4, Options, mount, quota};

pub use backups::has_backup;
use edit::Editor;

/// Most rounds of check and repair.
const ROUNDS: usize = 50;

/// Receives the progress of a check, and can break it off.
type OnProgress<'p> = dyn FnMut(Progress) -> ControlFlow<()> + 'p;

/// Result of a repair.
pub type Repaired = sapwood_base::finding::Repaired<CheckReport>;

/// Repairs the file system on `device`, which the caller can throw away after an error. Nothing
/// else may use it meanwhile.
///
/// # Errors
/// [`CheckError`]: nothing can be checked, also with a backup of the superblock.
pub fn repair(
    device: &Arc<dyn Device>,
    options: &CheckOptions,
    progress: &mut OnProgress<'_>,
) -> Result<Repaired, CheckError> {
    let mut done = Repaired::default();
    backups::restore_super(device, &mut done)?;
    if let Some(mut editor) = Editor::open(device)? {
        backups::restore_descriptors(&mut editor, &mut done)?;
    }
    let (mut report, mut parents) = examine(device, options, progress)?;
    if must_recover(&report) {
        if let Err(error) = recover(device) {
            done.left.push(format!(
                "the journal cannot be replayed, and nothing is repaired before that: {error}"
            ));
            done.report = report;
            return Ok(done);
        }
        let text = "journal replayed, orphans freed".to_owned();
        done.add("JournalReplayed", text);
        (report, parents) = examine(device, options, progress)?;
    }
    let maps_doubtful = seal::maps_doubtful(&report);
    for _ in 0..ROUNDS {
        let Some(mut editor) = Editor::open(device)? else {
            break;
        };
        let before = done.repairs.len();
        restore::repair(&editor, &report, &mut done)?;
        if done.repairs.len() > before {
            // The report has consequences of the damage.
            (report, parents) = examine(device, options, progress)?;
            continue;
        }
        backups::name_reserved(&editor, &report, &mut done)?;
        journal::repair(&editor, &report, &mut done)?;
        blocks::repair(&editor, &report, &parents, &mut done)?;
        // Counts follow from names. This report lacks the names of a repaired block.
        if done.repairs.len() == before {
            names::repair(&mut editor, &report, &mut done)?;
            counts::repair(&mut editor, &report, &mut done)?;
        }
        if done.repairs.len() == before && !maps_doubtful {
            seal::repair(&editor, &report, &mut done)?;
        }
        if done.repairs.len() == before {
            quotas::repair(&editor, &report, &mut done)?;
        }
        if done.repairs.len() == before {
            attach::repair(editor, &report, &mut done)?;
        }
        if done.repairs.len() == before {
            break;
        }
        (report, parents) = examine(device, options, progress)?;
    }
    if recount(device, &report, &mut done)? {
        (report, _) = examine(device, options, progress)?;
    }
    if let Some(mut editor) = Editor::open(device)?
        && finish(&mut editor, &report, &mut done)?
    {
        (report, _) = examine(device, options, progress)?;
    }
    done.report = report;
    Ok(done)
}

/// Counts the usage of quotas again if it differs. True if it changed.
fn recount(
    device: &Arc<dyn Device>,
    report: &CheckReport,
    done: &mut Repaired,
) -> Result<bool, CheckError> {
    if !report.findings.iter().any(quotas::is_quota) {
        return Ok(false);
    }
    if report.suppressed > 0 || !report.errors().all(quotas::is_quota) {
        let why = "quotas are not counted again, as other damage is left: run e2fsck";
        done.left.push(why.to_owned());
        return Ok(false);
    }
    let counted = || -> crate::Result<bool> {
        let engine = mount::open(Arc::clone(device), mount_options())?;
        let changed = quota::recount(&engine)?;
        mount::close(&engine)?;
        Ok(changed)
    };
    match counted() {
        Ok(true) => {
            let text = "quota files: usage counted again".to_owned();
            done.add("QuotaCounted", text);
            Ok(true)
        }
        Ok(false) => Ok(false),
        Err(error) => {
            done.left
                .push(format!("quotas cannot be counted again: {error}"));
            Ok(false)
        }
    }
}

/// Directories by inode.
type Directories = HashMap<u32, Parents>;

/// Whether the engine has to recover the image: a journal with content, or orphans.
fn must_recover(report: &CheckReport) -> bool {
    let bad_list = |finding: &Finding| matches!(finding, Finding::OrphanListBad { .. });
    let needed = |finding: &Finding| {
        matches!(
            finding,
            Finding::NeedsRecovery {} | Finding::OrphanOnClean { .. }
        )
    };
    report.findings.iter().any(needed) && !report.findings.iter().any(bad_list)
}

/// Options of the engine for a repair.
fn mount_options() -> Options {
    Options {
        background: false,
        unprotected: true,
        ..Options::default()
    }
}

/// Mounts and unmounts the file system.
fn recover(device: &Arc<dyn Device>) -> crate::Result<()> {
    Ext4::open(Arc::clone(device), mount_options())?.close()
}

/// Updates backups from the originals, and marks a file system without errors clean. Returns
/// whether it changed anything.
fn finish(
    editor: &mut Editor,
    report: &CheckReport,
    done: &mut Repaired,
) -> Result<bool, CheckError> {
    let before = done.repairs.len();
    backups::update(editor, report, done)?;
    let unclean = report
        .findings
        .iter()
        .any(|finding| matches!(finding, Finding::NotClean {} | Finding::ErrorsNoted { .. }));
    if unclean && report.is_clean() {
        editor.change_super(|sb| {
            let state = (sb.state() | SuperState::VALID) - SuperState::ERROR;
            sb.set_state(state);
            sb.error_count = 0.into();
        })?;
        done.add("MarkedClean", "superblock: marked clean".to_owned());
    }
    Ok(done.repairs.len() > before)
}
