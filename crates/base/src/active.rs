//! The files with data in memory that is not on disk, and since when.
//!
//! The thread that makes a file dirty adds it; the entry holds the file's object, so that it stays
//! in memory. A thread that finds nothing left removes the file, and checks this under the lock. A
//! concurrent write adds the file *after* its data is there: it finds the entry missing and adds
//! it, or the check finds its data and keeps the entry.
//!
//! A file may reuse the number of a deleted one whose object is still being settled, so entries are
//! compared by object, not only by number (`a_reused_number_is_a_new_file`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::lock::{Rank, RankedMutex};
use crate::resident::{Key, Resident};

#[derive(Debug)]
struct Active<T> {
    file: Arc<T>,
    since: Instant,
}

/// Result of [`ActiveFiles::add`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    /// It was listed already.
    No,
    /// It is new in the list.
    New,
    /// It is new, and the only one in the list.
    First,
}

/// Files with data in memory, by number.
#[derive(Debug)]
pub struct ActiveFiles<R: Rank, T> {
    files: RankedMutex<R, BTreeMap<Key, Active<T>>>,
}

impl<R: Rank, T: Resident> ActiveFiles<R, T> {
    /// An empty list; `rank` is that of its lock.
    pub fn new(rank: R) -> Self {
        Self {
            files: RankedMutex::new(rank, BTreeMap::new()),
        }
    }

    /// Adds a file, if it is not listed. Replaces a deleted file that had its number before.
    pub fn add(&self, file: &Arc<T>) -> Added {
        let (added, gone) = {
            let mut files = self.files.lock();
            let is_there = |active: &Active<T>| Arc::ptr_eq(&active.file, file);
            if files.get(&file.key()).is_some_and(is_there) {
                return Added::No;
            }
            let active = Active {
                file: Arc::clone(file),
                since: Instant::now(),
            };
            let gone = files.insert(file.key(), active);
            let added = match files.len() {
                1 => Added::First,
                _ => Added::New,
            };
            (added, gone)
        };
        drop(gone);
        added
    }

    /// Removes a file if it has nothing left in memory. `is_idle` is called with the lock held.
    pub fn settle(&self, file: &T, is_idle: impl FnOnce() -> bool) {
        let gone = {
            // The lock comes first, so that a file with a concurrent write stays listed.
            let mut files = self.files.lock();
            let active = files.get(&file.key());
            let is_there = active.is_some_and(|active| std::ptr::eq(&*active.file, file));
            if is_there && is_idle() {
                files.remove(&file.key())
            } else {
                None
            }
        };
        drop(gone);
    }

    /// All files, by number.
    pub fn all(&self) -> Vec<Arc<T>> {
        let files = self.files.lock();
        let all = files.values().map(|active| Arc::clone(&active.file));
        all.collect()
    }

    /// All files, the one that has been active longest first.
    pub fn oldest_first(&self) -> Vec<Arc<T>> {
        let mut aged: Vec<_> = {
            let files = self.files.lock();
            let all = files
                .values()
                .map(|active| (active.since, Arc::clone(&active.file)));
            all.collect()
        };
        aged.sort_by_key(|(since, _)| *since);
        aged.into_iter().map(|(_, file)| file).collect()
    }

    /// The files that have been active for `interval`, whose age starts again, and the time until
    /// the next one is due; `None` if there is no file.
    pub fn due(&self, interval: Duration) -> (Vec<Arc<T>>, Option<Duration>) {
        let now = Instant::now();
        let mut due = Vec::new();
        let mut next: Option<Duration> = None;
        for active in self.files.lock().values_mut() {
            let age = now.saturating_duration_since(active.since);
            if age >= interval {
                active.since = now;
                due.push(Arc::clone(&active.file));
            }
            let rest = if age >= interval {
                interval
            } else {
                interval - age
            };
            next = Some(next.map_or(rest, |next| next.min(rest)));
        }
        (due, next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resident::Residence;

    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    struct TestRank;

    impl Rank for TestRank {
        type Order = Self;

        fn place(self) -> u16 {
            0
        }
    }

    #[derive(Debug)]
    struct File(u64, Residence);

    impl Resident for File {
        fn key(&self) -> Key {
            (0, self.0)
        }

        fn residence(&self) -> &Residence {
            &self.1
        }

        fn may_leave(&self) -> bool {
            true
        }

        fn footprint(&self) -> usize {
            size_of::<Self>()
        }
    }

    fn numbers(files: &[Arc<File>]) -> Vec<u64> {
        files.iter().map(|file| file.0).collect()
    }

    #[test]
    fn a_reused_number_is_a_new_file() {
        let active = ActiveFiles::new(TestRank);
        let [old, new] = [7, 7].map(|number| Arc::new(File(number, Residence::default())));
        let is_listed = |file: &Arc<File>| active.all().iter().any(|one| Arc::ptr_eq(one, file));
        active.add(&old);
        assert_eq!(active.add(&new), Added::First);
        assert!(is_listed(&new) && !is_listed(&old));
        active.settle(&old, || true);
        assert!(is_listed(&new));
        active.settle(&new, || true);
        assert!(active.all().is_empty());
    }

    #[test]
    fn files_are_added_age_and_are_removed() {
        let active = ActiveFiles::new(TestRank);
        let files = [7, 3, 5].map(|number| Arc::new(File(number, Residence::default())));
        assert_eq!(active.due(Duration::ZERO).1, None);
        assert_eq!(active.add(&files[0]), Added::First);
        assert_eq!(active.add(&files[1]), Added::New);
        assert_eq!(active.add(&files[1]), Added::No);
        assert_eq!(active.add(&files[2]), Added::New);
        assert_eq!(numbers(&active.all()), [3, 5, 7]);
        assert_eq!(numbers(&active.oldest_first()), [7, 3, 5]);

        let hour = Duration::from_secs(3600);
        let (due, next) = active.due(hour);
        assert!(due.is_empty() && next.is_some_and(|next| next <= hour));
        let (due, next) = active.due(Duration::ZERO);
        assert_eq!((numbers(&due), next), (vec![3, 5, 7], Some(Duration::ZERO)));

        active.settle(&files[0], || false);
        assert_eq!(active.all().len(), 3);
        active.settle(&files[0], || true);
        assert_eq!(numbers(&active.all()), [3, 5]);
        drop(due);
        assert_eq!(Arc::strong_count(&files[0]), 1);
        assert_eq!(active.add(&files[0]), Added::New);
    }
}
