//! Whether a file is read from front to back, and what to ask the devices for before it is read.

use std::ops::Range;

/// Bytes that are asked for ahead of a reader.
const WINDOW: u64 = 4 << 20;
/// Several threads that read one file in turns still count as one reader, if they are not further
/// apart than this.
const APART: u64 = 1 << 20;

/// Where a file was read last.
#[derive(Debug, Default)]
pub struct ReadAhead {
    /// Byte after the last one read.
    next: u64,
    /// Byte after the last one asked for.
    asked: u64,
}

impl ReadAhead {
    /// Notes a read of these bytes; returns what to ask for, which may lie beyond the file's end.
    pub fn note(&mut self, read: &Range<u64>) -> Option<Range<u64>> {
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

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: u64 = 128 << 10;

    #[test]
    fn who_reads_on_is_kept_ahead_of() {
        let mut ahead = ReadAhead::default();
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
        let mut ahead = ReadAhead::default();
        for nth in 0..100u64 {
            let at = (nth * 7919 % 100) * (8 << 20);
            assert_eq!(ahead.note(&(at..at + STEP)), None);
        }
    }
}
