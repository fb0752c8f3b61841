//! Large files, read and written: by fio in a directory, by a thread in process.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use sapwood_vfs::{Credentials, FileSystem, NewInode, SyncKind, WriteMode};

use super::{Place, fio};
use crate::contestant::Standing;
use crate::error::{on, run_program};
use crate::figures::Seen;
use crate::{Error, Result};

/// The access to a large file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Big {
    /// True for writes, false for reads.
    pub write: bool,
    /// True for 4 KiB at random offsets, false for 1 MiB in sequence.
    pub random: bool,
    /// State of the system's caches.
    pub cache: Cache,
}

/// State of the system's caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cache {
    /// They are empty at the beginning.
    Cold,
    /// The file was read just before.
    Warm,
    /// `O_DIRECT`: none.
    Direct,
}

/// Bytes of the file.
const SIZE: u64 = 512 << 20;
/// Bytes that are read or written at random offsets.
const RANDOM: u64 = 64 << 20;
const FILE: &str = "big";

impl Big {
    /// All accesses, in the order of the report. Writes go to a new file, which is durable at the
    /// end of the measured time.
    pub const ALL: [Self; 10] = {
        const fn big(write: bool, random: bool, cache: Cache) -> Big {
            Big {
                write,
                random,
                cache,
            }
        }
        [
            big(true, false, Cache::Cold),
            big(true, false, Cache::Direct),
            big(true, true, Cache::Cold),
            big(true, true, Cache::Direct),
            big(false, false, Cache::Cold),
            big(false, false, Cache::Warm),
            big(false, false, Cache::Direct),
            big(false, true, Cache::Cold),
            big(false, true, Cache::Warm),
            big(false, true, Cache::Direct),
        ]
    };

    /// Name on the command line: `write-seq`, `read-rand-warm`.
    #[must_use]
    pub fn name(&self) -> String {
        let what = if self.write { "write" } else { "read" };
        let order = if self.random { "rand" } else { "seq" };
        match (self.write, self.cache) {
            (true, Cache::Cold | Cache::Warm) => format!("{what}-{order}"),
            (false, Cache::Cold) => format!("{what}-{order}-cold"),
            (_, Cache::Warm) => format!("{what}-{order}-warm"),
            (_, Cache::Direct) => format!("{what}-{order}-direct"),
        }
    }

    fn block(self) -> u64 {
        if self.random { 4 << 10 } else { 1 << 20 }
    }

    /// Bytes that the measured part moves.
    fn moved(self) -> u64 {
        if self.random { RANDOM } else { SIZE }
    }
}

pub(super) fn run(standing: &mut Standing, big: Big) -> Result<Seen> {
    // A read or a random write needs an existing file.
    if !big.write || big.random {
        match standing.place()? {
            Place::Directory(dir) => drop(by_fio(&dir, WRITTEN_FIRST, SIZE)?),
            Place::Library(fs) => drop(in_process(&*fs, WRITTEN_FIRST, SIZE)?),
        }
        standing.begin()?;
        standing.remount_cold()?;
    }
    if big.cache == Cache::Warm {
        let all = Big {
            random: false,
            ..big
        };
        match standing.place()? {
            Place::Directory(dir) => drop(by_fio(&dir, all, SIZE)?),
            Place::Library(fs) => drop(in_process(&*fs, all, SIZE)?),
        }
    }
    match standing.place()? {
        Place::Directory(dir) => by_fio(&dir, big, big.moved()),
        Place::Library(fs) => in_process(&*fs, big, big.moved()),
    }
}

const WRITTEN_FIRST: Big = Big {
    write: true,
    random: false,
    cache: Cache::Cold,
};

fn by_fio(dir: &Path, big: Big, bytes: u64) -> Result<Seen> {
    let pattern = match (big.write, big.random) {
        (true, false) => "write",
        (true, true) => "randwrite",
        (false, false) => "read",
        (false, true) => "randread",
    };
    let mut command = Command::new("fio");
    command.args(["--name=big", "--output-format=json", "--ioengine=psync"]);
    command.args(["--fallocate=none", "--randrepeat=1", "--invalidate=0"]);
    command.arg(format!("--filename={}", dir.join(FILE).display()));
    command.arg(format!("--rw={pattern}"));
    command.arg(format!("--bs={}", big.block()));
    command.arg(format!("--size={SIZE}"));
    command.arg(format!("--io_size={bytes}"));
    command.arg(format!("--direct={}", u8::from(big.cache == Cache::Direct)));
    let report = run_program(&mut command)?;
    // We measure the time ourselves: fio's report does not show whether its time includes the final
    // fsync.
    let began = Instant::now();
    if big.write {
        let path = dir.join(FILE);
        let file = File::open(&path).map_err(on(&path))?;
        file.sync_all().map_err(on(&path))?;
    }
    fio::read_big(&report, big.write, began.elapsed())
}

fn in_process(fs: &dyn FileSystem, big: Big, bytes: u64) -> Result<Seen> {
    if big.cache == Cache::Direct {
        let why = format!("{}: nothing is direct in process", big.name());
        return Err(Error::Refused(why));
    }
    let found = match fs.lookup(fs.root(), FILE.as_bytes()) {
        Ok(entry) => entry,
        Err(_) => {
            let (who, what) = (Credentials::ROOT, NewInode::Regular);
            fs.create(&who, fs.root(), FILE.as_bytes(), what, 0o644)?
        }
    };
    let ino = found.ino();
    let mut random = fastrand::Rng::with_seed(1);
    let mut block = vec![0; usize::try_from(big.block()).unwrap_or(0)];
    random.fill(&mut block);
    let began = Instant::now();
    for turn in 0..bytes / big.block() {
        let at = if big.random {
            random.u64(0..SIZE / big.block())
        } else {
            turn
        } * big.block();
        if big.write {
            fs.write(ino, at, &block, WriteMode::default())?;
        } else {
            fs.read(ino, at, &mut block)?;
        }
    }
    if big.write {
        fs.fsync(ino, SyncKind::All)?;
    }
    let seconds = began.elapsed().as_secs_f64();
    fs.forget(ino, 1);
    Ok(Seen::rate(bytes as f64 / f64::from(1 << 20) / seconds))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use sapwood_block::MemoryDevice;
    use sapwood_btrfs::{Btrfs, Options, mkfs};

    #[test]
    fn names_differ() {
        let mut names: Vec<_> = Big::ALL.iter().map(Big::name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), Big::ALL.len());
        assert!(names.contains(&"write-seq".to_owned()));
    }

    #[test]
    fn in_process_all_bytes_are_written_and_nothing_is_direct() {
        let device = Arc::new(MemoryDevice::new(256 << 20));
        mkfs::mkfs(&*device, &mkfs::MkfsOptions::default()).unwrap();
        let fs = Btrfs::open(vec![device], Options::default()).unwrap();
        in_process(&fs, WRITTEN_FIRST, 3 << 20).unwrap();
        let entry = fs.lookup(fs.root(), FILE.as_bytes()).unwrap();
        assert_eq!(fs.getattr(entry.ino()).unwrap().size, 3 << 20);
        fs.forget(entry.ino(), 1);
        let direct = Big {
            cache: Cache::Direct,
            ..WRITTEN_FIRST
        };
        assert!(in_process(&fs, direct, 1 << 20).is_err());
        fs.unmount().unwrap();
    }
}
