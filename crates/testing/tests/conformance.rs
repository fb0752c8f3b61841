//! The conformance suite against the in-memory reference.

use std::sync::Arc;

use libtest_mimic::{Arguments, Trial};
use sapwood_testing::MemoryFs;
use sapwood_testing::conformance::{Capabilities, Target, cases};
use sapwood_vfs::FileSystem;

struct Memory {
    fs: Arc<MemoryFs>,
    used: bool,
}

impl Target for Memory {
    fn mount(&mut self, read_only: bool) -> Result<Arc<dyn FileSystem>, String> {
        if std::mem::replace(&mut self.used, true) {
            self.fs.remount();
        }
        self.fs.set_read_only(read_only);
        Ok(self.fs.clone())
    }

    /// The cases themselves must drop every reference that they got.
    fn check(&mut self) -> Result<(), String> {
        match self.fs.held_references() {
            0 => Ok(()),
            held => Err(format!("{held} references were not given back")),
        }
    }
}

fn main() {
    let trials = cases().into_iter().map(|case| {
        let ignored = !case.applies(&Capabilities::MEMORY);
        let run = move || {
            let fs = Arc::new(MemoryFs::with_capacity(case.capacity()));
            let target = Memory { fs, used: false };
            Ok(case.run(Capabilities::MEMORY, Box::new(target))?)
        };
        Trial::test(case.name(), run).with_ignored_flag(ignored)
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit();
}
