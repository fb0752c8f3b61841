//! The journal: whether it is usable, and the image after its replay.

use std::sync::Arc;

use sapwood_block::{Device, OverlayDevice};
use sapwood_ext4_format::{Compat, Inode, validate_group, validate_inode};
use sapwood_jbd2::{LayoutMap, LayoutRun, Log};

use super::finding::Finding;
use super::state::View;
use super::walk::{self, Piece};
use crate::journal_device::is_external;

/// Most blocks of a journal's inode: the range of its block numbers.
const MOST_BLOCKS: u64 = 1 << 32;

/// The journal's inode.
fn inode(view: &View) -> Result<(u32, Inode), String> {
    let ino = view.sb.journal_inum.get();
    let shown = |finding: Finding| finding.to_string();
    let place = view.geometry.inode_location(ino);
    let (group, _) = place.map_err(|error| error.to_string())?;
    let desc = view.descriptor(group).map_err(shown)?;
    let mut judged = desc.clone();
    judged.set_checksum(group, &view.geometry);
    validate_group(group, &judged, &view.geometry).map_err(|error| error.to_string())?;
    let inode = view.inode(desc.inode_table(), ino).map_err(shown)?;
    validate_inode(ino, &inode, &view.geometry).map_err(|error| error.to_string())?;
    if inode.links() == 0 || !inode.is_regular() {
        return Err(format!("inode {ino} is no file in use"));
    }
    Ok((ino, inode))
}

/// Blocks of the journal.
pub(super) fn layout(view: &View) -> Result<LayoutMap, String> {
    let (ino, inode) = inode(view)?;
    let mut runs: Vec<LayoutRun> = Vec::new();
    let mut nodes = std::collections::HashSet::new();
    let mut bad = false;
    let walked = walk::walk(view, ino, &inode, &mut |piece| match piece {
        Piece::Node { block } => nodes.insert(block),
        Piece::Data {
            logical,
            physical,
            len,
            unwritten,
        } => {
            bad |= unwritten;
            match runs.last_mut() {
                Some(last)
                    if last.logical + last.len == logical
                        && last.physical + last.len == physical =>
                {
                    last.len += len;
                }
                _ => runs.push(LayoutRun {
                    logical,
                    physical,
                    len,
                }),
            }
            true
        }
    });
    if let Some(finding) = walked.findings.first() {
        return Err(finding.to_string());
    }
    let blocks = inode.size(&view.geometry) / u64::from(view.geometry.block_size());
    let map = LayoutMap::new(runs, view.geometry.blocks_count());
    let map = map.map_err(|error| error.to_string())?;
    if bad || map.blocks() < blocks || blocks > MOST_BLOCKS {
        return Err(format!(
            "its inode maps {} blocks, its size is {blocks}",
            map.blocks()
        ));
    }
    Ok(map)
}

/// Loads the log of a file system that has one.
fn load(view: &View, device: &Arc<dyn Device>) -> Result<Option<Log>, String> {
    let has = view.geometry.features().has_compat(Compat::HAS_JOURNAL);
    if !has {
        return Ok(None);
    }
    if is_external(&view.sb) {
        let why = "it is on another device, which was not named";
        let journal = view.journal.as_ref().ok_or(why)?;
        let log = journal.open_log(device, &view.sb, &view.geometry);
        return log.map(Some).map_err(|error| error.to_string());
    }
    let log = Log::load(
        Arc::clone(device),
        layout(view)?,
        view.geometry.block_size(),
    );
    log.map(Some).map_err(|error| error.to_string())
}

/// Whether there is a usable journal that has content.
pub(super) fn has_content(view: &View) -> bool {
    matches!(load(view, &view.device), Ok(Some(log)) if log.needs_recovery())
}

/// Checks a journal that need not be replayed. One on another device is checked only if it was
/// named.
pub(super) fn judge(view: &View, findings: &mut Vec<Finding>) {
    if is_external(&view.sb) && view.journal.is_none() {
        return;
    }
    match load(view, &view.device) {
        Ok(Some(log)) if log.needs_recovery() => {
            let why = "is not empty, but the superblock does not say so".into();
            findings.push(Finding::JournalBad { why });
        }
        Ok(Some(log)) if log.oddity().is_some() => {
            let why = log.oddity().unwrap_or_default().into();
            findings.push(Finding::JournalBad { why });
        }
        Ok(Some(log)) if log.errno() != 0 => {
            let why = format!("notes error {}", log.errno());
            findings.push(Finding::JournalBad { why });
        }
        Ok(_) => {}
        Err(why) => findings.push(Finding::JournalBad { why }),
    }
}

/// The image as a recovery would leave it; `None`, with findings, if a recovery is impossible.
pub(super) fn replayed(view: &View, findings: &mut Vec<Finding>) -> Option<Arc<dyn Device>> {
    let overlay: Arc<dyn Device> = Arc::new(OverlayDevice::new(Arc::clone(&view.device)));
    let result = load(view, &overlay).and_then(|log| {
        let log = log.ok_or("there is none, but it has to be replayed")?;
        let plan = log.scan(&|block| view.geometry.may_be_logged(block));
        let plan = plan.map_err(|error| error.to_string())?;
        plan.replay(&*overlay).map_err(|error| error.to_string())
    });
    match result {
        Ok(_) => Some(overlay),
        Err(why) => {
            findings.push(Finding::JournalBad { why });
            None
        }
    }
}
