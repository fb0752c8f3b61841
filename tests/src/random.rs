//! Deterministic randomness: the same seed gives the same numbers on every machine.

/// A generator (splitmix64). Good enough to vary tests, and for nothing else.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Starts from a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`, which is not 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next_u64() % limit
    }

    /// Bytes that nothing compresses.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.next_u64().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }

    /// Text that every algorithm compresses well.
    pub fn text(&mut self, len: usize) -> Vec<u8> {
        const WORDS: [&str; 16] = [
            "sap", "wood", "leaf", "root", "node", "item", "key", "extent", "chunk", "stripe",
            "tree", "block", "group", "inode", "name", "log",
        ];
        let mut text = Vec::with_capacity(len + 8);
        while text.len() < len {
            let word = WORDS[usize::try_from(self.below(16)).unwrap()];
            text.extend_from_slice(word.as_bytes());
            text.push(b' ');
        }
        text.truncate(len);
        text
    }
}

/// The seed of this run: `SAPWOOD_SEED`, or the default of the test.
#[must_use]
pub fn seed(default: u64) -> u64 {
    let given = std::env::var("SAPWOOD_SEED").ok();
    given.and_then(|text| text.parse().ok()).unwrap_or(default)
}
