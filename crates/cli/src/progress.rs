//! Progress of long work, on a terminal only.

use indicatif::{ProgressBar, ProgressStyle};

/// A counter of things whose number is not known.
pub(super) fn items(what: &'static str) -> ProgressBar {
    bar(
        ProgressBar::no_length(),
        ProgressStyle::with_template("{msg} {pos} {spinner} {elapsed}"),
        what,
    )
}

fn bar(
    bar: ProgressBar,
    style: Result<ProgressStyle, indicatif::style::TemplateError>,
    what: &'static str,
) -> ProgressBar {
    // A template of ours that does not parse leaves the default look.
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar.set_message(what);
    bar
}
