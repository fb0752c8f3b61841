//! The conformance suite of the `FileSystem` trait, on images in memory; every image is judged
//! by `e2fsck` afterwards. Some of the cases run again on older forms of the format.

mod image;

use std::sync::Arc;

use libtest_mimic::{Arguments, Trial};
use sapwood_block::MemoryDevice;
use sapwood_ext4::{Ext4, Options};
use sapwood_vfs::FileSystem;
use sapwood_vfs::conformance::{Capabilities, Target, cases};

struct Image(Arc<MemoryDevice>);

impl Target for Image {
    fn mount(&mut self, read_only: bool) -> Result<Arc<dyn FileSystem>, String> {
        let options = Options {
            read_only,
            ..Options::default()
        };
        let fs = Ext4::open(self.0.clone(), options).map_err(|error| error.to_string())?;
        Ok(Arc::new(fs))
    }

    fn check(&mut self) -> Result<(), String> {
        image::judge(&self.0)
    }
}

fn main() {
    image::show_log();
    let missing = image::missing();
    let trials = cases().into_iter().map(|case| {
        let ignored = missing.is_some() || !case.applies(&Capabilities::EXT4);
        let run = move || {
            let image = Image(image::formatted(case.capacity(), &[]));
            Ok(case.run(Capabilities::EXT4, Box::new(image))?)
        };
        Trial::test(case.name(), run).with_ignored_flag(ignored)
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit();
}
