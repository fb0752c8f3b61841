//! Mounts that are there already: `-o remount`, and a second mount of the same image.

use std::path::Path;

use rustix::mount::MountFlags;
use sapwood::mount::{self, MountEntry, control};
use sapwood::options::{OptionError, table};

use super::failure::{Failure, MOUNT, Result};
use super::output;

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

/// Changes the flags of the mount on `dir`. Options of the engine stay as they are.
pub(super) fn run(dir: &Path, lists: &[String]) -> Result<()> {
    let failed = |why: &dyn std::fmt::Display| Failure::local(dir, why).with_code(MOUNT);
    let entry = mount::mounted_on(dir)
        .filter(MountEntry::is_ours)
        .ok_or_else(|| failed(&"not the mount point of a Sapwood mount"))?;
    let now = rustix::fs::statvfs(dir).map_err(|error| failed(&error))?;
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
    let was_read_only = flags.contains(MountFlags::RDONLY);
    for word in words(lists) {
        if let Some((_, flag, on)) = FLAGS.iter().find(|(flag, _, _)| *flag == word) {
            flags.set(*flag, *on);
            continue;
        }
        let of_the_table = OF_THE_TABLE.contains(&name(word)) || word.starts_with("x-");
        if !of_the_table && table::find(name(word)).is_none() {
            return Err(OptionError::Unknown(word.to_owned()).into());
        }
        if !of_the_table {
            output::message(format_args!(
                "{word}: stays as it was mounted, a remount does not change it"
            ));
        }
    }
    let read_only = flags.contains(MountFlags::RDONLY);
    let daemon = control::daemon(dir).map_err(|error| failed(&error))?;
    if daemon.read_only && !read_only {
        let image = Path::new(&entry.source).display();
        return Err(failed(&format_args!(
            "{image} is open for reading only: unmount it, and mount it without `ro`"
        )));
    }
    let sync = || control::sync(dir).map_err(|error| failed(&error));
    if !read_only || !was_read_only {
        sync()?;
    }
    rustix::mount::mount_remount(dir, flags, c"").map_err(|error| failed(&error))?;
    if read_only && !was_read_only {
        // What was written until the kernel refused further writes.
        sync()?;
    }
    Ok(())
}

/// A second mount of `image` on `dir`, as a bind mount of the one that is there: what the kernel
/// does for its own file systems. `None` if the image is not mounted.
pub(super) fn again(image: &Path, dir: &Path, lists: &[String]) -> Option<Result<()>> {
    let table = mount::mount_table().ok()?;
    let first = table
        .into_iter()
        .find(|entry| entry.is_ours() && Path::new(&entry.source) == image)?;
    // A daemon that has died holds no image.
    let daemon = control::daemon(&first.point).ok()?;
    Some(bind(image, &first, daemon.read_only, dir, lists))
}

fn bind(
    image: &Path,
    first: &MountEntry,
    only_readable: bool,
    dir: &Path,
    lists: &[String],
) -> Result<()> {
    let there = first.point.display();
    let refused = |why: &dyn std::fmt::Display| {
        let line = format_args!("in use: mounted on {there} already, {why}").to_string();
        Failure::local(image, line).with_code(MOUNT)
    };
    if !rustix::process::geteuid().is_root() {
        return Err(refused(
            &"and only root can mount it on another directory too",
        ));
    }
    let mut flags = MountFlags::empty();
    for word in words(lists) {
        match FLAGS.iter().find(|(flag, _, _)| *flag == word) {
            Some((_, flag, on)) => flags.set(*flag, *on),
            None if OF_THE_TABLE.contains(&name(word)) || word.starts_with("x-") => {}
            None => return Err(refused(&format_args!("where {word} cannot be changed"))),
        }
    }
    if only_readable && !flags.contains(MountFlags::RDONLY) {
        return Err(refused(&"for reading only"));
    }
    if first.point == dir {
        return Err(refused(&"on this directory"));
    }
    let failed = |error| Failure::local(dir, std::io::Error::from(error)).with_code(MOUNT);
    rustix::mount::mount_bind(&first.point, dir).map_err(failed)?;
    if flags.is_empty() {
        return Ok(());
    }
    let remounted = rustix::mount::mount_remount(dir, MountFlags::BIND | flags, c"");
    remounted.map_err(|error| {
        let _ = rustix::mount::unmount(dir, rustix::mount::UnmountFlags::DETACH);
        failed(error)
    })
}
