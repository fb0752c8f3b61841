//! A fast hash for tables whose keys are numbers of blocks or inodes.
//!
//! Each table has a random seed, so an image cannot choose numbers that all collide.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

/// A table with numbers as keys.
pub type NumberMap<K, V> = HashMap<K, V, NumberHash>;

/// Creates the hashers of one table.
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

/// Hashes a few numbers. Created by [`NumberHash`].
#[derive(Debug, Clone, Copy)]
pub struct NumberHasher {
    state: u64,
}

/// An odd number with irregular bits, from the golden ratio.
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
        // Both halves of the product, so that each bit of the number affects all of the hash.
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

    /// The most keys in one of 128 buckets, for keys that a file system has.
    fn fullest(keys: impl Iterator<Item = u64>, place: impl Fn(u64) -> u64) -> usize {
        let build = NumberHash { seed: 7 };
        let mut places = [0; 128];
        for key in keys {
            places[place(build.hash_one(key)) as usize] += 1;
        }
        places.into_iter().max().unwrap()
    }

    #[test]
    fn neighbours_and_multiples_spread_evenly() {
        for step in [1, 16, 4096, 32_768, 1 << 32] {
            // An even distribution has 100 in each.
            let keys = || (0..12_800).map(|number| number * step);
            let (low, high) = (fullest(keys(), |h| h % 128), fullest(keys(), |h| h >> 57));
            assert!(low < 200 && high < 200, "step {step}: {low}, {high}");
        }
    }

    #[test]
    fn each_table_has_its_own_seed() {
        let seeds: HashSet<u64> = (0..10).map(|_| NumberHash::default().seed).collect();
        assert!(seeds.len() > 1);
    }

    #[test]
    fn byte_keys_hash_differently() {
        let build = NumberHash { seed: 7 };
        let names = ["", "a", "b", "ab", "a name longer than eight bytes"];
        let hashes: HashSet<u64> = names.iter().map(|name| build.hash_one(name)).collect();
        assert_eq!(hashes.len(), names.len());
    }
}
