//! Mounts that are there already: `-o remount`, and a second mount of the same image.

use std::path::Path;

use crate::host::mount::control::{self, Daemon};
use crate::host::mount::{self, MountEntry};
use rustix::mount::MountFlags;
use sapwood::internal::options::{OptionError, table};
use sapwood::{Kind, Options};

use crate::failure::{Failure, MOUNT, Result};
use crate::output;

/// Options that the kernel keeps for each mount, with the flag and whether they set it.
const FLAGS: &[(&str, MountFlags, bool)] = &[
    ("ro", MountFlags::RDONLY, true),
    ("rw", MountFlags::RDONLY, false),
    ("nosuid", MountFlags::NOSUID, true),
    ("suid", MountFlags::NOSUID, false),
    ("nodev", MountFlags::NODEV, true),
    ("dev", MountFlags::NODEV, false),
    ("noexec", MountFlags::NOEXEC, true),
    ("exec", MountFlags::NOEXEC, false),
    ("sync", MountFlags::SYNCHRONOUS, true),
    ("async", MountFlags::SYNCHRONOUS, false),
    ("dirsync", MountFlags::DIRSYNC, true),
    ("noatime", MountFlags::NOATIME, true),
    ("atime", MountFlags::NOATIME, false),
    ("relatime", MountFlags::RELATIME, true),
    ("strictatime", MountFlags::STRICTATIME, true),
    ("lazytime", MountFlags::LAZYTIME, true),
    ("nolazytime", MountFlags::LAZYTIME, false),
    ("nosymfollow", MountFlags::NOSYMFOLLOW, true),
    ("nodiratime", MountFlags::NODIRATIME, true),
    ("diratime", MountFlags::NODIRATIME, false),
];

/// Flags that the kernel keeps for all mounts of a file system together.
const OF_ALL_MOUNTS: MountFlags = MountFlags::SYNCHRONOUS
    .union(MountFlags::DIRSYNC)
    .union(MountFlags::LAZYTIME);

/// Options that select the file system of an operand.
const OF_THE_OPERAND: &[&str] = &[
    "offset",
    "length",
    "partition",
    "format",
    "backing_files",
    "device",
];

/// `ST_NOSYMFOLLOW` of `statvfs`.
const ST_NOSYMFOLLOW: u32 = 0x2000;

/// Words that mount(8) adds from the mount table, which a remount cannot change.
const OF_THE_TABLE: &[&str] = &[
    "remount",
    "defaults",
    "user_id",
    "group_id",
    "blksize",
    "max_read",
    "default_permissions",
    "allow_other",
    "fsname",
    "subtype",
];

fn words(lists: &[String]) -> impl Iterator<Item = &str> {
    lists
        .iter()
        .flat_map(|list| list.split(','))
        .filter(|word| !word.is_empty())
}

fn name(word: &str) -> &str {
    word.split_once('=').map_or(word, |(name, _)| name)
}

/// Whether a remount is asked for.
pub(super) fn is_wanted(lists: &[String]) -> bool {
    words(lists).any(|word| word == "remount")
}

/// Changes the flags of the mount that `place` names: its directory, or its image. Options of the
/// engine stay as they are.
pub(super) fn run(place: &Path, lists: &[String]) -> Result<()> {
    let entry = found(place).ok_or_else(|| {
        Failure::local(place, "not the mount point of a Sapwood mount").with_code(MOUNT)
    })?;
    let dir = &*entry.point;
    let failed = |why: &dyn std::fmt::Display| Failure::local(dir, why).with_code(MOUNT);
    let mut flags = flags_now(dir).map_err(|error| failed(&error))?;
    let was_read_only = flags.contains(MountFlags::RDONLY);
    let daemon = control::daemon(dir).map_err(|error| failed(&error))?;
    let told = control::options(dir).ok();
    let in_effect = told.and_then(|text| Options::from_text(&text));
    for word in words(lists) {
        if let Some((_, flag, on)) = FLAGS.iter().find(|(flag, _, _)| *flag == word) {
            flags.set(*flag, *on);
            continue;
        }
        let of_the_table = OF_THE_TABLE.contains(&name(word)) || word.starts_with("x-");
        if !of_the_table && table::find(name(word)).is_none() {
            return Err(OptionError::Unknown(word.to_owned()).into());
        }
        if !of_the_table && has(in_effect.as_ref(), word).is_err() {
            output::message(format_args!("{word}: a remount does not change it"));
        }
    }
    let read_only = flags.contains(MountFlags::RDONLY);
    if daemon.read_only && !read_only {
        let image = Path::new(&entry.source);
        let devices = in_effect
            .as_ref()
            .map_or(&[][..], |(there, _)| there.devices());
        let opened = mount::become_writable(dir, image, devices);
        opened.map_err(|error| {
            let line = format!("{} stays open for reading only: {error}", image.display());
            failed(&line)
        })?;
    }
    let sync = || control::sync(dir).map_err(|error| failed(&error));
    if !read_only || !was_read_only {
        sync()?;
    }
    rustix::mount::mount_remount(dir, flags, c"").map_err(|error| failed(&error))?;
    if read_only && !was_read_only {
        // Writes that the kernel accepted before.
        sync()?;
    }
    Ok(())
}

