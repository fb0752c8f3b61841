//! Entries of a directory in the log.
//!
//! A new entry is its index item. One that is gone is an index within a range item: replay
//! deletes whatever stands in a logged range and is not in the log. A range covers nothing but
//! entries that are gone, so that nothing else of the directory has to be logged for it.

use sapwood_btrfs_format::{DirLogItem, Key, kind};

use super::plan::Step;
use super::write::Writer;
use crate::Result;
use crate::counters::Counters;
use crate::ops::dir;

/// Writes the entries of a step.
pub(super) fn write(w: &mut Writer<'_>, step: &Step) -> Result<()> {
    let inode = &step.inode;
    for (index, committed) in &step.removed {
        let key = Key::new(inode.objectid, kind::DIR_INDEX, *index);
        w.tree().delete(w.h, &key)?;
        if *committed && !sapwood_fault::planted(21) {
            range(w, inode.objectid, *index)?;
        }
        Counters::count(&w.engine.counters.log.dir_items);
    }
    for index in &step.entries {
        let Some(entry) = dir::entry_at(&w.engine, inode, *index)? else {
            continue;
        };
        let key = Key::new(inode.objectid, kind::DIR_INDEX, *index);
        w.put(&key, &entry)?;
        Counters::count(&w.engine.counters.log.dir_items);
    }
    let keep = !w.engine.options.log.single_names;
    inode.dir.logged(
        w.h.transid(),
        step.entries.iter().copied(),
        step.removed.keys().copied(),
        keep,
    );
    Ok(())
}

/// Logs that there is no entry at an index: makes the range before it longer if it ends there.
fn range(w: &mut Writer<'_>, dir: u64, index: u64) -> Result<()> {
    let key = Key::new(dir, kind::DIR_LOG_INDEX, index);
    let before = {
        let cursor = w.tree().seek_back(w.h, &key)?;
        let found = cursor
            .item()
            .filter(|(found, _)| found.objectid == dir && found.kind == kind::DIR_LOG_INDEX);
        found.and_then(|(found, data)| Some((found, DirLogItem::read(data).ok()?.end.get())))
    };
    let end = |end: u64| DirLogItem { end: end.into() };
    match before {
        Some((_, last)) if last >= index => Ok(()),
        Some((found, last)) if last.checked_add(1) == Some(index) => {
            w.put(&found, end(index).bytes())
        }
        _ => w.put(&key, end(index).bytes()),
    }
}
