//! The conformance suite of the `FileSystem` trait, on images in memory; every image is judged
//! by `btrfs check` afterwards.

mod image;

use std::sync::Arc;

use libtest_mimic::{Arguments, Trial};
use sapwood_block::MemoryDevice;
use sapwood_btrfs::{Btrfs, Options};
use sapwood_testing::conformance::{Capabilities, Target, cases};
use sapwood_vfs::FileSystem;

struct MemoryImage(Arc<MemoryDevice>);

impl Target for MemoryImage {
    fn mount(&mut self, read_only: bool) -> Result<Arc<dyn FileSystem>, String> {
        let options = Options {
            read_only,
            ..Options::default()
        };
        let fs = Btrfs::open(vec![self.0.clone()], options).map_err(|error| error.to_string())?;
        Ok(Arc::new(fs))
    }

    fn check(&mut self) -> Result<(), String> {
        image::judge(&self.0)
    }
}

fn main() {
    image::show_log();
    let trials = cases().into_iter().map(|case| {
        let ignored = !case.applies(&Capabilities::BTRFS);
        let run = move || {
            let image = MemoryImage(image::formatted(case.capacity()));
            Ok(case.run(Capabilities::BTRFS, Box::new(image))?)
        };
        Trial::test(case.name(), run).with_ignored_flag(ignored)
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit();
}