/// The mount that a directory or an image names.
fn found(place: &Path) -> Option<MountEntry> {
    let by_image = || {
        let mut ours = mount::mount_table()
            .ok()?
            .into_iter()
            .filter(MountEntry::is_ours);
        ours.find(|entry| Path::new(&entry.source) == place)
    };
    let by_dir = mount::mounted_on(place).filter(MountEntry::is_ours);
    by_dir.or_else(by_image)
}

/// The flags that a mount has, as far as a remount keeps them.
fn flags_now(dir: &Path) -> rustix::io::Result<MountFlags> {
    let now = rustix::fs::statvfs(dir)?;
    // The flags of a mount have the same bits in both calls, but `relatime`.
    let keep = MountFlags::RDONLY
        | MountFlags::NOSUID
        | MountFlags::NODEV
        | MountFlags::NOEXEC
        | MountFlags::SYNCHRONOUS
        | MountFlags::NOATIME
        | MountFlags::NODIRATIME;
    let bits = u32::try_from(now.f_flag.bits()).unwrap_or(0);
    let mut flags = MountFlags::from_bits_truncate(bits) & keep;
    // This one has another bit in `statvfs`.
    flags.set(MountFlags::NOSYMFOLLOW, bits & ST_NOSYMFOLLOW != 0);
    Ok(flags)
}

/// A second mount of `image` on `dir`, by the daemon of the one that is there. `None` if the image
/// is not mounted.
pub(super) fn again(
    image: &Path,
    dir: &Path,
    options: &Options,
    lists: &[String],
) -> Option<Result<()>> {
    let table = mount::mount_table().ok()?;
    let mut ours = table.into_iter().filter(|entry| {
        let whole = entry.root == Path::new("/");
        entry.is_ours() && whole && Path::new(&entry.source) == image
    });
    let first = ours.find_map(|entry| {
        let visible = mount::mounted_on(&entry.point).as_ref() == Some(&entry);
        // A daemon that has died holds no image.
        let daemon = visible.then(|| control::daemon(&entry.point).ok())??;
        Some(First { entry, daemon })
    })?;
    let point = first.entry.point.display();
    let refused = |why| {
        let line = format!("in use: mounted on {point} already, {why}");
        Failure::local(image, line).with_code(MOUNT)
    };
    Some(
        first
            .flags(dir, options, lists)
            .map_err(refused)
            .and_then(|flags| -> Result<()> {
                let mounted = mount::mount_again(&first.entry, dir, flags);
                mounted.map_err(|error| Failure::local(dir, error).with_code(MOUNT))
            }),
    )
}

/// The existing mount of an image.
struct First {
    entry: MountEntry,
    daemon: Daemon,
}

impl First {
    /// The flags of a second mount on `dir`.
    ///
    /// # Errors
    /// The reason why there can be none.
    fn flags(&self, dir: &Path, options: &Options, lists: &[String]) -> Result<MountFlags, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("and only root can mount it on another directory too".to_owned());
        }
        let told = control::options(&self.entry.point).ok();
        let in_effect = told.and_then(|text| Options::from_text(&text));
        let mut flags = MountFlags::empty();
        for word in words(lists) {
            let flag = FLAGS.iter().find(|(flag, _, _)| *flag == word);
            match flag.filter(|(_, flag, _)| !OF_ALL_MOUNTS.contains(*flag)) {
                Some((_, flag, on)) => flags.set(*flag, *on),
                None if OF_THE_OPERAND.contains(&name(word)) => {}
                None => has(in_effect.as_ref(), word)?,
            }
        }
        let devices = in_effect
            .as_ref()
            .map_or(&[][..], |(there, _)| there.devices());
        if let Some(other) = options.devices().iter().find(|one| !devices.contains(one)) {
            return Err(format!("without the device {}", other.display()));
        }
        if self.daemon.read_only && !flags.contains(MountFlags::RDONLY) {
            return Err("for reading only".to_owned());
        }
        if self.entry.point == dir {
            return Err("on this directory".to_owned());
        }
        Ok(flags)
    }
}

/// Fails if the options in effect of a mount, if known, lack an option in `word`.
fn has(in_effect: Option<&(Options, Kind)>, word: &str) -> Result<(), String> {
    let included = match in_effect {
        Some((there, kind)) => there
            .include(word, *kind)
            .map_err(|error| error.to_string())?,
        None => word.starts_with("x-"),
    };
    if included {
        return Ok(());
    }
    Err(format!("where {word} cannot be changed"))
}
