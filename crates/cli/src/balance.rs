//! `sapwood balance`.

use std::path::{Path, PathBuf};

use sapwood::{BalanceFilter, BalanceOptions, BalanceState};
use serde_json::json;

use super::failure::{FAILED, Failure, Result, USAGE};
use super::{choice, device, interrupt, output, progress};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Image of a btrfs that nothing has mounted, or a directory in a mount by Sapwood. A word of
    /// `btrfs balance` may precede it: start, status, pause, resume, cancel
    image: PathBuf,
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
    /// Drop the balance that runs in the mount or was interrupted, so that nothing continues it
    #[arg(long, conflicts_with_all = ["data", "metadata", "system", "force"])]
    cancel: bool,
    /// End the balance that the daemon of the mount runs; --resume continues it
    #[arg(long, conflicts_with_all = ["data", "metadata", "system", "force", "resume", "cancel"])]
    pause: bool,
    /// Show whether a balance runs or was interrupted
    #[arg(long, conflicts_with_all = ["data", "metadata", "system", "force", "resume", "cancel",
        "pause"])]
    status: bool,
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

/// The action of a balance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Start,
    Resume,
    Cancel,
    Pause,
    Status,
}

impl Args {
    /// The image that the command opens first.
    pub(super) fn image_mut(&mut self) -> &mut PathBuf {
        match self.word().and(self.others.first_mut()) {
            Some(image) => image,
            None => &mut self.image,
        }
    }

    /// The action that the first operand names.
    fn word(&self) -> Option<Action> {
        match self.image.to_str()? {
            "start" => Some(Action::Start),
            "resume" => Some(Action::Resume),
            "cancel" => Some(Action::Cancel),
            "pause" => Some(Action::Pause),
            "status" => Some(Action::Status),
            _ => None,
        }
    }

    /// The image, further devices, and the action: an option, or a first operand that is one of the
    /// words of `btrfs balance` and is followed by an image.
    fn operands(&self) -> Result<(&PathBuf, &[PathBuf], Action)> {
        let options = [
            (self.resume, Action::Resume),
            (self.cancel, Action::Cancel),
            (self.pause, Action::Pause),
            (self.status, Action::Status),
        ];
        let option = options.into_iter().find(|(is_given, _)| *is_given);
        let option = option.map(|(_, action)| action);
        let (Some(word), Some((image, others))) = (self.word(), self.others.split_first()) else {
            return Ok((&self.image, &self.others, option.unwrap_or(Action::Start)));
        };
        let filters = [&self.data, &self.metadata, &self.system];
        let is_filtered = self.force || filters.iter().any(|filter| filter.is_some());
        if option.is_some() || (is_filtered && word != Action::Start) {
            let why =
                "filters, -f and options for a balance do not go with the word before the image";
            return Err(Failure::new(USAGE, why));
        }
        Ok((image, others, word))
    }
}

/// Shows the state of a balance.
fn status(image: &Path, opening: &sapwood::Options, json: bool) -> Result<()> {
    let state = sapwood::balance_state(image, opening).map_err(device::failure)?;
    let (name, running) = match state {
        BalanceState::Running { done, total } => ("running", Some((done, total))),
        BalanceState::Paused => ("paused", None),
        _ => ("none", None),
    };
    if json {
        let (done, total) = running.unzip();
        return output::object(&json!({ "state": name, "done": done, "total": total }));
    }
    let image = image.display();
    match running {
        Some((done, total)) => {
            let (done, total) = (output::size(done), output::size(total));
            output::line(format_args!("{image}: running, {done} of {total} done"))
        }
        None if state == BalanceState::Paused => {
            let line = "paused; `sapwood balance --resume` continues it";
            output::line(format_args!("{image}: {line}"))
        }
        None => output::line(format_args!("{image}: no balance")),
    }
}

/// Exit code 0: done; 1: a block group could not be moved; 3: the image could not be opened.
pub(super) fn run(args: &Args) -> Result<()> {
    let (image, others, action) = args.operands()?;
    device::check_others(image, others)?;
    let mut opening = choice::fixed(choice::opening(action == Action::Status))?;
    for other in others {
        opening.add_device(other);
    }
    let options = BalanceOptions {
        data: args.data.clone(),
        metadata: args.metadata.clone(),
        system: args.system.clone(),
        force: args.force,
        stop: interrupt::stop(),
    };
    match action {
        Action::Cancel => return sapwood::cancel_balance(image, &opening).map_err(device::failure),
        Action::Pause => return sapwood::pause_balance(image).map_err(device::failure),
        Action::Status => return status(image, &opening, args.json),
        Action::Start | Action::Resume => {}
    }
    let bar = progress::moving(args.quiet || args.json);
    let mut each = |step: sapwood::Progress<'_>| progress::show_moved(&bar, step);
    let done = if action == Action::Resume {
        sapwood::resume_balance(image, &opening, &options.stop, &mut each)
    } else {
        sapwood::balance(image, &opening, &options, &mut each)
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
            image.display()
        ))?;
    }
    if report.interrupted {
        let line = "ended early; unless it was cancelled, `sapwood balance --resume` continues, and \
                    a mount by the kernel does (without the option skip_balance)";
        return Err(Failure::new(FAILED, line));
    }
    Ok(())
}
