//! The crash explorer: a workload runs on a recording device; every state that a power cut could
//! have left behind is recovered and judged.
//!
//! # How it works
//! 1. [`record`]: a [`Workload`](record::Workload) runs on the engine and on the reference model
//!    side by side. [`threads`] have a directory each; in a [`race`] they share names, and
//!    [`orders`] stands in for the model; [`again`] begins with what a crash left. Marks in the device's log say when each operation began and returned.
//! 2. [`cut`]: the crashes of that log: prefixes, lost, paired, torn writes, by chance.
//! 3. [`image`]: crashes that leave the same image, or one that differs only where recovery never
//!    looks, are judged once.
//! 4. [`judge`]: the image is mounted, read, checked, and compared by the [`oracle`] with what must
//!    and what may be there.
//!
//! 5. [`desk`]: a sampled share goes to the [`kernel`], whose tree has to equal ours.
//!
//! A failure is made smaller by [`shrink`], and has an id, the text of workload and cut, that replays it alone.

pub mod actor;
pub mod again;
pub mod base;
pub mod bounded;
pub mod campaign;
pub mod cases;
pub mod cut;
pub mod delay;
pub mod desk;
pub mod engine;
pub mod explore;
pub mod image;
pub mod judge;
pub mod kernel;
pub mod op;
pub mod oracle;
pub mod orders;
pub mod plant;
pub mod policy;
pub mod race;
pub mod record;
pub mod shrink;
pub mod step;
pub mod subject;
pub mod threads;
pub mod tree;
