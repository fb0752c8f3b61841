//! Asking for data before it is read, where a file is read from front to back.
//!
//! The devices do the work in the background, in the system's page cache: there is no cache of data
//! here. Checksums are compared when the data is read.

use std::ops::Range;

use super::items;
use crate::file_data::Content;
use crate::inode::Inode;
use crate::transaction::Store;

/// Notes that `read` is being read, and asks for what will be next. Up to the end of the file, which
/// is at `size`.
pub(super) fn note_read(store: &Store, inode: &Inode, read: &Range<u64>, size: u64) {
    let asked = inode.data.state.lock().ahead.note(read);
    let Some(Range { start, end }) = asked else {
        return;
    };
    let end = end.min(size);
    let mut at = start;
    while at < end {
        // What is wrong with the items is found out by the thread that reads there.
        let Ok(map) = items::find(store, inode, at) else {
            return;
        };
        if let Content::Data(stored) = map.content {
            let (from, len) = match stored.compression {
                0 => {
                    let part = map.cut(&(at..end));
                    let begin = stored.offset + (part.start - map.start);
                    (stored.bytenr + begin, part.end - part.start)
                }
                _ => (stored.bytenr, stored.disk_len),
            };
            store.volume.will_read(from, len);
        }
        if map.end <= at {
            return;
        }
        at = map.end;
    }
}
