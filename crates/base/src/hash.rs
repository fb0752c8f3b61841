//! A quick hash for tables whose keys are numbers: of blocks, of inodes.
//!
//! Each table has a seed of its own, drawn at random: an image cannot choose numbers that all meet in one place.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

/// A table whose keys are numbers.
pub type NumberMap<K, V> = HashMap<K, V, NumberHash>;

/// Makes the hashers of one table.
#[derive(Debug, Clone, Copy)]
pub struct NumberHash {
    seed: u64,
}

impl Default for NumberHash {
    fn default() -> Self {
        Self {
            seed: RandomState::new().hash_one(0),
        }
    }
}

impl BuildHasher for NumberHash {
    type Hasher = NumberHasher;

    fn build_hasher(&self) -> NumberHasher {
        NumberHasher { state: self.seed }
    }
}

/// Hashes a few numbers. Made by [`NumberHash`].
#[derive(Debug, Clone, Copy)]
pub struct NumberHasher {
    state: u64,
}

/// Odd, with bits in no order: the golden ratio's.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hasher for NumberHasher {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            for (to, from) in word.iter_mut().zip(chunk) {
                *to = *from;
            }
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        // Both halves of the product, so that each bit of the number reaches all of the hash.
        let product = u128::from(self.state ^ number) * u128::from(FACTOR);
        self.state = (product as u64) ^ ((product >> 64) as u64);
    }

    fn finish(&self) -> u64 {
        self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// The fullest of 128 places, for keys that a file system has.
    fn fullest(keys: impl Iterator<Item = u64>, place: impl Fn(u64) -> u64) -> usize {
        let build = NumberHash { seed: 7 };
        let mut places = [0; 128];
        for key in keys {
            places[place(build.hash_one(key)) as usize] += 1;
        }
        places.into_iter().max().unwrap()
    }

    #[test]
    fn neighbours_and_multiples_spread() {
        for step in [1, 16, 4096, 32_768, 1 << 32] {
            // 100 each, if they were dealt out.
            let keys = || (0..12_800).map(|number| number * step);
            let (low, high) = (fullest(keys(), |h| h % 128), fullest(keys(), |h| h >> 57));
            assert!(low < 200 && high < 200, "step {step}: {low}, {high}");
        }
    }

    #[test]
    fn tables_have_seeds_of_their_own() {
        let seeds: HashSet<u64> = (0..10).map(|_| NumberHash::default().seed).collect();
        assert!(seeds.len() > 1);
    }

    #[test]
    fn bytes_count_too() {
        let build = NumberHash { seed: 7 };
        let names = ["", "a", "b", "ab", "a name longer than eight bytes"];
        let hashes: HashSet<u64> = names.iter().map(|name| build.hash_one(name)).collect();
        assert_eq!(hashes.len(), names.len());
    }
}
