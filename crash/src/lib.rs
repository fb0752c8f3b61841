//! The crash explorer: a workload runs on a recording device, and every state that a power cut
//! could have left is recovered and checked.
//!
//! # How it works
//! 1. [`record`]: a [`Workload`](record::Workload) runs on the engine and on the reference model
//!    side by side. The [`threads`] of a workload have a directory each; in a [`race`] they share
//!    names, and [`orders`] takes the place of the model; [`again`] begins with the state that a
//!    crash left; a [`reshape`] changes the size, or discards free space, without a mount. Marks in
//!    the device's log record when each operation began and returned.
//! 2. [`cut`]: chooses crashes of that log: prefixes, lost writes, torn writes, random ones.
//! 3. [`image`]: crashes that leave the same image, or differ only in sectors that recovery does
//!    not read, are checked once.
//! 4. [`judge`]: mounts the image, reads and checks it; the [`oracle`] compares the tree with the
//!    required and the allowed states.
//!
//! 5. [`kernel_queue`]: a sample of the images goes to the [`kernel`], whose tree must equal ours.
//!
//! [`sets`] does the same for several devices whose caches are lost independently, while block groups
//! move and devices come and go.
//!
//! [`shrink`] makes a failing workload smaller. The id of a failure, the text of workload and
//! crash, is enough to reproduce it.

pub mod again;
pub mod base;
pub mod bounded;
pub mod campaign;
pub mod cases;
pub mod cut;
pub mod delay;
pub mod engine;
pub mod explore;
pub mod image;
pub mod judge;
pub mod kernel;
pub mod kernel_queue;
pub mod oracle;
pub mod orders;
pub mod plant;
pub mod policy;
pub mod race;
pub mod record;
pub mod reshape;
pub mod sets;
pub mod shrink;
pub mod step;
pub mod subject;
pub mod threads;
