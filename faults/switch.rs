//! The switch of the planted faults. `scripts/faults` links it into its copy of the tree.

use std::sync::OnceLock;

/// Whether fault `number` is active in this process: the environment variable `SAPWOOD_FAULT`
/// holds its number. The variable is read once.
pub fn planted(number: u32) -> bool {
    static ACTIVE: OnceLock<Option<u32>> = OnceLock::new();
    *ACTIVE.get_or_init(|| std::env::var("SAPWOOD_FAULT").ok()?.parse().ok()) == Some(number)
}
