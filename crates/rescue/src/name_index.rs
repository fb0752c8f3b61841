//! The positions of the names of directories.
//!
//! A damaged directory has no index that can be trusted, so a lookup lists it. A walk looks up each
//! name of each directory: with the position of every name, the directory is listed once, and a
//! lookup reads the entry alone. A directory with too many names has only the position of the last
//! name that was found, which suffices for lookups in the order of the listing.

use std::collections::VecDeque;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;

use parking_lot::Mutex;

/// Directories that are known at a time.
const MOST_DIRECTORIES: usize = 16;
/// Most names of all known directories: 32 MiB.
const MOST_NAMES: usize = 2 << 20;

/// The names of a directory.
#[derive(Debug, Clone)]
enum Names {
    /// Hashes of all names in rising order, with the first position of each.
    All(Arc<[(u64, u64)]>),
    /// Too many names. The position of the last one that was found.
    Last(u64),
}

/// The names of the directories that were searched last.
#[derive(Debug, Default)]
pub(crate) struct NameIndex {
    /// Its keys are random, so that no image has many names of one hash.
    hasher: RandomState,
    /// By number of the directory, the last one first.
    recent: Mutex<VecDeque<(u64, Names)>>,
}

/// The known position of a name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// Here, or anywhere if another name is here.
    At(u64),
    /// The directory does not have it.
    Absent,
    /// Not known; probably after this position.
    After(u64),
}

impl NameIndex {
    /// The position of a name in directory `dir`. `list` lists all names of the directory with
    /// their positions, in order.
    pub(crate) fn find(
        &self,
        dir: u64,
        name: &[u8],
        list: impl FnOnce(&mut dyn FnMut(&[u8], u64)),
    ) -> Known {
        let names = self.known(dir).unwrap_or_else(|| self.learn(dir, list));
        match names {
            Names::Last(at) => Known::After(at),
            Names::All(names) => {
                let hash = self.hasher.hash_one(name);
                let first = names.partition_point(|(other, _)| *other < hash);
                match names.get(first) {
                    Some((other, at)) if *other == hash => Known::At(*at),
                    _ => Known::Absent,
                }
            }
        }
    }

    /// Records the position at which a name was found that was not known.
    pub(crate) fn found(&self, dir: u64, position: u64) {
        let mut recent = self.recent.lock();
        let known = recent.iter_mut().find(|(other, _)| *other == dir);
        if let Some((_, Names::Last(at))) = known {
            *at = position;
        }
    }

    fn known(&self, dir: u64) -> Option<Names> {
        let mut recent = self.recent.lock();
        let at = recent.iter().position(|(other, _)| *other == dir)?;
        let found = recent.remove(at)?;
        let names = found.1.clone();
        recent.push_front(found);
        Some(names)
    }

    fn learn(&self, dir: u64, list: impl FnOnce(&mut dyn FnMut(&[u8], u64))) -> Names {
        let mut all = Vec::new();
        let mut fits = true;
        list(&mut |name, position| {
            fits &= all.len() < MOST_NAMES;
            if fits {
                all.push((self.hasher.hash_one(name), position));
            }
        });
        let names = if fits {
            all.sort_unstable();
            all.dedup_by_key(|(hash, _)| *hash);
            Names::All(all.into())
        } else {
            Names::Last(0)
        };
        let mut recent = self.recent.lock();
        recent.push_front((dir, names.clone()));
        let mut count = 0;
        let kept = recent.iter().take_while(|(_, names)| {
            count += match names {
                Names::All(names) => names.len(),
                Names::Last(_) => 0,
            };
            count <= MOST_NAMES
        });
        let kept = kept.count().min(MOST_DIRECTORIES);
        recent.truncate(kept);
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn never(_: &mut dyn FnMut(&[u8], u64)) {
        panic!("listed again");
    }

    #[test]
    fn names_of_a_known_directory_are_not_listed_again() {
        let index = NameIndex::default();
        let names: Vec<String> = (0..1000).map(|number| format!("name{number}")).collect();
        let list = |add: &mut dyn FnMut(&[u8], u64)| {
            for (number, name) in names.iter().enumerate() {
                add(name.as_bytes(), number as u64 / 50);
            }
            // The first position of a name that is there twice counts.
            add(b"name0", 99);
        };
        assert_eq!(index.find(7, b"name0", list), Known::At(0));
        assert_eq!(index.find(7, b"name999", never), Known::At(19));
        assert_eq!(index.find(7, b"other", never), Known::Absent);
        for dir in 100..100 + MOST_DIRECTORIES as u64 {
            assert_eq!(index.find(dir, b"x", |_| {}), Known::Absent);
        }
        assert_eq!(index.recent.lock().len(), MOST_DIRECTORIES);
        assert_eq!(index.find(7, b"name60", list), Known::At(1));
    }

    #[test]
    fn the_last_position_of_a_directory_with_too_many_names_is_known() {
        let index = NameIndex::default();
        let list = |add: &mut dyn FnMut(&[u8], u64)| {
            for number in 0..=MOST_NAMES as u32 {
                add(&number.to_le_bytes(), number.into());
            }
        };
        assert_eq!(index.find(7, &[0; 4], list), Known::After(0));
        index.found(7, 1234);
        assert_eq!(index.find(7, &[1; 4], never), Known::After(1234));
        // Other directories are known as before.
        index.found(8, 99);
        assert_eq!(index.find(8, b"name", |add| add(b"name", 5)), Known::At(5));
        index.found(8, 99);
        assert_eq!(index.find(8, b"name", never), Known::At(5));
    }
}
