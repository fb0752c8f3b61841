//! `sapwood quota`: the quota groups of a btrfs.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use sapwood::{LimitChange, QuotaChange, QuotaGroup, QuotaGroupId};
use serde_json::{Value, json};

use super::failure::{FAILED, Failure, Result, USAGE};
use super::{choice, device, output, sizes};

pub(super) const EXAMPLES: &[(&str, &str)] = &[
    (
        "sapwood quota enable disk.img",
        "keep the usage of each subvolume",
    ),
    (
        "sapwood quota limit -r 10G disk.img 257",
        "subvolume 257 refers to 10 GiB at most",
    ),
    ("sapwood quota show disk.img", "usage and limits"),
];
pub(super) const SHOW_EXAMPLES: &[(&str, &str)] = &[
    (
        "sapwood quota show disk.img",
        "usage and limits of all groups",
    ),
    (
        "sapwood quota show --json mnt",
        "the same of a mount, for programs",
    ),
];
pub(super) const ENABLE_EXAMPLES: &[(&str, &str)] = &[(
    "sapwood quota enable disk.img",
    "keep the usage of each subvolume",
)];
pub(super) const DISABLE_EXAMPLES: &[(&str, &str)] = &[(
    "sapwood quota disable disk.img",
    "delete all groups with their limits",
)];
pub(super) const RESCAN_EXAMPLES: &[(&str, &str)] = &[(
    "sapwood quota rescan disk.img",
    "after another program wrote without keeping the usage",
)];
pub(super) const LIMIT_EXAMPLES: &[(&str, &str)] = &[
    (
        "sapwood quota limit -r 10G disk.img 257",
        "subvolume 257 refers to 10 GiB at most",
    ),
    (
        "sapwood quota limit -r none -e 1G mnt 1/100",
        "only the bytes that no other subvolume shares are limited",
    ),
];
pub(super) const CREATE_EXAMPLES: &[(&str, &str)] = &[(
    "sapwood quota create disk.img 1/100",
    "a group for several subvolumes",
)];
pub(super) const REMOVE_EXAMPLES: &[(&str, &str)] =
    &[("sapwood quota remove disk.img 1/100", "delete that group")];
pub(super) const ASSIGN_EXAMPLES: &[(&str, &str)] = &[(
    "sapwood quota assign disk.img 257 1/100",
    "count subvolume 257 in the group",
)];
pub(super) const UNASSIGN_EXAMPLES: &[(&str, &str)] = &[(
    "sapwood quota unassign disk.img 257 1/100",
    "count it there no more",
)];

/// Operand of most commands.
const IMAGE: &str =
    "Image of a btrfs that nothing has mounted, or a directory in a mount by Sapwood";

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Show the quota groups with their usage and limits
    Show {
        #[arg(help = IMAGE)]
        image: PathBuf,
        /// Print bytes as plain numbers
        #[arg(long)]
        raw: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Turn quotas on, with a group for each subvolume
    Enable {
        #[arg(help = IMAGE)]
        image: PathBuf,
        /// Count an extent only for the subvolume that it was allocated for, from now on: faster,
        /// and for Linux 6.7 or later
        #[arg(long)]
        simple: bool,
    },
    /// Turn quotas off, and delete all groups with their limits
    Disable {
        #[arg(help = IMAGE)]
        image: PathBuf,
    },
    /// Count the usage of all groups anew
    Rescan {
        #[arg(help = IMAGE)]
        image: PathBuf,
    },
    /// Change the limits of a group
    Limit {
        #[arg(help = IMAGE)]
        image: PathBuf,
        /// Group: LEVEL/ID, or the id of a subvolume
        group: QuotaGroupId,
        /// Most bytes that its subvolumes refer to: a size, or none
        #[arg(
            short,
            long,
            value_name = "SIZE",
            required_unless_present = "exclusive"
        )]
        referenced: Option<Limit>,
        /// Most bytes that only its subvolumes refer to: a size, or none
        #[arg(short, long, value_name = "SIZE")]
        exclusive: Option<Limit>,
    },
    /// Make a group
    Create {
        #[arg(help = IMAGE)]
        image: PathBuf,
        /// New group: LEVEL/ID
        group: QuotaGroupId,
    },
    /// Delete a group without members
    Remove {
        #[arg(help = IMAGE)]
        image: PathBuf,
        /// Group: LEVEL/ID
        group: QuotaGroupId,
    },
    /// Make a group a member of one with a higher level
    Assign {
        #[arg(help = IMAGE)]
        image: PathBuf,
        /// Member: LEVEL/ID, or the id of a subvolume
        member: QuotaGroupId,
        /// Group of a higher level: LEVEL/ID
        group: QuotaGroupId,
    },
    /// End the membership of a group in another one
    Unassign {
        #[arg(help = IMAGE)]
        image: PathBuf,
        /// Member: LEVEL/ID, or the id of a subvolume
        member: QuotaGroupId,
        /// Group that it leaves: LEVEL/ID
        group: QuotaGroupId,
    },
}

