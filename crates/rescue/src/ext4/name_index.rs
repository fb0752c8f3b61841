//! The blocks of the names of large directories.
//!
//! A damaged directory has no index that can be trusted, so a lookup reads its blocks one after the
//! other. Whoever walks over a large directory looks up each of its names; with the block of each
//! name, a lookup reads one block.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::sync::Arc;

use parking_lot::Mutex;

/// Fewest blocks of a directory whose names are worth it.
pub(super) const LEAST_BLOCKS: u32 = 8;
/// Directories whose names are kept.
const MOST_DIRECTORIES: usize = 16;
/// Most names of all these directories: 64 MiB.
const MOST_NAMES: usize = 2 << 20;

/// The first block with a name of each hash.
type Blocks = Arc<HashMap<u64, u32>>;

/// The names of the directories that were searched last.
#[derive(Debug, Default)]
pub(super) struct NameIndex {
    /// Its keys are random, so that no image has names of one hash.
    hasher: RandomState,
    /// By inode of the directory, the last one first.
    recent: Mutex<VecDeque<(u32, Blocks)>>,
}

/// Where a name is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// In this block, or anywhere if the block lacks it.
    In(u32),
    /// Nowhere.
    Absent,
    /// The directory has too many names to keep them.
    Unknown,
}

impl NameIndex {
    /// The block of a name of directory `dir`. `list` lists all names of the directory with their
    /// blocks, in order.
    pub(super) fn find(
        &self,
        dir: u32,
        name: &[u8],
        list: impl FnOnce(&mut dyn FnMut(&[u8], u32)),
    ) -> Known {
        let blocks = self.known(dir).or_else(|| self.learn(dir, list));
        match blocks {
            None => Known::Unknown,
            Some(blocks) => match blocks.get(&self.hasher.hash_one(name)) {
                Some(block) => Known::In(*block),
                None => Known::Absent,
            },
        }
    }

    fn known(&self, dir: u32) -> Option<Blocks> {
        let mut recent = self.recent.lock();
        let at = recent.iter().position(|(ino, _)| *ino == dir)?;
        let found = recent.remove(at)?;
        let blocks = Arc::clone(&found.1);
        recent.push_front(found);
        Some(blocks)
    }

    fn learn(&self, dir: u32, list: impl FnOnce(&mut dyn FnMut(&[u8], u32))) -> Option<Blocks> {
        let mut blocks = HashMap::new();
        let mut fits = true;
        list(&mut |name, block| {
            fits &= blocks.len() < MOST_NAMES;
            if fits {
                blocks.entry(self.hasher.hash_one(name)).or_insert(block);
            }
        });
        if !fits {
            return None;
        }
        let blocks = Arc::new(blocks);
        let mut recent = self.recent.lock();
        recent.push_front((dir, Arc::clone(&blocks)));
        let mut names = 0;
        let kept = recent.iter().take_while(|(_, blocks)| {
            names += blocks.len();
            names <= MOST_NAMES
        });
        let kept = kept.count().min(MOST_DIRECTORIES);
        recent.truncate(kept);
        Some(blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_known_directory_are_not_listed_again() {
        let index = NameIndex::default();
        let names: Vec<String> = (0..1000).map(|number| format!("name{number}")).collect();
        let list = |add: &mut dyn FnMut(&[u8], u32)| {
            for (number, name) in names.iter().enumerate() {
                add(name.as_bytes(), number as u32 / 50);
            }
            // The first block of a name that is there twice counts.
            add(b"name0", 99);
        };
        let never = |_: &mut dyn FnMut(&[u8], u32)| panic!("listed again");
        assert_eq!(index.find(7, b"name0", list), Known::In(0));
        assert_eq!(index.find(7, b"name999", never), Known::In(19));
        assert_eq!(index.find(7, b"other", never), Known::Absent);
        for dir in 100..100 + MOST_DIRECTORIES as u32 {
            assert_eq!(index.find(dir, b"x", |_| {}), Known::Absent);
        }
        assert_eq!(index.find(7, b"name60", list), Known::In(1));
    }

    #[test]
    fn too_many_names_are_not_kept() {
        let index = NameIndex::default();
        let list = |add: &mut dyn FnMut(&[u8], u32)| {
            for number in 0..=MOST_NAMES as u32 {
                add(&number.to_le_bytes(), 0);
            }
        };
        assert_eq!(index.find(7, &[0; 4], list), Known::Unknown);
        assert!(index.recent.lock().is_empty());
    }
}
