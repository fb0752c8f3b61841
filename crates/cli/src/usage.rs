//! The use of space: `sapwood df` and `sapwood du`.

mod df;
mod du;

use super::output;
pub(super) use df::{DfArgs, df};
pub(super) use du::{DuArgs, du};

/// A size as a number of KiB, or with a unit.
fn size(bytes: u64, human_readable: bool) -> String {
    if human_readable {
        output::human(bytes)
    } else {
        bytes.div_ceil(1024).to_string()
    }
}
