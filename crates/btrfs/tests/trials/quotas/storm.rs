//! Random operations on files and subvolumes with quotas.

use sapwood_btrfs::Btrfs;
use sapwood_vfs::{CopyMode, Credentials, Error, FileSystem, NewInode, Subvolumes, WriteMode};

use super::{assert_right, close, image, open};

#[derive(Debug)]
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % sides
    }
}

/// `None` for an error that a concurrent deletion, or a read-only subvolume, explains.
fn expected<T>(result: Result<T, Error>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(
            Error::NotFound
            | Error::Exists
            | Error::ReadOnly
            | Error::Busy
            | Error::IsDirectory
            | Error::NotEmpty
            | Error::Invalid
            | Error::Stale,
        ) => None,
        Err(error) => panic!("{error:?}"),
    }
}

pub(super) fn storm_files(fs: &Btrfs, dice: &mut Dice, rounds: u32) {
    for _ in 0..rounds {
        let subs = ["a", "b", "s", "s0", "s1", "s2", "s3"];
        let name = subs[dice.roll(subs.len() as u64) as usize];
        let Some(sub) = expected(fs.lookup(fs.root(), name.as_bytes())) else {
            continue;
        };
        for _ in 0..20 {
            let name = format!("f{}", dice.roll(60));
            if dice.roll(4) == 0 {
                expected(fs.unlink(sub.ino(), name.as_bytes()));
                continue;
            }
            let who = Credentials::ROOT;
            let what = NewInode::Regular;
            let made = match fs.create(&who, sub.ino(), name.as_bytes(), what, 0o600) {
                Err(Error::Exists) => fs.lookup(sub.ino(), name.as_bytes()),
                other => other,
            };
            let Some(made) = expected(made) else {
                continue;
            };
            let (at, len) = (dice.roll(100_000), dice.roll(60_000) + 1);
            let data = vec![at as u8; len as usize];
            match dice.roll(3) {
                0 => {
                    let name = format!("f{}", dice.roll(60));
                    if let Some(other) = expected(fs.lookup(sub.ino(), name.as_bytes())) {
                        let len = dice.roll(10) * 4096;
                        let mode = CopyMode::ShareOnly;
                        expected(fs.copy_range(other.ino(), 0, made.ino(), 8192, len, mode));
                        fs.forget(other.ino(), 1);
                    }
                }
                _ => {
                    expected(fs.write(made.ino(), at, &data, WriteMode::default()));
                }
            }
            fs.forget(made.ino(), 1);
        }
        fs.forget(sub.ino(), 1);
    }
}

/// Threads that write, take snapshots and delete them.
pub(super) fn storm(seed: u64) {
    let image = image(
        &["-n", "4096"],
        "btrfs subvolume create s0 > /dev/null; btrfs subvolume create s1 > /dev/null",
    );
    let fs = open(image.path());
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let fs = &fs;
            scope.spawn(move || {
                let mut dice = Dice(seed * 1000 + thread + 1);
                if thread > 0 {
                    return storm_files(fs, &mut dice, 60);
                }
                for _ in 0..40 {
                    let (from, to) = (dice.roll(4), dice.roll(4));
                    let target = format!("s{to}");
                    if dice.roll(3) == 0 {
                        expected(fs.delete_subvolume(fs.root(), target.as_bytes()));
                        continue;
                    }
                    let name = format!("s{from}");
                    let Some(source) = expected(fs.lookup(fs.root(), name.as_bytes())) else {
                        continue;
                    };
                    let made =
                        expected(fs.snapshot(source.ino(), fs.root(), target.as_bytes(), false));
                    if let Some(made) = made {
                        fs.forget(made.ino(), 1);
                    }
                    fs.forget(source.ino(), 1);
                }
            });
        }
    });
    assert!(fs.finish_cleaning(), "seed {seed}: something is in use");
    close(fs);
    assert_right(&image);
}
