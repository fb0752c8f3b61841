//! Facts of a subtree about its inodes, in a form that joins with the facts of its neighbours.

use sapwood_btrfs_format::Key;

use super::partial::{Finished, Partial};

/// Facts of a subtree.
#[derive(Clone, Debug, Default)]
pub(super) struct Summary {
    pub(super) last_key: Option<Key>,
    /// First inode. It may continue to the left, and to the right if there is no `tail`.
    head: Option<Box<Partial>>,
    /// Last inode, if it is not the first. It may continue to the right.
    tail: Option<Box<Partial>>,
    /// Some block of the subtree is bad.
    pub(super) holes: bool,
    /// The hole reaches the left, or right, end.
    open: (bool, bool),
    /// Hashes of directory entries minus hashes of names in inodes.
    pub(super) links: u128,
    /// Hashes of file types in entries minus hashes of inodes' types, once per name.
    pub(super) types: u128,
    /// Entries for subvolumes.
    pub(super) subvolumes: u64,
    /// Inodes without names.
    pub(super) unlinked: Vec<u64>,
    pub(super) orphans: Vec<u64>,
    /// Inodes with a name and items of a hash tree, but without its flag.
    pub(super) half_sealed: Vec<u64>,
}

impl Summary {
    /// A subtree that could not be entered.
    pub(super) fn hole() -> Self {
        Self {
            holes: true,
            open: (true, true),
            ..Self::default()
        }
    }

    /// The last inode, or a new one if the key is of another inode. `finished` takes an inode that
    /// ends here with both ends inside.
    pub(super) fn inode(&mut self, key: Key, finished: &mut Finished) -> &mut Partial {
        let current = self.tail.as_ref().or(self.head.as_ref()).map(|p| p.inode);
        if current != Some(key.objectid) {
            let fresh = Box::new(Partial::new(key));
            if self.head.is_none() {
                self.head = Some(fresh);
            } else {
                finished.extend(self.tail.replace(fresh).map(|p| *p));
            }
        }
        let slot = if self.tail.is_some() {
            &mut self.tail
        } else {
            &mut self.head
        };
        slot.get_or_insert_with(|| Box::new(Partial::new(key)))
    }

    /// Joins the summary to the right. Inodes that become complete go to `finished`.
    pub(super) fn join(mut self, mut right: Self, finished: &mut Finished) -> Self {
        let last = if self.tail.is_some() {
            &mut self.tail
        } else {
            &mut self.head
        };
        if let Some(last) = last {
            last.damaged |= right.open.0;
        }
        if let Some(first) = &mut right.head {
            first.damaged |= self.open.1;
        }
        let open = (
            self.open.0 || (self.head.is_none() && right.open.0),
            right.open.1 || (right.head.is_none() && self.open.1),
        );
        self.open = open;
        self.last_key = right.last_key.or(self.last_key);
        self.holes |= right.holes;
        self.links = self.links.wrapping_add(right.links);
        self.types = self.types.wrapping_add(right.types);
        self.subvolumes = self.subvolumes.saturating_add(right.subvolumes);
        self.unlinked.append(&mut right.unlinked);
        self.orphans.append(&mut right.orphans);
        self.half_sealed.append(&mut right.half_sealed);
        if let Some(head) = right.head {
            self.append(head, finished);
        }
        if let Some(tail) = right.tail {
            self.append(tail, finished);
        }
        self
    }

    /// Adds an inode, or more of the last one.
    fn append(&mut self, next: Box<Partial>, finished: &mut Finished) {
        let last = if self.tail.is_some() {
            &mut self.tail
        } else {
            &mut self.head
        };
        match last {
            Some(last) if last.inode == next.inode => last.join(&next),
            Some(_) => finished.extend(self.tail.replace(next).map(|p| *p)),
            None => self.head = Some(next),
        }
    }

    /// The inodes at both ends, which are complete if there is nothing to the left or right.
    pub(super) fn take_ends(&mut self) -> impl Iterator<Item = Box<Partial>> + use<> {
        self.head.take().into_iter().chain(self.tail.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(inodes: &[u64]) -> (Summary, Vec<u64>) {
        let mut finished = Vec::new();
        let mut sum = Summary::default();
        for inode in inodes {
            sum.inode(Key::new(*inode, 1, 0), &mut finished).names += 1;
        }
        (sum, finished.iter().map(|p| p.inode).collect())
    }

    #[test]
    fn inner_inodes_are_finished_and_ends_join() {
        let (left, done) = of(&[256, 257, 258]);
        assert_eq!(done, [257]);
        let (right, done) = of(&[258, 259]);
        assert!(done.is_empty());
        let mut finished = Vec::new();
        let mut sum = left.join(right, &mut finished);
        assert_eq!(
            finished
                .iter()
                .map(|p| (p.inode, p.names))
                .collect::<Vec<_>>(),
            [(258, 2)]
        );
        assert_eq!(
            sum.take_ends().map(|p| p.inode).collect::<Vec<_>>(),
            [256, 259]
        );
    }

    #[test]
    fn one_inode_over_many_leaves_stays_partial() {
        let mut finished = Vec::new();
        let mut sum = Summary::default();
        for _ in 0..5 {
            sum = sum.join(of(&[300]).0, &mut finished);
        }
        assert!(finished.is_empty());
        assert_eq!(sum.take_ends().map(|p| p.names).collect::<Vec<_>>(), [5]);
    }

    #[test]
    fn only_neighbours_of_a_hole_are_damaged() {
        let mut finished = Vec::new();
        let sum = of(&[256, 257]).0.join(Summary::hole(), &mut finished);
        let mut sum = sum.join(of(&[260, 261]).0, &mut finished);
        finished.extend(sum.take_ends().map(|p| *p));
        finished.sort_by_key(|p| p.inode);
        let damaged: Vec<u64> = finished
            .iter()
            .filter(|p| p.damaged)
            .map(|p| p.inode)
            .collect();
        assert_eq!(damaged, [257, 260]);
        assert!(sum.holes);
    }
}
