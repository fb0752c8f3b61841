//! Options of every file system: of the engines, of the FUSE mount, and of `mount(8)` and `fstab`.

use std::time::Duration;

use super::table::{Form, MountOption, unsupported};
use super::{Access, OptionError, Options, bad, bytes, number};

use Form::{Alone, Optional, Value};

type Taken = Result<(), OptionError>;

/// Their declarations.
pub(super) const OPTIONS: &[MountOption] = &[
    MountOption::served(
        &["ro"],
        Alone,
        read_only,
        "no changes; a log or journal is still replayed, in memory where possible",
    ),
    MountOption::served(&["rw"], Alone, read_write, "allow changes").default("rw"),
    MountOption::served(
        &["norecovery"],
        Alone,
        no_recovery,
        "with ro: show the last commit, without replaying a log or journal",
    ),
    MountOption::served(
        &["commit"],
        Value("SECONDS"),
        commit,
        "longest time from a change to its \
        commit",
    )
    .default("30 on btrfs, 5 on ext4 and where sync(1) does not reach the mount"),
    MountOption::served(
        &["space_wait"],
        Value("SECONDS"),
        space_wait,
        "longest time that a write of metadata waits for space on a full host before the mount \
        becomes read-only",
    )
    .default("30"),
    MountOption::served(
        &["discard"],
        Optional("sync|async"),
        discard,
        "discard freed space on the device after each commit",
    )
    .default("nodiscard"),
    MountOption::served(&["nodiscard"], Alone, no_discard, "undoes discard"),
    MountOption::served(
        &["memory_size"],
        Value("BYTES"),
        memory_size,
        "memory for all caches: metadata, changed data, inodes",
    )
    .default("a quarter of what the process may have, at most 544M"),
    MountOption::served(
        &["cache_size"],
        Value("BYTES"),
        cache_size,
        "part of memory_size for metadata",
    ),
    MountOption::served(
        &["dirty_size"],
        Value("BYTES"),
        dirty_size,
        "part of memory_size for changed data",
    ),
    MountOption::served(
        &["threads", "thread_pool"],
        Value("N"),
        threads,
        "threads for requests, \
        checksums, compression and writeback",
    )
    .default("by the number of processors"),
    MountOption::served(&["noatime"], Alone, atime, "never change access times"),
    MountOption::served(
        &["atime", "relatime", "nostrictatime"],
        Alone,
        atime,
        "update an access time that is older than the last change, or than a day",
    )
    .default("atime"),
    MountOption::served(
        &["strictatime", "norelatime"],
        Alone,
        strict_atime,
        "as root, shown in the mount table; times change as with relatime, because the kernel answers most reads from its cache",
    ),
    MountOption::served(
        &["nodiratime"],
        Alone,
        dir_atime,
        "as root, passed to the kernel",
    ),
    MountOption::served(&["diratime"], Alone, dir_atime, "undoes nodiratime"),
    MountOption::served(
        &["lazytime"],
        Alone,
        lazy_time,
        "as root, passed to the kernel; times are \
        written with the next commit in any case",
    ),
    MountOption::served(&["nolazytime"], Alone, lazy_time, "undoes lazytime"),
    MountOption::served(
        &["sync"],
        Alone,
        synchronous,
        "every change is durable before its call \
        returns",
    ),
    MountOption::served(&["async"], Alone, synchronous, "undoes sync").default("async"),
    MountOption::served(
        &["dirsync"],
        Alone,
        synchronous,
        "every change of a directory is durable \
        before its call returns",
    ),
    MountOption::served(&["nosuid"], Alone, set_id, "ignore set-id bits").default(
        "nosuid for an \
        ordinary user",
    ),
    MountOption::served(&["suid"], Alone, set_id, "as root, undoes nosuid"),
    MountOption::served(&["nodev"], Alone, set_id, "ignore device nodes").default(
        "nodev for an \
        ordinary user",
    ),
    MountOption::served(&["dev"], Alone, set_id, "as root, undoes nodev"),
    MountOption::served(&["noexec"], Alone, set_id, "refuse to run programs"),
    MountOption::served(&["exec"], Alone, set_id, "undoes noexec").default("exec"),
    MountOption::served(
        &["nosymfollow"],
        Alone,
        no_symlinks,
        "as root: follow no symbolic links",
    ),
    MountOption::served(
        &["allow_other"],
        Alone,
        access,
        "all users may use the mount, not only the user who mounts",
    ),
    MountOption::served(&["allow_root"], Alone, access, "root may use the mount, too"),
    MountOption::served(
        &["default_permissions"],
        Alone,
        permissions,
        "the kernel checks \
        permissions",
    )
    .default("default_permissions"),
    MountOption::served(
        &["no_default_permissions"],
        Alone,
        permissions,
        "no permission is checked: \
        faster creates, for one trusted user",
    ),
    MountOption::served(
        &["writeback_cache"],
        Alone,
        cache,
        "the kernel combines small writes",
    ),
    MountOption::served(
        &["no_writeback_cache"],
        Alone,
        cache,
        "every write goes to the daemon at \
        once",
    )
    .default("no_writeback_cache"),
    MountOption::served(
        &["auto_unmount"],
        Alone,
        auto_unmount,
        "detach the mount if its daemon \
        dies",
    ),
    MountOption::served(
        &["io_uring"],
        Value("auto|on|off"),
        io_uring,
        "requests through io_uring; auto: if the kernel offers it and there is no sandbox",
    )
    .default("auto"),
    MountOption::served(
        &["polling"],
        Value("auto|on|off"),
        polling,
        "poll for the next request of a client that sends one request at a time",
    )
    .default("auto"),
    MountOption::served(
        &["fuseblk"],
        Value("auto|on|off"),
        fuseblk,
        "a mount of type fuseblk, whose \
        sync(1) and umount(8) wait for the image; for root, Linux 6.18 and newer",
    )
    .default("auto"),
    MountOption::served(
        &["sandbox"],
        Value("auto|on|off"),
        sandbox,
        "confine the daemon before it reads the image: no capabilities, no other file, no network, few system calls; on: fail if a part is missing",
    )
    .default("auto"),
    MountOption::served(
        &["log"],
        Value("off|error|warn|info|debug"),
        log_level,
        "level of the daemon's log: on standard error in the foreground, in the journal under systemd, else in syslog",
    )
    .default("warn"),
    MountOption::served(
        &["fsname"],
        Value("NAME"),
        name,
        "source in the mount table",
    )
    .default("the image"),
    MountOption::served(
        &["offset"],
        Value("BYTES"),
        offset,
        "start of the file system in the image",
    )
    .default("0"),
    MountOption::served(
        &["length"],
        Value("BYTES"),
        length,
        "length of the file system's part of the image",
    )
    .default("everything after the offset"),
    MountOption::served(
        &["partition"],
        Value("LABEL"),
        partition,
        "partition of the image, by number or GPT name; same as IMAGE#LABEL",
    ),
    MountOption::served(
        &["verity.roothash"],
        Value("HEX"),
        root_hash,
        "verify every block that is read with the hash tree of dm-verity that has this root hash; \
        needs verity.hashdevice",
    ),
    MountOption::served(
        &["verity.hashdevice"],
        Value("PATH"),
        hash_device,
        "file or device that has the hash tree",
    ),
    MountOption::served(
        &["luks.keyfile"],
        Value("PATH"),
        key_file,
        "decrypt the image, which is a LUKS volume, with the key that this file holds",
    ),
    MountOption::served(
        &["format"],
        Value("raw|qcow2"),
        format,
        "format of the image file; use raw if a guest may have written a qcow2 header to its disk",
    )
    .default("detected from the file's first bytes"),
    MountOption::served(
        &["backing_files"],
        Alone,
        backing_files,
        "open the backing files that a qcow2 file names",
    ),
    MountOption::served(
        &["barrier"],
        Optional("0|1"),
        barrier,
        "flush the device for fsync and commits; barrier=0 is refused",
    )
    .default("barrier"),
    MountOption::refused(&["nobarrier"], Alone, BARRIER),
    MountOption::accepted(&["acl"], Alone, "access control lists are always in force"),
    MountOption::refused(
        &["noacl"],
        Alone,
        "access control lists cannot be switched off",
    ),
    MountOption::accepted(
        &["subtype"],
        Value("TYPE"),
        "the type is fuse.sapwood, or fuseblk.sapwood",
    ),
    MountOption::accepted(
        &[
            "defaults", "auto", "noauto", "user", "nouser", "users", "group", "owner", "_netdev",
            "nofail",
        ],
        Alone,
        "meant for mount(8) and fstab",
    ),
    MountOption::accepted(
        &["comment", "uhelper", "helper"],
        Value("TEXT"),
        "meant for mount(8) and \
        fstab",
    ),
    MountOption::accepted(
        &["x-*", "X-*"],
        Optional("TEXT"),
        "meant for mount(8) and other programs",
    ),
    MountOption::accepted(
        &["loop"],
        Optional("DEVICE"),
        "an image file needs no loop device",
    ),
    MountOption::refused(
        &["sizelimit"],
        Value("BYTES"),
        "`length=` bounds the part of a file that is mounted",
    ),
    MountOption::accepted(&["silent", "loud"], Alone, "there are no kernel messages"),
    MountOption::accepted(
        &["iversion", "noiversion"],
        Alone,
        "the format decides whether changes are counted",
    ),
    MountOption::accepted(
        &["mand", "nomand"],
        Alone,
        "Linux has no mandatory locks any more",
    ),
    MountOption::refused(
        &["context", "fscontext", "defcontext", "rootcontext"],
        Value("LABEL"),
        "the files' own SELinux labels are used",
    ),
    MountOption::refused(
        &["remount"],
        Alone,
        "`sapwood mount -o remount` needs an existing mount",
    ),
];