/// A limit as an argument.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limit(LimitChange);

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if text == "none" {
            return Ok(Self(LimitChange::Remove));
        }
        Ok(Self(LimitChange::Set(sizes::size(text)?)))
    }
}

impl Command {
    /// The image that the command opens.
    pub(super) fn image_mut(&mut self) -> &mut PathBuf {
        match self {
            Self::Show { image, .. }
            | Self::Enable { image, .. }
            | Self::Disable { image }
            | Self::Rescan { image }
            | Self::Limit { image, .. }
            | Self::Create { image, .. }
            | Self::Remove { image, .. }
            | Self::Assign { image, .. }
            | Self::Unassign { image, .. } => image,
        }
    }
}

/// Exit code 0: done; 1: refused, for example an unknown group, or the usage of `show` is not up to
/// date; 3: the image could not be opened.
pub(super) fn run(command: &Command) -> Result<()> {
    let kept = |limit: Option<Limit>| limit.map_or(LimitChange::Keep, |limit| limit.0);
    let (image, change) = match command {
        Command::Show { image, raw, json } => return show(image, *raw, *json),
        Command::Enable {
            image,
            simple: false,
        } => (image, QuotaChange::Enable),
        Command::Enable { image, .. } => (image, QuotaChange::EnableSimple),
        Command::Disable { image } => (image, QuotaChange::Disable),
        Command::Rescan { image } => (image, QuotaChange::Rescan),
        Command::Limit {
            image,
            group,
            referenced,
            exclusive,
        } => {
            let change = QuotaChange::Limit {
                group: *group,
                referenced: kept(*referenced),
                exclusive: kept(*exclusive),
            };
            (image, change)
        }
        Command::Create { image, group } if group.level == 0 => {
            let why = format!(
                "{group}: groups of level 0 belong to subvolumes and are made with them; {}",
                "choose a level from 1 on, for example 1/100"
            );
            return Err(Failure::new(USAGE, format!("{}: {why}", image.display())));
        }
        Command::Create { image, group } => (image, QuotaChange::Create(*group)),
        Command::Remove { image, group } => (image, QuotaChange::Remove(*group)),
        Command::Assign {
            image,
            member,
            group,
        } => {
            let (member, group) = (*member, *group);
            (image, QuotaChange::Assign { member, group })
        }
        Command::Unassign {
            image,
            member,
            group,
        } => {
            let (member, group) = (*member, *group);
            (image, QuotaChange::Unassign { member, group })
        }
    };
    let opening = choice::fixed(choice::opening(false))?;
    sapwood::change_quotas(image, &opening, change).map_err(device::failure)
}

fn show(image: &Path, raw: bool, json: bool) -> Result<()> {
    let opening = choice::opening(true);
    let found = sapwood::quotas(image, &opening).map_err(device::failure)?;
    let Some(quotas) = found else {
        if json {
            return output::object(&json!({ "enabled": false }));
        }
        let line = "quotas are off; `sapwood quota enable` turns them on";
        return output::line(format_args!("{}: {line}", image.display()));
    };
    if json {
        let groups: Vec<Value> = quotas.groups.iter().map(as_json).collect();
        output::object(&json!({
            "enabled": true, "consistent": quotas.consistent, "groups": groups,
        }))?;
    } else {
        list(&quotas.groups, raw)?;
    }
    if quotas.consistent {
        return Ok(());
    }
    let line = "the usage is not up to date, and limits are not enforced";
    let failure = Failure::new(FAILED, format!("{}: {line}", image.display()));
    Err(failure.advise("`sapwood quota rescan` counts it anew"))
}

fn list(groups: &[QuotaGroup], raw: bool) -> Result<()> {
    let size = |bytes: u64| {
        if raw {
            bytes.to_string()
        } else {
            output::size(bytes)
        }
    };
    let limit = |most: Option<u64>| most.map_or_else(|| "none".to_owned(), size);
    let line = |[id, referenced, exclusive, most, most_exclusive, parents]: [&str; 6]| {
        let text = format!(
            "{id:<10} {referenced:>12} {exclusive:>12} {most:>12} {most_exclusive:>14}  {parents}"
        );
        output::line(text.trim_end())
    };
    line([
        "GROUP",
        "REFERENCED",
        "EXCLUSIVE",
        "LIMIT",
        "EXCL. LIMIT",
        "MEMBER OF",
    ])?;
    for group in groups {
        let parents: Vec<String> = group.parents.iter().map(ToString::to_string).collect();
        line([
            &group.id.to_string(),
            &size(group.referenced),
            &size(group.exclusive),
            &limit(group.max_referenced),
            &limit(group.max_exclusive),
            &parents.join(" "),
        ])?;
    }
    Ok(())
}

fn as_json(group: &QuotaGroup) -> Value {
    let parents: Vec<String> = group.parents.iter().map(ToString::to_string).collect();
    json!({
        "group": group.id.to_string(), "referenced": group.referenced,
        "exclusive": group.exclusive, "max_referenced": group.max_referenced,
        "max_exclusive": group.max_exclusive, "parents": parents,
    })
}
