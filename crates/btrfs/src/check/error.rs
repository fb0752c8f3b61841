//! Errors that prevent a check.

use sapwood_btrfs_format::SuperError;
use thiserror::Error;

/// Errors of a check without a report.
#[derive(Debug, Error)]
pub enum CheckError {
    /// No devices were given.
    #[error("no device given")]
    NoDevice,
    /// A device could not be read.
    #[error(transparent)]
    Device(#[from] sapwood_block::Error),
    /// No sign of btrfs: the device is too small, or the magic number is missing.
    #[error("{device}: no btrfs file system")]
    NotBtrfs {
        /// Device name.
        device: String,
    },
    /// No copy of the superblock is valid; the error belongs to the first.
    #[error("{device}: no valid superblock: {source}")]
    NoSuperblock {
        /// Device name.
        device: String,
        /// The error of the first copy.
        source: SuperError,
    },
    /// A device belongs to another file system than the first.
    #[error("{device}: belongs to another file system")]
    ForeignDevice {
        /// Device name.
        device: String,
    },
    /// Fewer devices than in the superblock.
    #[error("the file system has {expected} devices, {found} given")]
    MissingDevices {
        /// Number in the superblock.
        expected: u64,
        /// Number of devices given.
        found: usize,
    },
    /// More devices than in the superblock.
    #[error("the file system has {expected} devices, {found} given: leave out those not in it")]
    SurplusDevices {
        /// Number in the superblock.
        expected: u64,
        /// Number of devices given.
        found: usize,
    },
    /// Two devices have the same number: one is a copy of the other, or was given twice.
    #[error("{device}: has the number of another device given, {devid}: leave out one of them")]
    DuplicateDevice {
        /// Device name.
        device: String,
        /// Number of the device.
        devid: u64,
    },
    /// A device to repair misses commits that another one has.
    #[error(
        "{device}: has generation {found}, the file system {newest}: bring the device up to date \
         with `sapwood scrub` first"
    )]
    StaleDevice {
        /// Device name.
        device: String,
        /// Its generation.
        found: u64,
        /// Generation of the newest superblock.
        newest: u64,
    },
    /// A chunk to repair is on a device that is not there.
    #[error("chunk {chunk}: device {devid} is not there: the file system is not repaired")]
    ChunkWithoutDevice {
        /// Address of the chunk.
        chunk: u64,
        /// Number of the device.
        devid: u64,
    },
    /// Unknown features that change the rules of a check.
    #[error("unsupported features: {0}")]
    Features(String),
    /// An unsupported profile.
    #[error("chunk {logical}: unsupported profile {profile}")]
    Profile {
        /// Address of the chunk.
        logical: u64,
        /// Name of the profile.
        profile: &'static str,
    },
    /// A tree that a repair wrote anew is not valid: a bug.
    #[error("a repair made a bad tree: {0}")]
    Rebuilt(String),
}
