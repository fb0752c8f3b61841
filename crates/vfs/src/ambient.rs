//! The sources of time and random numbers of a mount.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::Timestamp;

/// The clock and the random numbers of a mount: the machine's, or fixed ones. With fixed ones the
/// same operations on the same image give the same bytes.
#[derive(Debug)]
pub struct Ambient {
    fixed: Option<Fixed>,
}

#[derive(Debug)]
struct Fixed {
    time: Timestamp,
    /// State of the generator of numbers.
    state: AtomicU64,
}

/// Step of the state of `SplitMix64`, and of the hash of a seed.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl Ambient {
    /// The machine's clock, and numbers that differ in each process.
    #[must_use]
    pub fn machine() -> Self {
        Self { fixed: None }
    }

    /// A clock that stands still, and numbers that derive from `seed`, whose parts are hashed.
    #[must_use]
    pub fn fixed(time: Timestamp, seed: &[&[u8]]) -> Self {
        let mut state = 0;
        for part in seed {
            for byte in *part {
                state = mixed(state ^ u64::from(*byte)).wrapping_add(STEP);
            }
            state = mixed(state);
        }
        Self {
            fixed: Some(Fixed {
                time,
                state: AtomicU64::new(state),
            }),
        }
    }

    /// [`fixed`](Self::fixed) if there is a time, else [`machine`](Self::machine).
    #[must_use]
    pub fn new(time: Option<Timestamp>, seed: &[&[u8]]) -> Self {
        match time {
            Some(time) => Self::fixed(time, seed),
            None => Self::machine(),
        }
    }

    /// Whether neither the time nor the numbers depend on the machine.
    #[must_use]
    pub fn is_fixed(&self) -> bool {
        self.fixed.is_some()
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        match &self.fixed {
            Some(fixed) => fixed.time,
            None => Timestamp::now(),
        }
    }

    /// Seconds since 1970; 0 before.
    #[must_use]
    pub fn seconds(&self) -> u64 {
        self.now().since_epoch().as_secs()
    }

    /// A random number.
    #[must_use]
    pub fn random(&self) -> u32 {
        match &self.fixed {
            Some(fixed) => fixed.next() as u32,
            None => fastrand::u32(..),
        }
    }

    /// A random UUID.
    #[must_use]
    pub fn uuid(&self) -> [u8; 16] {
        let uuid = match &self.fixed {
            Some(fixed) => {
                let number = u128::from(fixed.next()) << 64 | u128::from(fixed.next());
                uuid::Builder::from_random_bytes(number.to_le_bytes()).into_uuid()
            }
            None => uuid::Uuid::new_v4(),
        };
        uuid.into_bytes()
    }
}

impl Default for Ambient {
    fn default() -> Self {
        Self::machine()
    }
}

impl Fixed {
    fn next(&self) -> u64 {
        mixed(self.state.fetch_add(STEP, Ordering::Relaxed))
    }
}

/// The output function of `SplitMix64`.
fn mixed(state: u64) -> u64 {
    let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_fixed_depends_on_the_seed_alone() {
        let time = Timestamp { sec: 7, nsec: 0 };
        let drawn = |seed: &[&[u8]]| {
            let ambient = Ambient::fixed(time, seed);
            assert_eq!((ambient.now(), ambient.seconds()), (time, 7));
            (ambient.random(), ambient.random(), ambient.uuid())
        };
        let one = drawn(&[b"a", b"b"]);
        assert_eq!(one, drawn(&[b"a", b"b"]));
        assert_ne!(one.0, one.1);
        for other in [&[b"ab".as_slice()] as &[&[u8]], &[b"a", b"c"], &[b"a"], &[]] {
            let other = drawn(other);
            assert!(other.0 != one.0 && other.2 != one.2);
        }
        let uuid = uuid::Uuid::from_bytes(one.2);
        assert_eq!(uuid.get_version_num(), 4);
    }

    #[test]
    fn the_machine_is_random() {
        let ambient = Ambient::machine();
        assert_ne!(ambient.uuid(), Ambient::machine().uuid());
        assert!(ambient.now() > Timestamp::default());
    }
}
