//! Ranges with owners, of which the first one to claim a range keeps it.

use std::collections::BTreeMap;

/// Most ranges that are kept. Later claims are dropped.
const MOST: usize = 2_000_000;

/// Ranges without overlaps.
#[derive(Debug)]
pub(crate) struct Claims<T> {
    /// Start, end and owner.
    ranges: BTreeMap<u64, (u64, T)>,
}

impl<T> Default for Claims<T> {
    fn default() -> Self {
        Self {
            ranges: BTreeMap::new(),
        }
    }
}

impl<T: Copy> Claims<T> {
    /// Gives an owner the parts of a range that have none.
    pub(crate) fn claim(&mut self, owner: T, start: u64, len: u64) {
        let end = start.saturating_add(len);
        let mut at = start;
        while at < end && self.ranges.len() < MOST {
            let before = self.ranges.range(..=at).next_back();
            if let Some((_, (known, _))) = before.filter(|(_, (known, _))| *known > at) {
                at = *known;
                continue;
            }
            let next = self.ranges.range(at..).next();
            let next = next.map_or(end, |(next, _)| (*next).min(end));
            self.ranges.insert(at, (next, owner));
            at = next;
        }
    }

    /// Start, end and owner of the claimed parts of a range, ascending.
    pub(crate) fn parts(&self, start: u64, len: u64) -> impl Iterator<Item = (u64, u64, T)> {
        let end = start.saturating_add(len);
        let before = self.ranges.range(..start).next_back();
        let within = self.ranges.range(start..end);
        let all = before.into_iter().chain(within);
        let all =
            all.map(move |(at, (known, owner))| ((*at).max(start), (*known).min(end), *owner));
        all.filter(|(at, known, _)| at < known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_owner_keeps_its_range() {
        let mut claims = Claims::default();
        claims.claim('a', 100, 10);
        claims.claim('a', 120, 5);
        claims.claim('b', 95, 35);
        claims.claim('c', 90, 12);
        let parts = |start, len| claims.parts(start, len).collect::<Vec<_>>();
        assert_eq!(parts(104, 2), [(104, 106, 'a')]);
        assert_eq!(
            parts(0, 1000),
            [
                (90, 95, 'c'),
                (95, 100, 'b'),
                (100, 110, 'a'),
                (110, 120, 'b'),
                (120, 125, 'a'),
                (125, 130, 'b')
            ]
        );
        assert_eq!(parts(130, 5), []);
        assert_eq!(parts(80, 10), []);
        assert_eq!(parts(100, 0), []);
    }

    #[test]
    fn ranges_at_the_end_of_all_numbers_do_not_overflow() {
        let mut claims = Claims::default();
        claims.claim(1, u64::MAX - 1, u64::MAX);
        let parts: Vec<_> = claims.parts(u64::MAX - 5, u64::MAX).collect();
        assert_eq!(parts, [(u64::MAX - 1, u64::MAX, 1)]);
    }
}
