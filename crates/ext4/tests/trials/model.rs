//! Random operations on images in memory, of several forms of the format, agree with the in-memory
//! reference, from one thread and from several, before and after a remount; our check and `e2fsck`
//! judge every image.
//!
//! A report names its seed. `SAPWOOD_SEED=N` starts there and `SAPWOOD_COUNT=N` runs this many with
//! one thread.

use std::sync::Arc;

use crate::image;
use libtest_mimic::{Failed, Trial};
use sapwood_block::MemoryDevice;
use sapwood_ext4::{DataMode, Ext4, Options};
use sapwood_testing::MemoryFs;
use sapwood_testing::conformance::Capabilities;
use sapwood_testing::machine::trial;
use sapwood_testing::model::{Settings, Threads, compare_trees, minimize, run_sequence};
use sapwood_vfs::FileSystem;

const SIZE: u64 = 512 << 20;

/// How an image is made and mounted, and the engine's abilities on it.
#[derive(Debug, Clone, Copy)]
struct Form {
    name: &'static str,
    mkfs: &'static [&'static str],
    data: DataMode,
    capabilities: Capabilities,
    /// Files grow to about this many bytes.
    file_size: u64,
}

const DEFAULT: Form = Form {
    name: "default",
    mkfs: &[],
    data: DataMode::Ordered,
    capabilities: Capabilities::EXT4,
    file_size: 300_000,
};

const FORMS: [Form; 7] = [
    DEFAULT,
    Form {
        name: "small_blocks",
        // Room for all attributes that may come together.
        mkfs: &["-b", "1024", "-I", "512"],
        capabilities: Capabilities {
            block_size: 1024,
            ..Capabilities::EXT4
        },
        ..DEFAULT
    },
    Form {
        name: "block_maps",
        mkfs: &["-O", "^extents,^64bit"],
        capabilities: Capabilities {
            preallocate: false,
            zero_range: false,
            shift_range: false,
            ..Capabilities::EXT4
        },
        ..DEFAULT
    },
    Form {
        name: "inline_data",
        mkfs: &["-O", "inline_data", "-I", "512"],
        ..DEFAULT
    },
    Form {
        name: "inline_tiny",
        mkfs: &["-O", "inline_data", "-I", "512"],
        file_size: 900,
        ..DEFAULT
    },
    Form {
        name: "data_journal",
        data: DataMode::Journal,
        ..DEFAULT
    },
    Form {
        name: "no_journal_old",
        mkfs: &["-O", "^has_journal,^metadata_csum,^64bit,^dir_index"],
        ..DEFAULT
    },
];

impl Form {
    /// An image without the directory that only `e2fsck` needs: the model has none.
    fn fresh(&self) -> Result<Arc<MemoryDevice>, String> {
        let device = image::formatted(SIZE, self.mkfs);
        let fs = self.mount(&device)?;
        let removed = fs.rmdir(fs.root(), b"lost+found");
        removed.map_err(|error| error.to_string())?;
        unmount(fs)?;
        Ok(device)
    }

    fn model(&self) -> MemoryFs {
        MemoryFs::like(&self.capabilities)
    }

    fn mount(&self, device: &Arc<MemoryDevice>) -> Result<Ext4, String> {
        let options = Options {
            data: self.data,
            ..Options::default()
        };
        Ext4::open(device.clone(), options).map_err(|error| error.to_string())
    }

    fn settings(&self) -> Settings {
        Settings {
            capabilities: self.capabilities,
            file_size: self.file_size,
            ..Settings::default()
        }
    }

    /// The failure of a sequence, if any, with as few operations as reproduce it.
    fn sequence(&self, seed: u64) -> Result<(), String> {
        let (device, model) = (self.fresh()?, self.model());
        let fs = self.mount(&device)?;
        run_sequence(seed, 400, &fs, &model, &self.settings()).map_err(|failure| {
            let fresh = || {
                let fs = self.fresh().and_then(|device| self.mount(&device));
                (fs.expect("it was mounted before"), self.model())
            };
            minimize(*failure, &self.settings(), fresh).to_string()
        })?;
        unmount(fs)?;
        let fs = self.mount(&device)?;
        let same = compare_trees(&fs, &model);
        unmount(fs)?;
        same.map_err(|difference| format!("seed {seed}, after a remount: {difference}"))?;
        image::judge(&device).map_err(|text| format!("seed {seed}: {text}"))
    }

    fn sequences(&self) -> Result<(), Failed> {
        let first = number("SAPWOOD_SEED", 0);
        let seeds = first..first + number("SAPWOOD_COUNT", 15);
        let faults: Vec<String> = seeds.filter_map(|seed| self.sequence(seed).err()).collect();
        if faults.is_empty() {
            Ok(())
        } else {
            Err(faults.join("\n").into())
        }
    }

    fn threads(&self) -> Result<(), Failed> {
        let first = number("SAPWOOD_SEED", 0);
        for seed in first..first + 3 {
            let device = self.fresh()?;
            let fs = self.mount(&device)?;
            let threads = Threads::run(seed, 250, 4, &fs, &self.settings())?;
            unmount(fs)?;
            let fs = self.mount(&device)?;
            threads.compare(&fs)?;
            unmount(fs)?;
            image::judge(&device).map_err(|text| format!("seed {seed}: {text}"))?;
        }
        Ok(())
    }
}

fn unmount(fs: Ext4) -> Result<(), String> {
    fs.unmount().map_err(|error| error.to_string())
}

fn number(variable: &str, default: u64) -> u64 {
    let value = std::env::var(variable).ok();
    value
        .and_then(|value| value.parse().ok())
        .unwrap_or(default)
}

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for form in &FORMS {
        let name = format!("sequences_agree::{}", form.name);
        let run = move || form.sequences();
        trials.push(trial(name, image::TOOLS, run));
        let name = format!("threads_agree::{}", form.name);
        let run = move || form.threads();
        trials.push(trial(name, image::TOOLS, run));
    }
    trials
}