const BARRIER: &str = "fsync needs the device's flushes";

fn root() -> bool {
    rustix::process::geteuid().is_root()
}

fn read_only(options: &mut Options, _: &str, _: Option<&str>) -> Taken {
    options.set_read_only();
    Ok(())
}

fn read_write(options: &mut Options, _: &str, _: Option<&str>) -> Taken {
    options.btrfs.read_only = false;
    options.ext4.read_only = false;
    options.mount.read_only = false;
    Ok(())
}

fn no_recovery(options: &mut Options, _: &str, _: Option<&str>) -> Taken {
    options.set_no_recovery();
    Ok(())
}

fn commit(options: &mut Options, name: &str, value: Option<&str>) -> Taken {
    options.set_commit_interval(Duration::from_secs(number(name, value)?));
    Ok(())
}

fn space_wait(options: &mut Options, name: &str, value: Option<&str>) -> Taken {
    let wait = Duration::from_secs(number(name, value)?);
    options.btrfs.patience = wait;
    options.ext4.patience = wait;
    Ok(())
}

fn discard(options: &mut Options, name: &str, value: Option<&str>) -> Taken {
    match value {
        None | Some("sync" | "async") => {}
        Some(_) => return Err(bad(name, value)),
    }
    options.btrfs.discard = true;
    options.ext4.discard = true;
    Ok(())
}

