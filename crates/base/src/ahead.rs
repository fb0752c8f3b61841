//! Detects sequential reads and chooses the range to read ahead.

use std::ops::Range;

/// Bytes that are requested ahead of a reader.
const WINDOW: u64 = 4 << 20;
/// Threads that read one file alternately still count as one sequential reader if they are at most
/// this many bytes apart.
const APART: u64 = 1 << 20;

/// State of read-ahead for one file.
#[derive(Debug, Default)]
pub struct ReadAhead {
    /// Byte after the last one read.
    next: u64,
    /// Byte after the last one requested ahead.
    asked: u64,
}

impl ReadAhead {
    /// Records a read of these bytes. Returns the range to request ahead, which may extend past the
    /// end of the file.
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
    fn a_sequential_read_is_read_ahead() {
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
    fn a_random_read_is_not_read_ahead() {
        let mut ahead = ReadAhead::default();
        for nth in 0..100u64 {
            let at = (nth * 7919 % 100) * (8 << 20);
            assert_eq!(ahead.note(&(at..at + STEP)), None);
        }
    }
}
