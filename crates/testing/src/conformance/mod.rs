//! The suite that every engine must pass: one [`Case`] per guarantee of
//! [`FileSystem`](sapwood_vfs::FileSystem).
//!
//! # How it works
//! An engine implements [`Target`]: a fresh file system that can be mounted repeatedly. A case gets
//! a target and mounts it. It works through the trait alone and unmounts. At the end the target
//! checks itself (an engine runs its own checker there). [`Capabilities`] declare the differences
//! between engines; a case that needs a missing capability does not apply.
//!
//! The outcome of every case is deterministic, also with several threads. A case runs in a thread
//! of its own, so that a panic or a deadlock fails the case and not the whole run.
//!
//! The test file of an engine, with `harness = false` in its manifest:
//!
//! ```ignore
//! use sapwood_testing::conformance::{Capabilities, Target, cases};
//!
//! struct Image(Arc<MemoryDevice>);
//!
//! impl Target for Image {
//!     fn mount(&mut self, read_only: bool) -> Result<Arc<dyn FileSystem>, String> {
//!         let options = Options { read_only, ..Options::default() };
//!         let mounted = Engine::open(self.0.clone(), options).map_err(|e| e.to_string())?;
//!         Ok(Arc::new(mounted))
//!     }
//!
//!     fn check(&mut self) -> Result<(), String> {
//!         let findings = check(&self.0).map_err(|e| e.to_string())?;
//!         findings.is_empty().then_some(()).ok_or_else(|| format!("{findings:?}"))
//!     }
//! }
//!
//! fn main() {
//!     let trials = cases().into_iter().map(|case| {
//!         let ignored = !case.applies(&Capabilities::BTRFS);
//!         let run = move || {
//!             let image = Image(formatted(case.capacity()));
//!             Ok(case.run(Capabilities::BTRFS, Box::new(image))?)
//!         };
//!         libtest_mimic::Trial::test(case.name(), run).with_ignored_flag(ignored)
//!     });
//!     let arguments = libtest_mimic::Arguments::from_args();
//!     libtest_mimic::run(&arguments, trials.collect()).exit();
//! }
//! ```

mod acls;
mod attributes;
mod case;
mod copies;
mod create;
mod data;
mod durability;
mod flags;
mod links;
mod listing;
mod lookup;
mod ranges;
mod remove;
mod rename;
mod subvolumes;
mod support;
mod threads;
mod times;
mod whiteouts;
mod xattrs;

pub(crate) use case::panic_text;
pub use case::{Capabilities, Case, Target};

/// All cases, grouped by topic. Names are unique and read `topic::promise`.
#[must_use]
pub fn cases() -> Vec<Case> {
    [
        lookup::cases(),
        create::cases(),
        remove::cases(),
        links::cases(),
        rename::cases(),
        whiteouts::cases(),
        listing::cases(),
        data::cases(),
        ranges::cases(),
        copies::cases(),
        attributes::cases(),
        times::cases(),
        xattrs::cases(),
        acls::cases(),
        flags::cases(),
        durability::cases(),
        subvolumes::cases(),
        threads::cases(),
    ]
    .concat()
}
