//! Quota files: a damaged tree is written anew, with the limits of the entries that can be read.
//! The engine counts the usage (`recount`).

use std::collections::BTreeSet;

use sapwood_ext4_format::{QUOTA_BLOCK, QuotaEntry, QuotaKind};

use super::edit::Editor;
use super::{Finding, Repaired};
use crate::check::quotas::QuotaFile;
use crate::check::report::{CheckError, CheckReport};
use crate::check::special::named;
use crate::quota_file::{GRACE, build};

/// Whether a finding is only about the content of quota files.
pub(super) fn is_quota(finding: &Finding) -> bool {
    matches!(
        finding,
        Finding::QuotaBad { .. }
            | Finding::QuotaTree { .. }
            | Finding::QuotaUsage { .. }
            | Finding::QuotaMissing { .. }
    )
}

/// Writes damaged quota files anew, into the blocks that they have.
pub(super) fn repair(
    editor: &Editor,
    report: &CheckReport,
    done: &mut Repaired,
) -> Result<(), CheckError> {
    let mut damaged = BTreeSet::new();
    for finding in &report.findings {
        if let Finding::QuotaBad { ino } | Finding::QuotaTree { ino, .. } = finding
            && damaged.insert(*ino)
        {
            rebuild(editor, *ino, finding, done)?;
        }
    }
    Ok(())
}

fn rebuild(
    editor: &Editor,
    ino: u32,
    finding: &Finding,
    done: &mut Repaired,
) -> Result<(), CheckError> {
    let kind = named(&editor.view).into_iter().find(|one| one.0 == ino);
    let Some((inode, kind)) = editor.inode(ino).zip(kind.and_then(|one| one.1)) else {
        return Ok(());
    };
    let file = QuotaFile::new(&editor.view, ino, &inode);
    let content = file.salvage(kind);
    let grace = content.grace.unwrap_or((GRACE, GRACE));
    let entries: Vec<QuotaEntry> = content.entries.into_values().collect();
    let room = file.room();
    let Some((kept, bytes)) = fitting(kind, grace, &entries, room as usize) else {
        let why = format!("{finding}: the file is too small to be written anew: run e2fsck");
        done.left.push(why);
        return Ok(());
    };
    let blocks = bytes.chunks_exact(QUOTA_BLOCK);
    for (number, part) in (0..room).zip(blocks) {
        let Some((block, at)) = file.place(number) else {
            continue;
        };
        let Ok(mut whole) = editor.view.block(block) else {
            continue;
        };
        if let Some(place) = whole.get_mut(at..at + QUOTA_BLOCK) {
            place.copy_from_slice(part);
        }
        editor.write_block(block, &whole)?;
    }
    let lost = match entries.len() - kept {
        0 => String::new(),
        lost => format!(", {lost} without limits left out"),
    };
    let noun = if kept == 1 { "entry" } else { "entries" };
    let text = format!("{finding}: written anew with {kept} {noun}{lost}");
    done.add("QuotaRebuilt", text);
    Ok(())
}

/// A file of at most `room` blocks, and its number of entries: all, else those with limits.
/// `None`: these are too many.
fn fitting(
    kind: QuotaKind,
    grace: (u32, u32),
    entries: &[QuotaEntry],
    room: usize,
) -> Option<(usize, Vec<u8>)> {
    let limited = |entry: &&QuotaEntry| {
        let limits = [
            &entry.inode_hard,
            &entry.inode_soft,
            &entry.space_hard,
            &entry.space_soft,
        ];
        limits.iter().any(|limit| limit.get() != 0)
    };
    let few: Vec<QuotaEntry> = entries.iter().filter(limited).cloned().collect();
    [entries, &few].into_iter().find_map(|entries| {
        let bytes = build(kind, grace, entries);
        (bytes.len() <= room * QUOTA_BLOCK).then_some((entries.len(), bytes))
    })
}
