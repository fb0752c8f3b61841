//! `sapwood device`: the devices of a btrfs.

use std::path::{Path, PathBuf};

use sapwood::internal::{DaemonError, DevicesError};
use sapwood::{DeviceChoice, DeviceSpace};
use serde_json::{Value, json};

use super::failure::{DEVICES, FAILED, Failure, IMAGE, Result, USAGE};
use super::{choice, interrupt, output, progress};

pub(super) const EXAMPLES: &[(&str, &str)] = &[(
    "sapwood device add a.img b.img",
    "a.img has b.img as its second device from now on",
)];
pub(super) const ADD_EXAMPLES: &[(&str, &str)] = &[
    (
        "sapwood device add a.img b.img",
        "a.img has b.img as its second device from now on",
    ),
    (
        "sapwood device add mnt /dev/sdc",
        "a mount, which stays in use",
    ),
];
pub(super) const REMOVE_EXAMPLES: &[(&str, &str)] = &[
    (
        "sapwood device remove a.img b.img c.img",
        "everything on c.img moves to a.img and b.img",
    ),
    (
        "sapwood device remove a.img b.img missing",
        "the copies that a lost device had are made anew on the others",
    ),
];
pub(super) const REPLACE_EXAMPLES: &[(&str, &str)] = &[
    (
        "sapwood device replace a.img b.img new.img",
        "new.img gets everything that is on b.img",
    ),
    (
        "sapwood device replace mnt /dev/sdb /dev/sdc",
        "the same in a mount by Sapwood, which stays in use",
    ),
    (
        "sapwood device replace --degraded a.img missing new.img",
        "a lost device is rebuilt from the others",
    ),
];
pub(super) const USAGE_EXAMPLES: &[(&str, &str)] = &[(
    "sapwood device usage a.img b.img",
    "block groups and unallocated space of both",
)];

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Add a device
    Add {
        /// Devices of the btrfs that nothing has mounted, or a directory in a mount by Sapwood, and
        /// last the new one
        #[arg(value_name = "IMAGE", num_args = 2.., required = true)]
        images: Vec<PathBuf>,
        /// Overwrite what the new device contains
        #[arg(short, long)]
        force: bool,
        /// Print errors only
        #[arg(short, long)]
        quiet: bool,
    },
    /// Move everything from a device to the others, and take it out
    Remove {
        /// Devices of the btrfs that nothing has mounted, or a directory in a mount by Sapwood, and
        /// last the one to remove: its id, its file, or missing
        #[arg(value_name = "IMAGE", num_args = 2.., required = true)]
        images: Vec<PathBuf>,
        /// Print errors only
        #[arg(short, long)]
        quiet: bool,
    },
    /// Replace a device by another one, which gets its id
    Replace {
        /// Devices of the btrfs that nothing has mounted, or a directory in a mount by Sapwood, then
        /// the one to replace (its id, its file, or missing), and last the new one
        #[arg(value_name = "IMAGE", num_args = 3.., required = true)]
        images: Vec<PathBuf>,
        /// Overwrite what the new device contains, and use it even if bytes have no good copy
        #[arg(short, long)]
        force: bool,
        /// Print errors only
        #[arg(short, long)]
        quiet: bool,
    },
    /// Show how much of each device belongs to block groups
    Usage {
        /// Devices of the btrfs
        #[arg(value_name = "IMAGE", required = true)]
        images: Vec<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

impl Command {
    /// The image that the command opens first.
    pub(super) fn image(&mut self) -> Option<&mut PathBuf> {
        match self {
            Self::Add { images, .. }
            | Self::Remove { images, .. }
            | Self::Replace { images, .. }
            | Self::Usage { images, .. } => images.first_mut(),
        }
    }
}

pub(super) fn run(command: &Command) -> Result<()> {
    match command {
        Command::Add {
            images,
            force,
            quiet,
        } => add(images, *force, *quiet),
        Command::Remove { images, quiet } => remove(images, *quiet),
        Command::Replace {
            images,
            force,
            quiet,
        } => replace(images, *force, *quiet),
        Command::Usage { images, json } => usage(images, *json),
    }
}

/// The last operand, the image, and options with the devices between them.
fn operands(images: &[PathBuf]) -> Result<(&PathBuf, &PathBuf, sapwood::Options)> {
    let [image, others @ .., last] = images else {
        return Err(Failure::new(USAGE, "an image and a device are needed"));
    };
    check_others(image, others)?;
    let mut opening = choice::fixed(choice::opening(false))?;
    for other in others {
        opening.add_device(other);
    }
    Ok((last, image, opening))
}

/// Refuses further devices of a mount.
pub(super) fn check_others(image: &Path, others: &[PathBuf]) -> Result<()> {
    if image.is_dir() && !others.is_empty() {
        let why = "the daemon of a mount knows its devices; name only the directory";
        return Err(Failure::new(USAGE, why));
    }
    Ok(())
}

fn add(images: &[PathBuf], force: bool, quiet: bool) -> Result<()> {
    let (new, image, opening) = operands(images)?;
    let added = sapwood::add_device(image, &opening, new, force).map_err(failure)?;
    if quiet {
        return Ok(());
    }
    let (image, new) = (image.display(), new.display());
    output::line(format_args!("{image}: {new} is device {added} now"))
}

/// The operands without images that are the last one again.
fn without_repeated(images: &[PathBuf]) -> Vec<PathBuf> {
    let real = |path: &PathBuf| path.canonicalize().ok();
    let Some((last, before)) = images.split_last() else {
        return Vec::new();
    };
    let own = real(last);
    let other = |image: &&PathBuf| own.is_none() || real(image) != own;
    let mut kept: Vec<PathBuf> = before.iter().filter(other).cloned().collect();
    if kept.is_empty() {
        return images.to_vec();
    }
    kept.push(last.clone());
    kept
}

/// A device of an operand.
fn choice_of(operand: &Path) -> DeviceChoice {
    match operand.to_str().map(str::parse) {
        Some(Ok(choice)) => choice,
        _ => DeviceChoice::Path(operand.to_owned()),
    }
}

fn replace(images: &[PathBuf], force: bool, quiet: bool) -> Result<()> {
    let Some((new, members)) = images.split_last() else {
        return Err(Failure::new(USAGE, "an image and two devices are needed"));
    };
    let members = without_repeated(members);
    let (source, image, opening) = operands(&members)?;
    let choice = choice_of(source);
    let stop = interrupt::stop();
    let bar = progress::moving(quiet);
    let places = (&choice, new.as_path());
    let replaced = sapwood::replace_device(image, &opening, places, force, &stop, &mut |step| {
        progress::show_moved(&bar, step);
    });
    bar.finish_and_clear();
    let report = replaced.map_err(failure)?;
    let (image, new) = (image.display(), new.display());
    if report.interrupted {
        let line = "ended early, nothing is replaced";
        return Err(Failure::new(FAILED, line));
    }
    if report.old_is_left {
        let line = format_args!(
            "{new} is device {} now, but the superblocks of the old device could not be erased: \
             detach it",
            report.devid
        );
        return Err(Failure::new(FAILED, line));
    }
    if report.unreadable > 0 {
        let line = format_args!(
            "{new} is device {} now, but {} bytes had no copy that could be read: they are zeros",
            report.devid, report.unreadable
        );
        let failure = Failure::new(FAILED, line);
        return Err(failure.advise("`sapwood scrub` names the files"));
    }
    if quiet {
        return Ok(());
    }
    output::line(format_args!(
        "{image}: {new} is device {} now",
        report.devid
    ))
}

fn remove(images: &[PathBuf], quiet: bool) -> Result<()> {
    let images = without_repeated(images);
    let (last, image, opening) = operands(&images)?;
    let choice = choice_of(last);
    let stop = interrupt::stop();
    let bar = progress::moving(quiet);
    let removed = sapwood::remove_device(image, &opening, &choice, &stop, &mut |step| {
        progress::show_moved(&bar, step);
    });
    bar.finish_and_clear();
    if !removed.map_err(failure)? {
        let line = "ended early, the device is not removed; the same command continues";
        return Err(Failure::new(FAILED, line));
    }
    if quiet {
        return Ok(());
    }
    let (image, last) = (image.display(), last.display());
    output::line(format_args!("{image}: device {last} is removed"))
}

fn usage(images: &[PathBuf], json: bool) -> Result<()> {
    let mut opening = choice::opening(true);
    let Some((image, others)) = images.split_first() else {
        return Ok(());
    };
    for other in others {
        opening.add_device(other);
    }
    let used = sapwood::device_usage(image, &opening).map_err(failure)?;
    if json {
        let devices: Vec<Value> = used.iter().map(as_json).collect();
        return output::object(&json!({ "devices": devices }));
    }
    for device in &used {
        let name = device.name.as_deref().unwrap_or("missing");
        let size = output::size(device.size);
        output::line(format_args!("{name}, device {}: {size}", device.devid))?;
        for part in &device.allocated {
            let what = format!("{}, {}", part.content, part.profile);
            let bytes = output::size(part.bytes);
            output::line(format_args!("  {what:<24} {bytes:>10}"))?;
        }
        let rest = output::size(device.unallocated);
        output::line(format_args!("  {:<24} {rest:>10}", "unallocated"))?;
        if device.slack > 0 {
            let slack = output::size(device.slack);
            output::line(format_args!("  {:<24} {slack:>10}", "past the end"))?;
        }
    }
    Ok(())
}

fn as_json(device: &DeviceSpace) -> Value {
    let parts = device.allocated.iter().map(
        |part| json!({ "content": part.content, "profile": part.profile, "bytes": part.bytes }),
    );
    json!({
        "devid": device.devid, "name": device.name, "size": device.size, "slack": device.slack,
        "allocated": parts.collect::<Vec<_>>(), "unallocated": device.unallocated,
    })
}

/// An error of a balance, of quotas or of a change of the devices.
pub(super) fn failure(error: sapwood::Error) -> Failure {
    use sapwood::internal::btrfs::Error;
    use sapwood::internal::btrfs::balance::BalanceError;
    use sapwood::internal::btrfs::membership::MembershipError;
    let part = error.downcast_ref::<DevicesError>();
    let engine = match part {
        Some(DevicesError::Balance { source, .. }) => match &**source {
            BalanceError::Engine(error) => Some(error),
            _ => None,
        },
        Some(DevicesError::Membership { source, .. }) => match &**source {
            MembershipError::Engine(error) => Some(error),
            _ => None,
        },
        Some(DevicesError::Quota { source, .. }) => match &**source {
            Error::NoQuotas
            | Error::SimpleQuotas
            | Error::FullQuotas
            | Error::NoSuchGroup { .. }
            | Error::QuotaGroup { .. } => None,
            error => Some(error),
        },
        Some(DevicesError::Daemon(DaemonError::Mount { .. })) => return Failure::new(IMAGE, error),
        Some(DevicesError::Open(_)) | None => return error.into(),
        Some(_) => None,
    };
    match engine {
        Some(Error::MissingDevice { .. }) => Failure::new(IMAGE, error).advise(DEVICES),
        Some(_) => Failure::new(IMAGE, error),
        None => Failure::new(FAILED, error),
    }
}
