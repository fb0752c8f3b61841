//! The commands since the last checkpoint, and the rule that makes their repetition safe.
//!
//! # How it works
//! After a crash the names of a partial subvolume are those after a known command `m`, or after the
//! next command that changes names. The data and attributes that the commands since the checkpoint
//! `c <= m` set are there in whole, in part, or not at all. A resumed receive reads the commands
//! after `c` again. Up to `m` it skips changes of names, and it executes all other commands.
//!
//! That gives the state of an uninterrupted receive, because:
//!
//! 1. Each of those commands finds its file. No later change of names since the checkpoint moved or
//!    removed a path that a command of the epoch used: [`Epoch::is_affected`] demands a checkpoint
//!    before such a change.
//! 2. Each sets bytes, a size, or an attribute to a value from the stream. The last command that
//!    sets a byte wins in both runs, and a byte that none sets is as it was at `c`. A file that is
//!    larger than it was at `c` has that size because a command that is repeated gave it.
//! 3. A clone reads bytes of another file. If that file is part of the same subvolume, nothing
//!    since the clone changed the bytes: [`Epoch::overwrites_source`] demands a checkpoint first.
//! 4. The first change of names after `m` may have been executed. Whether it was can be seen from
//!    the names, because the commands between are no changes of names. By 1, it leaves the paths of
//!    those commands alone.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use sapwood_base::RangeSet;
use sapwood_btrfs_format::stream::{Command, attribute as attr, command as cmd};

use super::error::Result;

/// Identity of an inode in the subvolume.
pub(super) type InodeId = (u64, u64);

/// Most paths and ranges of an epoch, which bounds its memory.
const MOST: usize = 1 << 16;

/// Most bytes of the paths of an epoch.
const MOST_BYTES: usize = 32 << 20;

/// A checkpoint takes at most one part in this number of the time.
const SHARE: u32 = 20;

/// Time after which a checkpoint is due.
const INTERVAL: Duration = Duration::from_secs(5);

/// Commands between two looks at the clock.
const CLOCK: u64 = 64;

/// The commands since the last checkpoint; see the module.
pub(super) struct Epoch {
    /// Bytes of the stream between two checkpoints.
    interval: u64,
    /// Paths of commands that set data or attributes, and of sources of clones.
    touched: BTreeSet<Vec<u8>>,
    /// Bytes of these paths.
    path_bytes: usize,
    last: Vec<u8>,
    /// Ranges of this subvolume that commands cloned.
    sources: BTreeMap<InodeId, RangeSet>,
    /// Clones from this subvolume.
    clones: usize,
    start: u64,
    started: Instant,
    /// Duration of the last checkpoint.
    cost: Duration,
}

/// Whether a command creates, moves or removes names. Such a command is executed once; the effect
/// of every other one is the same when it is repeated.
pub(super) fn changes_names(command: &Command<'_>) -> bool {
    matches!(
        command.number,
        cmd::MKFILE
            | cmd::MKDIR
            | cmd::MKFIFO
            | cmd::MKSOCK
            | cmd::MKNOD
            | cmd::SYMLINK
            | cmd::LINK
            | cmd::RENAME
            | cmd::UNLINK
            | cmd::RMDIR
    )
}

/// The range of its file that a command sets.
fn set_range(command: &Command<'_>) -> Result<Option<(u64, u64)>> {
    let start = |attribute| command.u64(attribute);
    let (start, len) = match command.number {
        cmd::WRITE => {
            let len = command.get(attr::DATA)?.len() as u64;
            (start(attr::FILE_OFFSET)?, len)
        }
        cmd::ENCODED_WRITE => {
            let len = command.u64(attr::UNENCODED_FILE_LEN)?;
            (start(attr::FILE_OFFSET)?, len)
        }
        cmd::CLONE => (start(attr::FILE_OFFSET)?, command.u64(attr::CLONE_LEN)?),
        cmd::FALLOCATE => (start(attr::FILE_OFFSET)?, command.u64(attr::SIZE)?),
        cmd::TRUNCATE => (start(attr::SIZE)?, u64::MAX),
        _ => return Ok(None),
    };
    Ok(Some((start, start.saturating_add(len))))
}

