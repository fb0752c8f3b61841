//! Shows the journal's log, block by block.

use sapwood_jbd2::{LayoutMap, Log, LogEntry};

use super::{Image, InspectError, Lines, Result};
use crate::mount;

/// Home locations per line.
const PER_LINE: usize = 8;

pub(super) fn show(image: &Image, lines: &mut Lines<'_>) -> Result<()> {
    if image.super_block.journal_inum.get() == 0 {
        return Err(InspectError::NoJournal);
    }
    let runs = mount::journal_layout(&*image.device, &image.super_block, &image.geometry)?;
    let layout = LayoutMap::new(runs, image.geometry.blocks_count())?;
    let device = std::sync::Arc::clone(&image.device);
    let log = Log::load(device, layout, image.geometry.block_size())?;
    lines(format!(
        "Journal: inode {}, {} blocks of log, {} of fast commits, features {:?}",
        image.super_block.journal_inum.get(),
        log.size(),
        log.fast_commit_blocks(),
        log.features(),
    ));
    lines(match log.errno() {
        0 => "No error noted".to_owned(),
        errno => format!("Error noted: {errno}"),
    });
    for run in log.layout().runs() {
        let (first, last) = (run.logical, run.logical + run.len - 1);
        lines(format!("  blocks {first}-{last} at {}", run.physical));
    }
    if !log.needs_recovery() {
        lines("The log is empty".to_owned());
        return Ok(());
    }
    log.entries(&mut |entry| one(&entry, lines))?;
    Ok(())
}

fn one(entry: &LogEntry, lines: &mut Lines<'_>) {
    match entry {
        LogEntry::Descriptor {
            sequence,
            block,
            copies,
            good,
        } => {
            lines(format!(
                "Block {block}: transaction {sequence}, copies of {} blocks{}",
                copies.len(),
                bad(*good)
            ));
            for part in copies.chunks(PER_LINE) {
                let words = part.iter().map(|copy| {
                    let mark = if copy.escaped { "*" } else { "" };
                    let bad = if copy.good { "" } else { "!" };
                    format!("{}@{}{mark}{bad}", copy.home, copy.at)
                });
                lines(format!("  {}", words.collect::<Vec<_>>().join(" ")));
            }
        }
        LogEntry::Revoke {
            sequence,
            block,
            homes,
            good,
        } => {
            lines(format!(
                "Block {block}: transaction {sequence}, revokes {} blocks{}",
                homes.len(),
                bad(*good)
            ));
            for part in homes.chunks(PER_LINE) {
                let words: Vec<_> = part.iter().map(u64::to_string).collect();
                lines(format!("  {}", words.join(" ")));
            }
        }
        LogEntry::Commit {
            sequence,
            block,
            seconds,
            good,
        } => lines(format!(
            "Block {block}: transaction {sequence}, committed at {seconds}{}",
            bad(*good)
        )),
        LogEntry::End { sequence, block } => lines(format!(
            "Block {block}: nothing of transaction {sequence}; the log ends"
        )),
    }
}

fn bad(good: bool) -> &'static str {
    if good { "" } else { ", wrong checksum" }
}