fn no_discard(options: &mut Options, _: &str, _: Option<&str>) -> Taken {
    options.btrfs.discard = false;
    options.ext4.discard = false;
    Ok(())
}

fn memory_size(options: &mut Options, name: &str, value: Option<&str>) -> Taken {
    let total = bytes(name, value)?;
    options.btrfs.set_memory(total);
    options.ext4.set_memory(total);
    Ok(())
}

fn cache_size(options: &mut Options, name: &str, value: Option<&str>) -> Taken {
    options.btrfs.cache_bytes = bytes(name, value)?;
    options.ext4.cache_bytes = options.btrfs.cache_bytes;
    Ok(())
}

fn dirty_size(options: &mut Options, name: &str, value: Option<&str>) -> Taken {
    options.btrfs.dirty_bytes = bytes(name, value)?;
    options.ext4.dirty_bytes = options.btrfs.dirty_bytes;
    Ok(())
}

fn threads(options: &mut Options, name: &str, value: Option<&str>) -> Taken {
    let threads = number(name, value)?;
    options.btrfs.threads = threads;
    options.ext4.threads = threads;
    options.mount.threads = Some(threads);
    Ok(())
}

fn atime(options: &mut Options, name: &str, _: Option<&str>) -> Taken {
    let never = name == "noatime";
    options.btrfs.noatime = never;
    options.ext4.noatime = never;
    options.mount.noatime = never;
    options.mount.strictatime = false;
    Ok(())
}

fn strict_atime(options: &mut Options, name: &str, value: Option<&str>) -> Taken {
    atime(options, name, value)?;
    options.mount.strictatime = root();
    Ok(())
}

fn dir_atime(options: &mut Options, name: &str, _: Option<&str>) -> Taken {
    options.mount.nodiratime = name == "nodiratime" && root();
    Ok(())
}

fn lazy_time(options: &mut Options, name: &str, _: Option<&str>) -> Taken {
    options.mount.lazytime = name == "lazytime" && root();
    Ok(())
}

fn synchronous(options: &mut Options, name: &str, _: Option<&str>) -> Taken {
    match name {
        "dirsync" => options.mount.dirsync = true,
        _ => options.mount.sync = name == "sync",
    }
    Ok(())
}

