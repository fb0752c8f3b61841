//! `sapwood balance`.

use std::path::PathBuf;

use sapwood::{BalanceFilter, BalanceOptions};
use serde_json::json;

use super::failure::{FAILED, Failure, Result};
use super::{choice, device, interrupt, output, progress};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Image of a btrfs that nothing has mounted, or a directory in a mount by Sapwood
    pub(super) image: PathBuf,
    /// Further devices of it; the same as --device
    #[arg(value_name = "DEVICE")]
    others: Vec<PathBuf>,
    /// Data: usage=N, profiles=P|P, devid=N, limit=N, convert=PROFILE, soft; all without a filter
    #[arg(short, long, value_name = "FILTERS", num_args = 0..=1, default_missing_value = "",
        require_equals = false, hide_default_value = true)]
    data: Option<BalanceFilter>,
    /// Metadata, with the same filters; the chunk tree too, unless -s is given
    #[arg(short, long, value_name = "FILTERS", num_args = 0..=1, default_missing_value = "")]
    metadata: Option<BalanceFilter>,
    /// The chunk tree, with the same filters
    #[arg(short, long, value_name = "FILTERS", num_args = 0..=1, default_missing_value = "")]
    system: Option<BalanceFilter>,
    /// Continue the balance that was interrupted, here or by the kernel, with its filters
    #[arg(long, conflicts_with_all = ["data", "metadata", "system", "force", "cancel"])]
    resume: bool,
    /// Drop the balance that was interrupted, so that nothing continues it
    #[arg(long, conflicts_with_all = ["data", "metadata", "system", "force"])]
    cancel: bool,
    /// Convert metadata to fewer copies
    #[arg(short, long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print errors only
    #[arg(short, long)]
    quiet: bool,
}

/// Exit code 0: done; 1: a block group could not be moved; 3: the image could not be opened.
pub(super) fn run(args: &Args) -> Result<()> {
    device::check_others(&args.image, &args.others)?;
    let mut opening = choice::fixed(choice::opening(false))?;
    for other in &args.others {
        opening.add_device(other);
    }
    let options = BalanceOptions {
        data: args.data.clone(),
        metadata: args.metadata.clone(),
        system: args.system.clone(),
        force: args.force,
        stop: interrupt::stop(),
    };
    if args.cancel {
        return sapwood::cancel_balance(&args.image, &opening).map_err(device::failure);
    }
    let bar = progress::moving(args.quiet || args.json);
    let mut each = |step: sapwood::Progress<'_>| progress::show_moved(&bar, step);
    let done = if args.resume {
        sapwood::resume_balance(&args.image, &opening, &options.stop, &mut each)
    } else {
        sapwood::balance(&args.image, &opening, &options, &mut each)
    };
    bar.finish_and_clear();
    let report = done.map_err(device::failure)?;
    if args.json {
        output::object(&json!({
            "groups": report.groups, "chosen": report.chosen, "changed": report.changed,
            "moved": report.moved, "interrupted": report.interrupted,
        }))?;
    } else if !args.quiet {
        let (chosen, groups) = (report.chosen, report.groups);
        let moved = output::size(report.moved);
        let changed = report.changed;
        output::line(format_args!(
            "{}: {chosen} of {groups} block groups chosen, {changed} changed, {moved} moved",
            args.image.display()
        ))?;
    }
    if report.interrupted {
        let line = "ended early; `sapwood balance --resume` continues, and a mount by the kernel \
                    does (without the option skip_balance)";
        return Err(Failure::new(FAILED, line));
    }
    Ok(())
}
