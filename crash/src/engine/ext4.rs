//! ext4.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use sapwood_block::{Device, MemoryDevice};
use sapwood_vfs::FileSystem;

use super::run;
use crate::base::BaseKind;
use crate::op::Op;
use crate::policy::Policy;

const MISSING: &str = "the engine for ext4 is not built in yet";

/// No subvolumes, no shared extents, no compression, no writes elsewhere than in place.
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

pub(super) fn format(_kind: BaseKind, _device: &MemoryDevice) -> Result<(), String> {
    Err(MISSING.to_owned())
}

pub(super) fn open(
    _device: Arc<dyn Device>,
    _policy: Policy,
    _threads: usize,
) -> Result<Arc<dyn FileSystem>, String> {
    Err(MISSING.to_owned())
}

pub(super) fn check(_device: &dyn Device) -> Result<(), String> {
    Err(MISSING.to_owned())
}

/// Bytes from the device's start to `s_feature_incompat` (kernel documentation, `ext4/super.rst`).
const INCOMPAT_AT: u64 = 1024 + 0x60;
/// `INCOMPAT_RECOVER`: the journal holds what is not at its place yet.
const RECOVER: u32 = 0x4;

pub(super) fn has_log(image: &MemoryDevice) -> bool {
    let mut incompat = [0; 4];
    let read = image.read_at(INCOMPAT_AT, &mut incompat);
    read.is_ok() && u32::from_le_bytes(incompat) & RECOVER != 0
}

pub(super) fn tool_check(file: &Path) -> Result<(), String> {
    let mut command = Command::new("e2fsck");
    command.args(["-f", "-n"]).arg(file);
    match run(command)? {
        (Some(0), _) => Ok(()),
        (code, said) => Err(format!("e2fsck -fn: {code:?}: {said}")),
    }
}

/// Preening replays the journal and empties the list of orphans. It ends with 0 or 1 if that was
/// all, and gives up on anything that a crash must not leave.
pub(super) fn tool_recovery(file: &Path) -> Result<(), String> {
    let mut command = Command::new("e2fsck");
    command.args(["-f", "-p"]).arg(file);
    match run(command)? {
        (Some(0 | 1), _) => Ok(()),
        (code, said) => Err(format!("e2fsck -fp: {code:?}: {said}")),
    }
}