impl Epoch {
    /// An epoch that begins at the start of a subvolume. `interval`: bytes of the stream between
    /// two checkpoints.
    pub(super) fn new(interval: u64) -> Self {
        Self {
            interval,
            touched: BTreeSet::new(),
            path_bytes: 0,
            last: Vec::new(),
            sources: BTreeMap::new(),
            clones: 0,
            start: 0,
            started: Instant::now(),
            cost: Duration::ZERO,
        }
    }

    /// Begins the next epoch, after a checkpoint at this byte that took the time since `since`.
    pub(super) fn restart(&mut self, bytes: u64, since: Instant) {
        *self = Self {
            start: bytes,
            cost: since.elapsed(),
            ..Self::new(self.interval)
        };
    }

    /// Whether a checkpoint is due, after a number of commands and bytes.
    pub(super) fn is_due(&self, commands: u64, bytes: u64) -> bool {
        if self.touched.len().max(self.clones) >= MOST || self.path_bytes >= MOST_BYTES {
            return true;
        }
        let enough = bytes.saturating_sub(self.start) >= self.interval;
        if !enough && !commands.is_multiple_of(CLOCK) {
            return false;
        }
        let passed = self.started.elapsed();
        (enough || passed >= INTERVAL) && passed >= self.cost * SHARE
    }

    /// Adds an executed command that changes no names. `identify` finds the inode of a path.
    pub(super) fn add(
        &mut self,
        command: &Command<'_>,
        own: [u8; 16],
        identify: impl FnOnce(&[u8]) -> Result<InodeId>,
    ) -> Result<()> {
        let path = command.path(attr::PATH)?;
        if self.last != path || self.touched.is_empty() {
            self.touch(path);
            path.clone_into(&mut self.last);
        }
        if command.number == cmd::CLONE && command.uuid(attr::CLONE_UUID)? == own {
            let source = command.path(attr::CLONE_PATH)?;
            let start = command.u64(attr::CLONE_OFFSET)?;
            let end = start.saturating_add(command.u64(attr::CLONE_LEN)?);
            self.touch(source);
            if start < end {
                let ranges = self.sources.entry(identify(source)?);
                ranges.or_default().insert(start, end);
                self.clones += 1;
            }
        }
        Ok(())
    }

    fn touch(&mut self, path: &[u8]) {
        if !self.touched.contains(path) {
            self.touched.insert(path.to_vec());
            self.path_bytes = self.path_bytes.saturating_add(path.len());
        }
    }

    /// Whether a change of names moves or removes a path that a command of the epoch used.
    pub(super) fn is_affected(&self, command: &Command<'_>) -> Result<bool> {
        if self.touched.is_empty() {
            return Ok(false);
        }
        Ok(match command.number {
            cmd::RENAME => {
                self.is_touched(command.path(attr::PATH)?)
                    || self.is_touched(command.path(attr::PATH_TO)?)
            }
            cmd::UNLINK | cmd::RMDIR => self.is_touched(command.path(attr::PATH)?),
            _ => false,
        })
    }

    /// Whether the epoch used a path, or one below it.
    fn is_touched(&self, path: &[u8]) -> bool {
        let below = [path, b"/"].concat();
        let first = self.touched.range(below.clone()..).next();
        self.touched.contains(path) || first.is_some_and(|first| first.starts_with(&below))
    }

    /// Whether a command changes bytes that a clone of the epoch read.
    pub(super) fn overwrites_source(
        &self,
        command: &Command<'_>,
        identify: impl FnOnce(&[u8]) -> Result<InodeId>,
    ) -> Result<bool> {
        if self.sources.is_empty() {
            return Ok(false);
        }
        let Some((start, end)) = set_range(command)? else {
            return Ok(false);
        };
        let sources = self.sources.get(&identify(command.path(attr::PATH)?)?);
        Ok(sources.is_some_and(|ranges| !ranges.within(start, end).is_empty()))
    }
}

#[cfg(test)]
mod tests {
    use sapwood_btrfs_format::stream::{COMMAND_HEADER, CommandHeader, Writer, parse};

    use super::*;

    const OWN: [u8; 16] = [1; 16];

