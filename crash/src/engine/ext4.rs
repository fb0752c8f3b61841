//! ext4.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use sapwood_block::{Device, MemoryDevice};
use sapwood_ext4::check::CheckOptions;
use sapwood_ext4::{DataMode, Ext4, FastCommits, Options, resize};
use sapwood_testing::op::Op;
use sapwood_testing::oracle::Kind;
use sapwood_testing::{process, scratch};
use sapwood_vfs::FileSystem;

use super::Format;
use crate::base::BaseKind;
use crate::policy::Policy;

/// ext4 has no subvolumes, no shared extents, no compression and no copy on write.
pub(super) fn can(op: &Op) -> bool {
    !matches!(
        op,
        Op::Subvolume { .. }
            | Op::Snapshot { .. }
            | Op::DeleteSubvolume { .. }
            | Op::Reflink { .. }
            | Op::Nocow { .. }
            | Op::Compress { .. }
    )
}

/// Block pointers instead of extents. One block has the descriptors of 32 groups of 2 MiB, and none
/// is reserved: a base that grows gets meta groups.
const INDIRECT: [&str; 8] = [
    "-b",
    "1024",
    "-g",
    "2048",
    "-J",
    "size=1",
    "-O",
    "^extents,^64bit,^resize_inode",
];

/// An empty file system by mke2fs, without `lost+found`: the model has none.
pub(super) fn format(kind: BaseKind, size: u64) -> Result<MemoryDevice, String> {
    let dir = scratch::directory();
    let file = dir.path().join("base");
    MemoryDevice::new(size)
        .save(&file)
        .map_err(|error| error.to_string())?;
    let args = match kind {
        BaseKind::Ext4Usual => &["-b", "4096"][..],
        BaseKind::Ext4Indirect => &INDIRECT,
        BaseKind::Ext4Fast => &["-b", "1024", "-J", "size=2", "-O", "fast_commit"],
        _ => &["-b", "1024", "-J", "size=1"],
    };
    let args = [&["-E", "lazy_itable_init=0"], args].concat();
    Kind::Ext4.format(&file, &args)?;
    remove_lost_and_found(&file)?;
    MemoryDevice::load(&file).map_err(|error| error.to_string())
}

/// Removes `lost+found` only if it is empty: files that e2fsck put there must show as a difference.
fn remove_lost_and_found(file: &Path) -> Result<(), String> {
    let mut command = process::command("debugfs", &["-w", "-R", "rmdir lost+found"]);
    process::finish(command.arg(file), process::ORDINARY).map(drop)
}

pub(super) fn open(
    device: Arc<dyn Device>,
    policy: Policy,
    threads: usize,
) -> Result<Arc<dyn FileSystem>, String> {
    if !policy.fits(Format::Ext4) {
        return Err(format!("ext4 has no policy {policy}"));
    }
    let options = Options {
        background: false,
        threads,
        cache_bytes: 8 << 20,
        data: match policy {
            Policy::DataJournal => DataMode::Journal,
            _ => DataMode::Ordered,
        },
        fast_commit: match policy {
            Policy::FullFastCommits => FastCommits::Full,
            _ => FastCommits::Careful,
        },
        ..Options::default()
    };
    match Ext4::open(device, options) {
        Ok(fs) => Ok(Arc::new(fs)),
        Err(error) => Err(error.to_string()),
    }
}

pub(super) fn size(device: &dyn Device) -> Result<u64, String> {
    resize::size(device).map_err(|error| error.to_string())
}

pub(super) fn resize(
    device: &Arc<dyn Device>,
    size: Option<u64>,
) -> Result<Result<u64, String>, String> {
    let resized = match size {
        Some(size) => resize::resize(device, size, None, &mut |_| ()),
        None => resize::shrink_to_fit(device, 0, None, &mut |_| ()),
    };
    match resized {
        Err(resize::ResizeError::Engine(error)) => Err(error.to_string()),
        other => Ok(other.map_err(|refused| refused.to_string())),
    }
}

pub(super) fn check(device: &Arc<dyn Device>) -> Result<(), String> {
    let options = CheckOptions::default();
    let report = sapwood_ext4::check::check(device, &options, &mut |_| ControlFlow::Continue(()));
    let report = report.map_err(|error| error.to_string())?;
    let first = report.errors().next().map(ToString::to_string);
    first.map_or(Ok(()), Err)
}

/// Byte range of the superblock. Only e2fsck reads copies, and only on request.
pub(super) const SUPER: (u64, u64) = (1024, 2048);

/// Bytes from the device's start to `s_feature_incompat` (kernel documentation, `ext4/super.rst`).
const INCOMPAT_AT: u64 = 1024 + 0x60;
/// `INCOMPAT_RECOVER`: the journal holds changes that are not written back yet.
const RECOVER: u32 = 0x4;

pub(super) fn has_log(image: &MemoryDevice) -> bool {
    let mut incompat = [0; 4];
    let read = image.read_at(INCOMPAT_AT, &mut incompat);
    read.is_ok() && u32::from_le_bytes(incompat) & RECOVER != 0
}

