//! Numbered faults that are planted in the product to show that the tests find them.
//!
//! # How it works
//!
//! A product crate calls [`planted`] at the place of a fault, and behaves wrongly if it returns
//! true:
//!
//! ```
//! # fn flush() {}
//! if !sapwood_fault::planted(201) {
//!     flush();
//! }
//! ```
//!
//! Without the feature `plant` the result is the constant `false`, so a normal build has neither
//! the branch nor the fault. With it, the environment variable `SAPWOOD_FAULT` holds the number of
//! the single fault that is active in the process.
//!
//! `faults.tsv` beside this crate's manifest lists every number with the test that must fail
//! while the fault is active and pass while it is not. `make faults` runs both for each of them.
//!
//! | numbers | crate |
//! |---|---|
//! | 1 to 99 | `btrfs`, `btrfs-format` |
//! | 100 to 199 | `ext4`, `ext4-format`, `jbd2` |
//! | 200 to 249 | `block`, `base` |
//! | 250 to 349 | `fuse` |
//! | 350 to 399 | `sapwood` |

/// Name of the environment variable that holds the number of the active fault.
pub const VARIABLE: &str = "SAPWOOD_FAULT";

/// Whether fault `number` is active in this process. Always false without the feature `plant`.
#[cfg(not(feature = "plant"))]
#[inline(always)]
#[must_use]
pub const fn planted(number: u32) -> bool {
    let _ = number;
    false
}

/// Whether fault `number` is active in this process: [`VARIABLE`] holds it. The variable is
/// read once.
#[cfg(feature = "plant")]
#[must_use]
pub fn planted(number: u32) -> bool {
    static ACTIVE: std::sync::OnceLock<Option<u32>> = std::sync::OnceLock::new();
    *ACTIVE.get_or_init(|| std::env::var(VARIABLE).ok()?.parse().ok()) == Some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_variable_no_fault_is_active() {
        if std::env::var_os(VARIABLE).is_none() {
            assert!((0..1000).all(|number| !planted(number)));
        }
    }
}
