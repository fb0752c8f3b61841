//! The conformance suite of the `FileSystem` trait, on images in memory; every image is judged
//! by `e2fsck` afterwards. The cases run again on other forms of the format.

use std::sync::Arc;

use crate::image;
use libtest_mimic::Trial;
use sapwood_block::MemoryDevice;
use sapwood_ext4::{Ext4, Options};
use sapwood_testing::conformance::{Capabilities, Target, cases};
use sapwood_testing::machine;
use sapwood_vfs::FileSystem;

struct MemoryImage(Arc<MemoryDevice>);

impl Target for MemoryImage {
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

/// Forms of the format. The first is the default of `mke2fs`.
const FORMS: [(&str, &[&str]); 7] = [
    ("default", &[]),
    (
        "small_blocks",
        &["-b", "1024", "-O", "^metadata_csum,^64bit"],
    ),
    ("block_maps", &["-O", "^extents,^64bit,^dir_index"]),
    ("no_journal", &["-O", "^has_journal"]),
    ("inline_data", &["-O", "inline_data", "-I", "512"]),
    (
        "orphan_file",
        &["-O", "orphan_file,meta_bg,^resize_inode", "-b", "2048"],
    ),
    ("ea_inode", &["-O", "ea_inode,uninit_bg,^metadata_csum"]),
];

/// Features that an engine lacks on an image of this form.
fn capabilities(options: &[&str]) -> Capabilities {
    let mut capabilities = Capabilities::EXT4;
    if options.is_empty() {
        capabilities.link_max = Some(65_000);
    }
    let has = |what: &str| options.iter().any(|option| option.contains(what));
    for (size, bytes) in [("1024", 1024), ("2048", 2048)] {
        if has(size) {
            capabilities.block_size = bytes;
            capabilities.max_file_size = bytes * u64::from(u32::MAX);
            capabilities.xattr_value = bytes as usize * 3 / 4;
            capabilities.xattr_count = 12;
        }
    }
    if has("^extents") {
        capabilities.max_file_size = 4_402_345_721_856;
        capabilities.preallocate = false;
        capabilities.zero_range = false;
        capabilities.shift_range = false;
    }
    capabilities
}

/// Whether a case needs a feature that a form lacks: block maps reach less far; with small blocks
/// there is no room for long link targets, large attributes, and files of 8 TiB.
fn is_beyond(form: &str, case: &str) -> bool {
    let beyond: &[&str] = match form {
        "block_maps" => &["far_offsets_work"],
        "small_blocks" => &[
            "symlink_takes_any_target",
            "far_offsets_work",
            "values_change_their_length",
            "xattr::many_on_one_inode",
            "xattr::they_survive_a_remount",
        ],
        "orphan_file" => &["symlink_takes_any_target", "far_offsets_work"],
        _ => &[],
    };
    beyond.iter().any(|part| case.contains(part))
}

/// Whether a case is listed without `SAPWOOD_FULL=1`: every case on the default form and on two
/// others.
fn is_usual(form: usize, case: usize) -> bool {
    form == 0 || (form + case).is_multiple_of(3)
}

pub(crate) fn trials() -> Vec<Trial> {
    let missing = machine::missing(image::TOOLS);
    let mut trials = Vec::new();
    for (number, (form, options)) in FORMS.into_iter().enumerate() {
        let capabilities = capabilities(options);
        for (index, case) in cases().into_iter().enumerate() {
            if !machine::full() && !is_usual(number, index) {
                continue;
            }
            let ignored =
                missing.is_some() || !case.applies(&capabilities) || is_beyond(form, &case.name());
            let name = format!("{form}::{}", case.name());
            let run = move || {
                let image = MemoryImage(image::formatted(case.capacity(), options));
                Ok(case.run(capabilities, Box::new(image))?)
            };
            trials.push(Trial::test(name, run).with_ignored_flag(ignored));
        }
    }
    trials
}
