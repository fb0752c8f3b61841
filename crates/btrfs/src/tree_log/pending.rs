//! Pending inodes: logged ones whose names, or directory entries, changed since they were logged.
//!
//! # How it works
//! An unlink or rename records the directory and the inode as pending, each if the log has the
//! changed name, and *ties* the two: both must be logged by the same log commit. A link records the
//! inode, if the log has it. An fsync that is alone logs all pending inodes of the subvolume. So it
//! makes renames of other callers durable too, as any fsync of the kernel does.
//!
//! For that it needs the `io` locks of inodes that other callers work with. So while other fsyncs
//! run, an fsync logs only the pending inodes of its *group*: the inodes that ties connect to the
//! inodes that it logs. Within a group, a name that leaves one inode in the log arrives at the
//! other one, or at none. Groups have no inode in common, so each may be in the log as of another
//! moment, and clients that work in directories of their own do not wait for each other
//! (`clients_log_what_is_theirs`).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use crate::inode::Inode;

/// The pending inodes of a subvolume's log.
pub(super) struct Pending<T = Arc<Inode>> {
    /// Inodes whose names, or directories whose entries, must be updated, by number.
    inodes: BTreeMap<u64, T>,
    /// The inodes that each inode is tied to, by number.
    ties: HashMap<u64, BTreeSet<u64>>,
}

impl<T> Default for Pending<T> {
    fn default() -> Self {
        Self {
            inodes: BTreeMap::new(),
            ties: HashMap::new(),
        }
    }
}

impl<T: Clone> Pending<T> {
    /// Marks an inode for an update.
    pub(super) fn add(&mut self, objectid: u64, inode: T) {
        self.inodes.insert(objectid, inode);
    }

    /// Ties a directory and an inode that lost a name in it, of which one is pending.
    pub(super) fn tie(&mut self, dir: u64, inode: u64) {
        self.ties.entry(dir).or_default().insert(inode);
        self.ties.entry(inode).or_default().insert(dir);
    }

    /// Whether anything of the group of an inode is pending.
    pub(super) fn concerns(&self, objectid: u64) -> bool {
        !self.group(objectid, &mut HashSet::new()).is_empty()
    }

    /// The pending inodes of an inode's group, except those in `seen`; adds all of them.
    pub(super) fn group(&self, objectid: u64, seen: &mut HashSet<u64>) -> Vec<(u64, T)> {
        let mut found = Vec::new();
        let mut queue = vec![objectid];
        while let Some(number) = queue.pop() {
            if !seen.insert(number) {
                continue;
            }
            if let Some(inode) = self.inodes.get(&number) {
                found.push((number, inode.clone()));
            }
            if let Some(tied) = self.ties.get(&number) {
                queue.extend(tied);
            }
        }
        found
    }

    /// All pending inodes.
    pub(super) fn all(&self) -> Vec<(u64, T)> {
        let all = self.inodes.iter();
        all.map(|(number, inode)| (*number, inode.clone()))
            .collect()
    }

    /// Whether no inode is pending.
    pub(super) fn is_empty(&self) -> bool {
        self.inodes.is_empty()
    }

    /// Records that an inode is up to date in the log.
    pub(super) fn done(&mut self, objectid: u64) {
        self.inodes.remove(&objectid);
        if self.inodes.is_empty() {
            self.ties.clear();
            return;
        }
        // A tie between two that are up to date has no meaning.
        let Some(tied) = self.ties.get_mut(&objectid) else {
            return;
        };
        let inodes = &self.inodes;
        let over: Vec<u64> = tied
            .iter()
            .copied()
            .filter(|other| !inodes.contains_key(other))
            .collect();
        tied.retain(|other| inodes.contains_key(other));
        if tied.is_empty() {
            self.ties.remove(&objectid);
        }
        for other in over {
            if let Some(back) = self.ties.get_mut(&other) {
                back.remove(&objectid);
                if back.is_empty() {
                    self.ties.remove(&other);
                }
            }
        }
    }
}

impl<T> std::fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.inodes.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(pending: &Pending<()>, objectid: u64) -> Vec<u64> {
        let found = pending.group(objectid, &mut HashSet::new());
        let mut found: Vec<u64> = found.into_iter().map(|(number, ())| number).collect();
        found.sort_unstable();
        found
    }

    fn pending<const N: usize>(numbers: [u64; N], ties: &[(u64, u64)]) -> Pending<()> {
        let mut pending = Pending::default();
        for number in numbers {
            pending.add(number, ());
        }
        for (dir, inode) in ties {
            pending.tie(*dir, *inode);
        }
        pending
    }

    #[test]
    fn a_group_is_all_that_is_tied() {
        let pending = pending([1, 11, 12, 3, 31], &[(1, 11), (1, 12), (2, 12), (3, 31)]);
        assert_eq!(numbers(&pending, 2), [1, 11, 12]);
        assert_eq!(numbers(&pending, 11), [1, 11, 12]);
        assert_eq!(numbers(&pending, 31), [3, 31]);
        assert!(pending.concerns(2) && !pending.concerns(4) && !pending.concerns(5));
        let mut seen = HashSet::new();
        assert_eq!(pending.group(1, &mut seen).len(), 3);
        assert!(pending.group(12, &mut seen).is_empty());
    }

    #[test]
    fn what_is_up_to_date_ties_nothing() {
        let mut pending = pending([1, 11, 2], &[(1, 11), (1, 12), (2, 12)]);
        pending.done(1);
        // The place of 11 is still unlogged; 12 no longer leads to 1.
        assert_eq!(numbers(&pending, 1), [11]);
        assert_eq!(numbers(&pending, 12), [2]);
        pending.done(11);
        pending.done(2);
        assert!(pending.inodes.is_empty() && pending.ties.is_empty());
    }
}
