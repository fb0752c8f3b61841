//! Writes since the last flush, to be repeated after a lost connection.
//!
//! Only the newest content of each byte is kept. So the order in which it is written again does not
//! matter, and no older write can replace a newer one that is durable already.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes that are kept before a writer flushes.
pub(crate) const LIMIT: u64 = 32 << 20;

/// The content of a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Content {
    Bytes(Arc<[u8]>),
    Zeros(u64),
}

impl Content {
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Zeros(len) => *len,
        }
    }

    /// Bytes of memory, roughly.
    fn cost(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64 + 64,
            Self::Zeros(_) => 64,
        }
    }

    /// The part from `from` to `to`.
    fn part(&self, from: u64, to: u64) -> Self {
        match self {
            Self::Bytes(bytes) => Self::Bytes(bytes[from as usize..to as usize].into()),
            Self::Zeros(_) => Self::Zeros(to - from),
        }
    }
}

/// Ranges that do not overlap, with their data and the time of the write.
#[derive(Debug, Default)]
pub(super) struct Unflushed {
    ranges: BTreeMap<u64, (u64, Content)>,
    /// Number of the last write.
    last: u64,
    cost: u64,
}

impl Unflushed {
    /// Number of the last write that was recorded.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    pub(super) fn is_full(&self) -> bool {
        self.cost > LIMIT
    }

    /// Records a write that completed.
    pub(super) fn insert(&mut self, offset: u64, content: Content) {
        self.remove(offset, content.len());
        self.last += 1;
        self.put(offset, self.last, content);
    }

    fn put(&mut self, offset: u64, number: u64, content: Content) {
        if content.len() > 0 {
            self.cost += content.cost();
            self.ranges.insert(offset, (number, content));
        }
    }

    /// Forgets a range that is durable or obsolete.
    pub(super) fn remove(&mut self, offset: u64, len: u64) {
        let end = offset + len;
        let first = self.ranges.range(..offset).next_back();
        let first = first.map_or(offset, |(start, _)| *start);
        let touched: Vec<u64> = self
            .ranges
            .range(first..end)
            .filter(|(start, (_, content))| *start + content.len() > offset)
            .map(|(start, _)| *start)
            .collect();
        for start in touched {
            let Some((number, content)) = self.ranges.remove(&start) else {
                continue;
            };
            self.cost -= content.cost();
            let stop = start + content.len();
            if start < offset {
                self.put(start, number, content.part(0, offset - start));
            }
            if stop > end {
                self.put(end, number, content.part(end - start, stop - start));
            }
        }
    }

    /// Forgets every write up to this number: a flush made it durable.
    pub(super) fn flushed(&mut self, last: u64) {
        self.ranges.retain(|_, (number, _)| *number > last);
        self.cost = self
            .ranges
            .values()
            .map(|(_, content)| content.cost())
            .sum();
    }

    /// All ranges.
    pub(super) fn all(&self) -> Vec<(u64, Content)> {
        let ranges = self.ranges.iter();
        ranges
            .map(|(offset, (_, content))| (*offset, content.clone()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 300;

    /// The recorded byte at each offset.
    fn bytes(log: &Unflushed) -> Vec<Option<u8>> {
        let mut out = vec![None; SIZE];
        for (offset, content) in log.all() {
            for n in 0..content.len() as usize {
                let byte = match &content {
                    Content::Bytes(bytes) => bytes[n],
                    Content::Zeros(_) => 0,
                };
                assert_eq!(out[offset as usize + n].replace(byte), None, "twice");
            }
        }
        out
    }

    #[test]
    fn only_the_newest_unflushed_content_of_each_byte_is_kept() {
        let mut random = fastrand::Rng::with_seed(5);
        let mut log = Unflushed::default();
        let mut model: Vec<Option<(u64, u8)>> = vec![None; SIZE];
        for round in 0..3000 {
            let offset = random.usize(..SIZE);
            let len = random.usize(..=(SIZE - offset).min(60));
            let range = offset..offset + len;
            match random.u8(..8) {
                0 => {
                    let last = log.last().saturating_sub(random.u64(..4));
                    log.flushed(last);
                    for byte in &mut model {
                        *byte = byte.filter(|(number, _)| *number > last);
                    }
                }
                1 => {
                    log.remove(offset as u64, len as u64);
                    model[range].fill(None);
                }
                2 => {
                    log.insert(offset as u64, Content::Zeros(len as u64));
                    model[range].fill(Some((log.last(), 0)));
                }
                _ => {
                    let byte = round as u8;
                    log.insert(offset as u64, Content::Bytes(vec![byte; len].into()));
                    model[range].fill(Some((log.last(), byte)));
                }
            }
            let wanted: Vec<_> = model
                .iter()
                .map(|byte| byte.map(|(_, byte)| byte))
                .collect();
            assert_eq!(bytes(&log), wanted, "round {round}");
            let cost: u64 = log.all().iter().map(|(_, content)| content.cost()).sum();
            assert_eq!(log.cost, cost);
        }
    }
}