/// Length of the fields of a commit block in bytes; zeros follow (kernel documentation,
/// `ext4/journal.rst`).
const COMMIT_FIELDS: usize = 60;
/// The magic and the type of a commit block, as stored.
const COMMIT: [u8; 8] = [0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 2];
/// Offset of `s_log_block_size`: the block size is 1024 shifted left by it.
const LOG_BLOCK_AT: u64 = 1024 + 0x18;

/// Block size in bytes; the smallest one if the field is invalid.
fn block_size(image: &MemoryDevice) -> usize {
    let mut log = [0; 4];
    let read = image.read_at(LOG_BLOCK_AT, &mut log);
    let log = read.map_or(0, |()| u32::from_le_bytes(log));
    if log <= 6 { 1024 << log } else { 1024 }
}

/// A commit block that is torn after its fields is valid for the kernel and for our engine. e2fsck
/// computes the checksum of the whole block and finds it wrong. `None` if there is no such block.
pub(super) fn without_torn_commits(image: &MemoryDevice) -> Option<MemoryDevice> {
    let mut without = None;
    let mut block = vec![0; block_size(image)];
    for offset in (0..image.size()).step_by(block.len()) {
        image.read_at(offset, &mut block).ok()?;
        let torn = block[COMMIT_FIELDS..].iter().any(|byte| *byte != 0);
        if block.starts_with(&COMMIT) && torn {
            let device = without.get_or_insert_with(|| image.snapshot());
            device.write_at(offset, &vec![0; block.len()]).ok()?;
        }
    }
    without
}

/// The first bytes of the fast-commit area: the type of the head, its length, no features. The id
/// of the transaction follows, in little-endian order.
const FAST_COMMITS: [u8; 8] = [9, 0, 8, 0, 0, 0, 0, 0];

/// True if the fast-commit area has fast commits of a transaction that is committed. e2fsck (1.47)
/// then prints "Invalid argument while recovering journal" and ignores the whole log, also on
/// images of the kernel. The kernel leaves the area as it is; our engine erases it right after the
/// commit block.
pub(super) fn has_stale_fast_commits(image: &MemoryDevice) -> bool {
    let (mut committed, mut fast) = (BTreeSet::new(), BTreeSet::new());
    let size = block_size(image);
    let mut bytes = [0; 12];
    for offset in (0..image.size()).step_by(size) {
        if image.read_at(offset, &mut bytes).is_err() {
            return false;
        }
        let (kind, number) = bytes.split_at(8);
        let number: [u8; 4] = number.try_into().unwrap_or_default();
        match kind {
            kind if kind == COMMIT => committed.insert(u32::from_be_bytes(number)),
            kind if kind == FAST_COMMITS => fast.insert(u32::from_le_bytes(number)),
            _ => false,
        };
    }
    !committed.is_disjoint(&fast)
}

/// Preening replays the journal and empties the orphan list. The exit status is 0 or 1 if there was
/// nothing else to do; for damage that a crash must not leave, e2fsck gives up. It creates
/// `lost+found` again.
pub(super) fn tool_recovery(file: &Path) -> Result<(), String> {
    let mut command = process::command("e2fsck", &["-f", "-p"]);
    let said = process::finish(command.arg(file), process::ORDINARY)?;
    match said.status.code() {
        Some(0 | 1) => remove_lost_and_found(file),
        code => Err(format!("e2fsck -fp: {code:?}: {}", said.all())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_commits_are_stale_once_their_transaction_is_committed() {
        let device = MemoryDevice::new(64 << 10);
        let mut head = FAST_COMMITS.to_vec();
        head.extend(7_u32.to_le_bytes());
        device.write_at(8192, &head).unwrap();
        for (number, stale) in [(6_u32, false), (7, true)] {
            let mut commit = COMMIT.to_vec();
            commit.extend(number.to_be_bytes());
            device.write_at(16384, &commit).unwrap();
            assert_eq!(has_stale_fast_commits(&device), stale);
        }
    }

    #[test]
    fn only_commit_blocks_that_are_torn_are_left_out() {
        for (log, size) in [(0_u32, 1024), (2, 4096)] {
            let device = MemoryDevice::new(64 << 10);
            device.write_at(LOG_BLOCK_AT, &log.to_le_bytes()).unwrap();
            let mut whole = vec![0; size];
            whole[..8].copy_from_slice(&COMMIT);
            let mut torn = whole.clone();
            // The last sector has older content.
            torn[size - 512..].fill(7);
            device.write_at(8192, &whole).unwrap();
            assert!(without_torn_commits(&device).is_none());
            device.write_at(16384, &torn).unwrap();
            let without = without_torn_commits(&device).unwrap();
            let mut block = vec![1; size];
            without.read_at(16384, &mut block).unwrap();
            assert_eq!(block, vec![0; size]);
            without.read_at(8192, &mut block).unwrap();
            assert_eq!(block, whole);
        }
    }
}
