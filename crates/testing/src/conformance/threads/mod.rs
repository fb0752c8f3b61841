//! Many threads at once. The outcome of a case does not depend on the order of its threads: each
//! thread uses inodes of its own, or the checked property holds in any order.

mod content;
mod names;

use std::sync::atomic::{AtomicUsize, Ordering};

use super::case::Case;
use super::support::{Outcome, check};
use sapwood_vfs::{Error, Result};

pub(super) fn cases() -> Vec<Case> {
    [names::cases(), content::cases()].concat()
}

const THREADS: usize = 8;

/// Counts the successes; any error except `allowed` is a fault.
#[track_caller]
fn tally<T>(result: Result<T>, allowed: &[Error], wins: &AtomicUsize) -> Outcome {
    match result {
        Ok(_) => {
            wins.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
        Err(error) => check(allowed.contains(&error), format_args!("{error:?}")),
    }
}
