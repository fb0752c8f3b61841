//! Shared by the tests of all crates. A product crate depends on it only for its own tests.
//!
//! | module | contents |
//! |---|---|
//! | [`conformance`] | the suite that every engine passes |
//! | [`memory`] | a file system in memory, the model |
//! | [`op`] | one operation on a file system: its text, and how it is applied |
//! | [`model`] | random operations on an engine and on the model, compared |
//! | [`tree`] | everything that is visible of a file system, and the differences of two |
//! | [`tour`] | one call of each kind on every inode of a hostile image |
//! | [`mutants`] | images with wrong bytes, and a comparison of two checks on them |
//! | [`device`] | devices that record, fail, tear, hold or count requests |
//! | [`file_content`] | the bytes of an image before and after |
//! | [`machine`] | abilities of the machine; tests that need a missing one are left out by name |
//! | [`oracle`] | `btrfs check`, `e2fsck`, mounts by the kernel on loop devices |
//! | [`process`], [`scratch`] | running programs; directories that a killed run leaves are removed |
//! | [`aio`], [`credentials`] | system calls that tests need |

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

pub mod aio;
pub mod conformance;
pub mod credentials;
pub mod device;
pub mod file_content;
pub mod machine;
pub mod memory;
pub mod model;
pub mod mutants;
pub mod op;
pub mod oracle;
pub mod process;
pub mod scratch;
pub mod tour;
pub mod tree;

pub use device::{
    Action, CountDevice, Counts, CrashPlan, Epoch, Fault, FaultDevice, FaultRule, GateDevice, Held,
    RecordDevice, RecordLog, Replayer, Request, RequestKind, RequestKinds, Step, Torn,
};
pub use file_content::FileContent;
pub use memory::MemoryFs;
pub use oracle::unmount;
