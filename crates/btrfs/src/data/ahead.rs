//! Asking for data before it is read, where somebody reads a file from front to back.
//!
//! The devices do the work in the background, in the system's page cache: there is no cache of data
//! here. Checksums are compared when the data is read.

use std::ops::Range;

use super::extent_map::Content;
use super::items;
use crate::engine::Engine;
use crate::ops::Inode;

/// Bytes that are asked for ahead of a reader.
const WINDOW: u64 = 4 << 20;
/// Several threads that read one file in turns still count as one reader, if they are not further
/// apart than this.
const APART: u64 = 1 << 20;

/// Where a file was read last.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// Byte after the last one read.
    next: u64,
    /// Byte after the last one asked for.
    asked: u64,
}

impl Ahead {
    /// Notes a read; returns what to ask for.
    fn note(&mut self, read: &Range<u64>) -> Option<Range<u64>> {
        let follows = read.start.abs_diff(self.next) <= APART && read.end > APART;
        if !follows {
            self.next = read.end;
            self.asked = read.end;
            return None;
        }
        self.next = self.next.max(read.end);
        let from = self.asked.max(self.next);
        let to = self.next.saturating_add(WINDOW);
        if to.saturating_sub(from) < WINDOW / 2 {
            return None;
        }
        self.asked = to;
        Some(from..to)
    }
}

/// Notes that `read` is being read, and asks for what will be next. Up to the end of the file, which
/// is at `size`.
pub(super) fn note_read(engine: &Engine, inode: &Inode, read: &Range<u64>, size: u64) {
    let asked = inode.data.state.lock().ahead.note(read);
    let Some(Range { start, end }) = asked else {
        return;
    };
    let end = end.min(size);
    let mut at = start;
    while at < end {
        // What is wrong with the items is found out by whoever reads there.
        let Ok(map) = items::find(engine, inode, at) else {
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
            engine.volume.will_read(from, len);
        }
        if map.end <= at {
            return;
        }
        at = map.end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: u64 = 128 << 10;

    #[test]
    fn who_reads_on_is_kept_ahead_of() {
        let mut ahead = Ahead::default();
        let mut asked = 0;
        for nth in 0..100 {
            let read = nth * STEP..(nth + 1) * STEP;
            if let Some(range) = ahead.note(&read) {
                assert!(range.start >= asked.max(read.end), "asked twice");
                asked = range.end;
            }
            if nth > 16 {
                assert!(asked >= read.end + WINDOW / 2 - STEP);
            }
        }
    }

    #[test]
    fn who_jumps_is_not() {
        let mut ahead = Ahead::default();
        for nth in 0..100u64 {
            let at = (nth * 7919 % 100) * (8 << 20);
            assert_eq!(ahead.note(&(at..at + STEP)), None);
        }
    }
}