    /// Calls `each` with a command.
    fn with<T>(
        number: u16,
        compose: impl FnOnce(&mut Writer),
        each: impl FnOnce(&Command<'_>) -> T,
    ) -> T {
        let mut writer = Writer::new(1);
        compose(writer.begin(number));
        let bytes = writer.finish();
        let (head, attributes) = bytes.split_first_chunk::<COMMAND_HEADER>().unwrap();
        each(&parse(1, &CommandHeader::parse(head).unwrap(), attributes).unwrap())
    }

    fn add(epoch: &mut Epoch, path: &str) {
        let compose = |out: &mut Writer| {
            out.put(attr::PATH, path.as_bytes()).put_u64(attr::SIZE, 0);
        };
        with(cmd::TRUNCATE, compose, |command| {
            epoch.add(command, OWN, |_| Ok((0, 0))).unwrap();
        });
    }

    #[test]
    fn a_change_of_names_that_moves_a_used_path_needs_a_checkpoint() {
        let mut epoch = Epoch::new(1);
        for path in ["d/file", "d-file", "e"] {
            add(&mut epoch, path);
        }
        let affected = |number, path: &str, to: &str| {
            let compose = |out: &mut Writer| {
                out.put(attr::PATH, path.as_bytes());
                out.put(attr::PATH_TO, to.as_bytes());
            };
            with(number, compose, |command| {
                epoch.is_affected(command).unwrap()
            })
        };
        for (from, to, expected) in [
            ("d", "x", true),
            ("x", "d", true),
            ("d/file", "x", true),
            ("d/fil", "d/files", false),
            ("x", "e", true),
            ("e/below", "x", false),
        ] {
            assert_eq!(affected(cmd::RENAME, from, to), expected, "{from} {to}");
        }
        assert!(affected(cmd::UNLINK, "d-file", ""));
        assert!(affected(cmd::RMDIR, "d", ""));
        assert!(!affected(cmd::MKFILE, "d", ""));
        epoch.restart(0, Instant::now());
        assert!(!epoch.is_touched(b"d"));
    }

    #[test]
    fn the_bytes_of_paths_are_bounded() {
        let mut epoch = Epoch::new(u64::MAX);
        let long = format!("{}/", "x".repeat(249)).repeat(15);
        let mut count = 0;
        while !epoch.is_due(1, 0) {
            add(&mut epoch, &format!("{long}{count:010}"));
            count += 1;
        }
        assert_eq!(count, MOST_BYTES.div_ceil(15 * 250 + 10));
        epoch.restart(0, Instant::now());
        assert!(!epoch.is_due(1, 0));
    }

    #[test]
    fn a_change_of_cloned_bytes_needs_a_checkpoint() {
        let mut epoch = Epoch::new(1);
        let clone = |uuid: [u8; 16], epoch: &mut Epoch| {
            let compose = move |out: &mut Writer| {
                out.put(attr::PATH, b"to")
                    .put_u64(attr::FILE_OFFSET, 0)
                    .put_u64(attr::CLONE_LEN, 4096)
                    .put(attr::CLONE_UUID, &uuid)
                    .put(attr::CLONE_PATH, b"from")
                    .put_u64(attr::CLONE_OFFSET, 8192);
            };
            with(cmd::CLONE, compose, |command| {
                epoch.add(command, OWN, |_| Ok((0, 7))).unwrap();
            });
        };
        let overwrites = |epoch: &Epoch, number, id, at: u64| {
            let compose = move |out: &mut Writer| {
                out.put(attr::PATH, b"any").put_u64(attr::FILE_OFFSET, at);
                out.put_u64(attr::SIZE, at).put_data(b"text");
            };
            with(number, compose, |command| {
                let identify = |_: &[u8]| Ok((0, id));
                epoch.overwrites_source(command, identify).unwrap()
            })
        };
        clone([2; 16], &mut epoch);
        assert!(!overwrites(&epoch, cmd::WRITE, 7, 8192));
        clone(OWN, &mut epoch);
        assert!(overwrites(&epoch, cmd::WRITE, 7, 8190));
        assert!(!overwrites(&epoch, cmd::WRITE, 7, 12288));
        assert!(!overwrites(&epoch, cmd::WRITE, 8, 8192));
        assert!(overwrites(&epoch, cmd::TRUNCATE, 7, 0));
        assert!(!overwrites(&epoch, cmd::TRUNCATE, 7, 12288));
        assert!(epoch.is_touched(b"from"));
    }
}
