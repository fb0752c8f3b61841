//! Progress of long work, on a terminal only.

use indicatif::{ProgressBar, ProgressStyle};

/// A counter of things whose number is not known; hidden if `quiet`.
pub(super) fn items(quiet: bool, what: &'static str) -> ProgressBar {
    if quiet {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::no_length();
    // A template of ours that does not parse leaves the default look.
    if let Ok(style) = ProgressStyle::with_template("{msg} {pos} {spinner} {elapsed}") {
        bar.set_style(style);
    }
    bar.set_message(what);
    bar
}
