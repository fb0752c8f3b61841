//! Hashes of names in directories with a hash tree.
//!
//! There are three kinds, each for name bytes as signed and as unsigned numbers: the "legacy"
//! product hash, MD4 with three rounds of eight steps over 32 bytes at a time, and TEA as a
//! compression function over 16 bytes at a time. Bit 0 of the result is cleared (it is the
//! continuation bit of the tree), and the highest value is reserved as an end mark. Source: kernel
//! documentation, `filesystems/ext4/directory.rst` and `super.rst`; RFC 1320 (MD4); Wheeler and
//! Needham (TEA).

/// Kind of a directory hash, with the signedness of name bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HashVersion {
    /// Product hash, signed bytes.
    Legacy,
    /// Half MD4, signed bytes.
    HalfMd4,
    /// TEA, signed bytes.
    Tea,
    /// Product hash, unsigned bytes.
    LegacyUnsigned,
    /// Half MD4, unsigned bytes.
    HalfMd4Unsigned,
    /// TEA, unsigned bytes.
    TeaUnsigned,
    /// SipHash with the directory's encryption key; only encrypted casefolded directories, whose
    /// entries carry it.
    SipHash,
}

impl HashVersion {
    /// From the number in an htree root or the superblock's default, and the superblock's flag
    /// "unsigned hash". The numbers in roots are 0 to 2, regardless of the signedness.
    pub fn from_disk(number: u8, unsigned: bool) -> Option<Self> {
        match (number, unsigned) {
            (0, false) => Some(HashVersion::Legacy),
            (1, false) => Some(HashVersion::HalfMd4),
            (2, false) => Some(HashVersion::Tea),
            (3, _) | (0, true) => Some(HashVersion::LegacyUnsigned),
            (4, _) | (1, true) => Some(HashVersion::HalfMd4Unsigned),
            (5, _) | (2, true) => Some(HashVersion::TeaUnsigned),
            (6, _) => Some(HashVersion::SipHash),
            _ => None,
        }
    }

    /// The number for an htree root.
    pub fn to_disk(self) -> u8 {
        match self {
            HashVersion::Legacy | HashVersion::LegacyUnsigned => 0,
            HashVersion::HalfMd4 | HashVersion::HalfMd4Unsigned => 1,
            HashVersion::Tea | HashVersion::TeaUnsigned => 2,
            HashVersion::SipHash => 6,
        }
    }

    fn signed(self) -> bool {
        matches!(
            self,
            HashVersion::Legacy | HashVersion::HalfMd4 | HashVersion::Tea
        )
    }
}

/// Hash of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct NameHash {
    /// The hash that the tree is sorted by; bit 0 is clear.
    pub major: u32,
    /// Orders names of the same hash; 0 for the legacy kind.
    pub minor: u32,
}

/// Highest hash value, used by readers as "end of directory"; no name has it.
const END_MARK: u32 = 0xffff_fffe;
/// Start values of MD4, used if the superblock has no seed.
const DEFAULT_SEED: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];

/// Hashes names of one file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirHasher {
    version: HashVersion,
    seed: [u32; 4],
}

impl DirHasher {
    /// `seed` is the superblock's hash seed; all zero means the default.
    pub fn new(version: HashVersion, seed: [u32; 4]) -> Self {
        let seed = if seed == [0; 4] { DEFAULT_SEED } else { seed };
        DirHasher { version, seed }
    }

    /// Kind of the hash.
    pub fn version(&self) -> HashVersion {
        self.version
    }

    /// Hash of a name (in a casefolded directory: of its folded form). `None` for
    /// [`HashVersion::SipHash`], which needs the directory's key.
    pub fn hash(&self, name: &[u8]) -> Option<NameHash> {
        let signed = self.version.signed();
        let (major, minor) = match self.version {
            HashVersion::Legacy | HashVersion::LegacyUnsigned => (legacy(name, signed), 0),
            HashVersion::HalfMd4 | HashVersion::HalfMd4Unsigned => {
                let mut state = self.seed;
                fold::<8>(name, signed, |words| half_md4(&mut state, words));
                (state[1], state[2])
            }
            HashVersion::Tea | HashVersion::TeaUnsigned => {
                let mut state = self.seed;
                fold::<4>(name, signed, |words| tea(&mut state, words));
                (state[0], state[1])
            }
            HashVersion::SipHash => return None,
        };
        let major = match major & !1 {
            END_MARK => END_MARK - 2,
            other => other,
        };
        Some(NameHash { major, minor })
    }
}