fn set_id(options: &mut Options, name: &str, _: Option<&str>) -> Taken {
    let mount = &mut options.mount;
    match name {
        "nosuid" => mount.nosuid = Some(true),
        "suid" => mount.nosuid = Some(!root()),
        "nodev" => mount.nodev = Some(true),
        "dev" => mount.nodev = Some(!root()),
        _ => mount.noexec = name == "noexec",
    }
    Ok(())
}

fn no_symlinks(options: &mut Options, name: &str, value: Option<&str>) -> Taken {
    if !root() {
        return Err(unsupported(
            name,
            value,
            "fusermount3 does not know it: only root can",
        ));
    }
    options.mount.nosymfollow = true;
    Ok(())
}

fn access(options: &mut Options, name: &str, _: Option<&str>) -> Taken {
    options.mount.access = match name {
        "allow_other" => Access::All,
        _ => Access::OwnerAndRoot,
    };
    Ok(())
}

fn permissions(options: &mut Options, name: &str, _: Option<&str>) -> Taken {
    options.mount.no_default_permissions = name == "no_default_permissions";
    Ok(())
}

fn cache(options: &mut Options, name: &str, _: Option<&str>) -> Taken {
    options.mount.writeback_cache = name == "writeback_cache";
    Ok(())
}

fn auto_unmount(options: &mut Options, _: &str, _: Option<&str>) -> Taken {
    options.mount.auto_unmount = true;
    Ok(())
}

fn io_uring(options: &mut Options, name: &str, value: Option<&str>) -> Taken {
    options.mount.io_uring = number(name, value)?;
    Ok(())
}

fn polling(options: &mut Options, name: &str, value: Option<&str>) -> Taken {
    options.mount.polling = number(name, value)?;
    Ok(())
}

fn fuseblk(options: &mut Options, name: &str, value: Option<&str>) -> Taken {
    options.mount.fuseblk = number(name, value)?;
    Ok(())
}

fn sandbox(options: &mut Options, name: &str, value: Option<&str>) -> Taken {
    options.mount.sandbox = number(name, value)?;
    Ok(())
}

fn log_level(options: &mut Options, name: &str, value: Option<&str>) -> Taken {
    options.mount.log = Some(number(name, value)?);
    Ok(())
}

fn name(options: &mut Options, name: &str, value: Option<&str>) -> Taken {
    let source = value.ok_or_else(|| bad(name, value))?;
    options.mount.fsname = Some(source.to_owned());
    Ok(())
}

fn offset(options: &mut Options, name: &str, value: Option<&str>) -> Taken {
    options.mount.offset = Some(bytes(name, value)?);
    Ok(())
}

fn length(options: &mut Options, name: &str, value: Option<&str>) -> Taken {
    options.mount.length = Some(bytes(name, value)?);
    Ok(())
}

fn partition(options: &mut Options, name: &str, value: Option<&str>) -> Taken {
    let wanted = value.ok_or_else(|| bad(name, value))?;
    options.mount.partition = Some(wanted.to_owned());
    Ok(())
}

fn root_hash(options: &mut Options, name: &str, value: Option<&str>) -> Taken {
    let root = value.and_then(|value| value.parse().ok());
    options.mount.root_hash = Some(root.ok_or_else(|| bad(name, value))?);
    Ok(())
}

fn hash_device(options: &mut Options, name: &str, value: Option<&str>) -> Taken {
    let path = value.ok_or_else(|| bad(name, value))?;
    options.mount.hash_device = Some(path.into());
    Ok(())
}

fn key_file(options: &mut Options, name: &str, value: Option<&str>) -> Taken {
    let path = value.ok_or_else(|| bad(name, value))?;
    options.mount.key_file = Some(path.into());
    Ok(())
}

fn format(options: &mut Options, name: &str, value: Option<&str>) -> Taken {
    let format = value.and_then(|value| value.parse().ok());
    options.mount.format = Some(format.ok_or_else(|| bad(name, value))?);
    Ok(())
}

fn backing_files(options: &mut Options, _: &str, _: Option<&str>) -> Taken {
    options.mount.backing_files = true;
    Ok(())
}

fn barrier(_: &mut Options, name: &str, value: Option<&str>) -> Taken {
    match value {
        None | Some("1") => Ok(()),
        Some("0") => Err(unsupported(name, value, BARRIER)),
        Some(_) => Err(bad(name, value)),
    }
}
