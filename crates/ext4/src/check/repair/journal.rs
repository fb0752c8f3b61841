//! The journal's superblock.

use sapwood_jbd2::NewJournal;

use super::edit::Editor;
use super::{Finding, Repaired};
use crate::check::journal;
use crate::check::report::{CheckError, CheckReport};

/// First bytes of every block of a log that is not a copy.
const MAGIC: [u8; 4] = 0xc03b_3998_u32.to_be_bytes();

/// Writes a damaged superblock of an empty journal again, from the journal's inode. A journal with
/// content is left: nothing shows where its log begins.
pub(super) fn repair(
    editor: &Editor,
    report: &CheckReport,
    done: &mut Repaired,
) -> Result<(), CheckError> {
    let bad = |finding: &&Finding| matches!(finding, Finding::JournalBad { .. });
    let Some(finding) = report.findings.iter().find(bad) else {
        return Ok(());
    };
    let view = &editor.view;
    let Ok(layout) = journal::layout(view) else {
        return Ok(());
    };
    if view.sb.journal_inum.get() == 0 || journal::has_content(view) {
        return Ok(());
    }
    let block_size = view.geometry.block_size();
    let Ok(blocks) = u32::try_from(layout.blocks()) else {
        return Ok(());
    };
    let new = NewJournal {
        block_size,
        blocks,
        fast_commit_blocks: 0,
        uuid: *view.geometry.uuid(),
        external_at: None,
    };
    let Ok(first) = new.superblock() else {
        return Ok(());
    };
    // A block of an old log must never pass for one of a new log.
    for logical in 1..u64::from(blocks) {
        let Some((block, _)) = layout.find(logical) else {
            continue;
        };
        match view.block(block) {
            Ok(bytes) if bytes.starts_with(&MAGIC) => {
                editor.write_block(block, &vec![0; block_size as usize])?;
            }
            _ => {}
        }
    }
    if let Some((block, _)) = layout.find(0) {
        editor.write_block(block, &first)?;
        let text = format!("{finding}: superblock of the empty journal written again");
        done.add(finding.code(), text);
    }
    Ok(())
}