/// A byte of a name as the 32-bit number that the hashes add.
fn widen(byte: u8, signed: bool) -> u32 {
    if signed {
        i32::from(byte as i8) as u32
    } else {
        u32::from(byte)
    }
}

fn legacy(name: &[u8], signed: bool) -> u32 {
    const FACTOR: u32 = 7_152_373;
    let (mut last, mut before) = (0x12a3_fe2d_u32, 0x37ab_e8f9_u32);
    for &byte in name {
        let mut next = before.wrapping_add(last ^ widen(byte, signed).wrapping_mul(FACTOR));
        if next >> 31 == 1 {
            next = next.wrapping_sub(0x7fff_ffff);
        }
        (before, last) = (last, next);
    }
    last << 1
}

/// Splits a name into chunks of `N` words and passes each to `step`. A word takes four bytes, the
/// first highest. The rest of the last word and chunk is filled with the length of the remaining
/// name. An empty name gives no chunk.
fn fold<const N: usize>(name: &[u8], signed: bool, mut step: impl FnMut(&[u32; N])) {
    let mut rest = name;
    while !rest.is_empty() {
        let fill = u32::from_ne_bytes([rest.len() as u8; 4]);
        let (chunk, behind) = rest.split_at(rest.len().min(4 * N));
        let mut words = [fill; N];
        for (word, bytes) in words.iter_mut().zip(chunk.chunks(4)) {
            *word = bytes.iter().fold(fill, |value, &byte| {
                (value << 8).wrapping_add(widen(byte, signed))
            });
        }
        step(&words);
        rest = behind;
    }
}

fn half_md4(state: &mut [u32; 4], words: &[u32; 8]) {
    type Mix = fn(u32, u32, u32) -> u32;
    let choose: Mix = |x, y, z| (x & y) | (!x & z);
    let majority: Mix = |x, y, z| (x & y) | (x & z) | (y & z);
    let parity: Mix = |x, y, z| x ^ y ^ z;
    let rounds: [(Mix, u32, [usize; 8], [u32; 4]); 3] = [
        (choose, 0, [0, 1, 2, 3, 4, 5, 6, 7], [3, 7, 11, 19]),
        (
            majority,
            0x5a82_7999,
            [1, 3, 5, 7, 0, 2, 4, 6],
            [3, 5, 9, 13],
        ),
        (
            parity,
            0x6ed9_eba1,
            [3, 7, 2, 6, 1, 5, 0, 4],
            [3, 9, 11, 15],
        ),
    ];
    let mut v = *state;
    for (mix, constant, order, shifts) in rounds {
        for (step, &word) in order.iter().enumerate() {
            let sum = v[0]
                .wrapping_add(mix(v[1], v[2], v[3]))
                .wrapping_add(words[word])
                .wrapping_add(constant);
            // The register just computed is the next step's second one.
            v = [v[3], sum.rotate_left(shifts[step % 4]), v[1], v[2]];
        }
    }
    for (old, new) in state.iter_mut().zip(v) {
        *old = old.wrapping_add(new);
    }
}

/// One TEA encryption, 16 cycles, of the state's first two words with the chunk as the key; added
/// to the state.
fn tea(state: &mut [u32; 4], key: &[u32; 4]) {
    const DELTA: u32 = 0x9e37_79b9;
    let (mut left, mut right, mut sum) = (state[0], state[1], 0_u32);
    let mix = |v: u32, sum: u32, k0: u32, k1: u32| {
        (v << 4).wrapping_add(k0) ^ v.wrapping_add(sum) ^ (v >> 5).wrapping_add(k1)
    };
    for _ in 0..16 {
        sum = sum.wrapping_add(DELTA);
        left = left.wrapping_add(mix(right, sum, key[0], key[1]));
        right = right.wrapping_add(mix(left, sum, key[2], key[3]));
    }
    state[0] = state[0].wrapping_add(left);
    state[1] = state[1].wrapping_add(right);
}
