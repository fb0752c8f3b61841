//! What can be chosen when mounting.

use std::time::Duration;

/// Who may use the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Access {
    /// Only the user who mounted it.
    #[default]
    Owner,
    /// That user and root (`allow_root`).
    OwnerAndRoot,
    /// Everybody, as far as permissions let them (`allow_other`).
    All,
}

/// What can be chosen when mounting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOptions {
    /// Who may use the mount.
    pub access: Access,
    /// The kernel checks permissions, from modes and ACLs. Off only where the engine's
    /// owner ids mean nothing here.
    pub default_permissions: bool,
    /// Refuse changes. Also in force if the file system is read-only.
    pub read_only: bool,
    /// First column of the mount table: the image or device.
    pub fsname: String,
    /// Shown after `fuse.` as the type in the mount table.
    pub subtype: String,
    /// `fusermount3` stays and unmounts should we die. Needs `fusermount3` even as root.
    pub auto_unmount: bool,
    /// Ignore set-id bits. An ordinary user's mount always does.
    pub nosuid: bool,
    /// Ignore device nodes. An ordinary user's mount always does.
    pub nodev: bool,
    /// Refuse to execute.
    pub noexec: bool,
    /// Never change access times.
    pub noatime: bool,
    /// Every write is synchronous.
    pub sync: bool,
    /// Every change of a directory is synchronous.
    pub dirsync: bool,
    /// Request threads; `None`: one for each core, at least 2 and at most 16.
    pub threads: Option<usize>,
    /// The kernel collects writes in its page cache and keeps the times of files.
    pub writeback_cache: bool,
    /// How long the kernel may keep names and attributes. We are the only writer, so a
    /// long time is right unless something else changes the same [`FileSystem`].
    ///
    /// [`FileSystem`]: sapwood_vfs::FileSystem
    pub ttl: Duration,
    /// How long [`Session::unmount`](crate::Session::unmount) waits, after it detached a
    /// busy mount, for the last user to let go before it ends the session under them.
    pub busy_grace: Duration,
}

impl Default for MountOptions {
    fn default() -> Self {
        let root = rustix::process::geteuid().is_root();
        Self {
            access: Access::Owner,
            default_permissions: true,
            read_only: false,
            fsname: "sapwood".to_owned(),
            subtype: "sapwood".to_owned(),
            auto_unmount: false,
            nosuid: !root,
            nodev: !root,
            noexec: false,
            noatime: false,
            sync: false,
            dirsync: false,
            threads: None,
            writeback_cache: true,
            ttl: Duration::from_secs(3600),
            busy_grace: Duration::from_secs(2),
        }
    }
}

impl MountOptions {
    /// Number of request threads.
    #[must_use]
    pub(crate) fn thread_count(&self) -> usize {
        self.threads.map_or_else(
            || std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 16)),
            |n| n.clamp(1, 256),
        )
    }
}
