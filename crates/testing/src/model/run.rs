//! Running the same operations on a file system and on its model.

use std::fmt::Display;

use super::{Generator, Settings};
use crate::op::{Op, Outcome, Session};
use crate::tree::{Detail, Facts, Tree};
use crate::{MemoryFs, conformance};
use sapwood_vfs::{Credentials, FileSystem, Ino, NewInode};

/// Attempts to remove operations before [`minimize`] stops.
const ATTEMPTS: usize = 2000;

/// The first difference of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Seed of the sequence, if it was generated.
    pub seed: Option<u64>,
    /// Operations up to the one that showed the difference.
    pub ops: Vec<Op>,
    /// The difference.
    pub what: String,
}

impl Display for Failure {
    /// Prints the difference, the seed, and the last operations.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const SHOWN: usize = 40;
        let len = self.ops.len();
        match self.seed {
            Some(seed) => writeln!(f, "seed {seed}, operation {len}: {}", self.what)?,
            None => writeln!(f, "operation {len}: {}", self.what)?,
        }
        let left_out = len.saturating_sub(SHOWN);
        if left_out > 0 {
            writeln!(f, "  ({left_out} operations before these)")?;
        }
        for (number, op) in self.ops.iter().enumerate().skip(left_out) {
            writeln!(f, "  {:4} {op}", number + 1)?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}

/// A file system or model, and the directory in it to work in.
type Side<'a> = (&'a dyn FileSystem, Ino);

/// Applies the first `len` operations of `seed` to `fs` and to `model`, both at their root. Both
/// must be equal at the start.
///
/// # Errors
/// The first difference.
pub fn run_sequence(
    seed: u64,
    len: usize,
    fs: &dyn FileSystem,
    model: &dyn FileSystem,
    settings: &Settings,
) -> Result<(), Box<Failure>> {
    let ops: Vec<Op> = Generator::new(seed, settings).take(len).collect();
    run(&ops, (fs, fs.root()), (model, model.root()), settings).map_err(|failure| {
        Box::new(Failure {
            seed: Some(seed),
            ..*failure
        })
    })
}

/// Applies given operations like [`run_sequence`].
///
/// # Errors
/// The first difference.
pub fn replay(
    ops: &[Op],
    fs: &dyn FileSystem,
    model: &dyn FileSystem,
    settings: &Settings,
) -> Result<(), Box<Failure>> {
    run(ops, (fs, fs.root()), (model, model.root()), settings)
}

/// Compares two whole file systems: names, types, permissions, owners, link counts, sizes,
/// content, extended attributes, targets, device numbers, flags, and which names lead to the same
/// inode. Times, inode numbers and allocation are not compared.
///
/// # Errors
/// The differences, or an error of either.
pub fn compare_trees(one: &dyn FileSystem, other: &dyn FileSystem) -> Result<(), String> {
    compare_below((one, one.root()), (other, other.root()))
}

/// Compares two directories and everything below them, like [`compare_trees`].
fn compare_below(one: Side<'_>, other: Side<'_>) -> Result<(), String> {
    let read = |side: Side<'_>| Tree::of_directory(side.0, side.1, Detail::Bytes);
    let one = read(one).map_err(|why| format!("the first: {why}"))?;
    let other = read(other).map_err(|why| format!("the second: {why}"))?;
    one.compare(&other, |_, node, _| node.plain() | Facts::FLAGS)
}

fn run(ops: &[Op], fs: Side<'_>, model: Side<'_>, settings: &Settings) -> Result<(), Box<Failure>> {
    let failure = |step: usize, what: String| {
        Box::new(Failure {
            seed: None,
            ops: ops[..step].to_vec(),
            what,
        })
    };
    let mut real = Session::new(fs.0, fs.1);
    let mut reference = Session::new(model.0, model.1);
    for (number, op) in ops.iter().enumerate() {
        let step = number + 1;
        if op.changes_subvolumes() {
            real.release_all();
            reference.release_all();
        }
        let (got, want) = (real.apply(op), reference.apply(op));
        if got != want || matches!(got, Outcome::Wrong(_)) {
            let what = format!("got {}, the model says {}", short(&got), short(&want));
            return Err(failure(step, what));
        }
        if step % settings.compare_every.max(1) == 0 {
            compare_below(fs, model).map_err(|found| failure(step, found))?;
        }
    }
    compare_below(fs, model).map_err(|found| failure(ops.len(), found))
}

/// An outcome with long data shortened.
fn short(outcome: &Outcome) -> String {
    const SHOWN: usize = 64;
    match outcome {
        Outcome::Bytes(bytes) if bytes.len() > SHOWN => {
            // The sum distinguishes data with the same beginning.
            let sum = bytes.iter().fold(0u64, |sum, byte| {
                sum.wrapping_mul(1_099_511_628_211) ^ u64::from(*byte)
            });
            let start = &bytes[..SHOWN];
            format!("{} bytes (sum {sum:x}) from {start:?}", bytes.len())
        }
        other => format!("{other:?}"),
    }
}

/// Removes operations from a failing sequence while it still fails on fresh file systems. `fresh`
/// makes a file system and its model. Returns the failure of the remaining sequence, or the given
/// one if it no longer fails.
#[must_use]
pub fn minimize<F, M>(
    failure: Failure,
    settings: &Settings,
    mut fresh: impl FnMut() -> (F, M),
) -> Failure
where
    F: FileSystem,
    M: FileSystem,
{
    let settings = Settings {
        compare_every: 1,
        ..*settings
    };
    let mut fails = |ops: &[Op]| {
        let (fs, model) = fresh();
        replay(ops, &fs, &model, &settings).err()
    };
    let Some(mut least) = fails(&failure.ops) else {
        return failure;
    };
    let (mut chunk, mut attempts) = (least.ops.len().div_ceil(2), 0);
    while chunk > 0 && attempts < ATTEMPTS {
        let mut at = 0;
        while at < least.ops.len() && attempts < ATTEMPTS {
            let mut without = least.ops.clone();
            without.drain(at..(at + chunk).min(without.len()));
            attempts += 1;
            match fails(&without) {
                Some(shorter) => least = shorter,
                None => at += chunk,
            }
        }
        chunk /= 2;
    }
    Failure {
        seed: failure.seed,
        ..*least
    }
}

/// A run of several threads on one file system, and the models that they left.
#[derive(Debug)]
pub struct Threads {
    seed: u64,
    models: Vec<MemoryFs>,
}

impl Threads {
    /// Starts `count` threads on `fs`. Each applies `len` operations in a directory of its own
    /// (named by [`Threads::name`], made in the root) and to a model of its own.
    ///
    /// # Errors
    /// The first difference that a thread found, with the seed of the whole run and the operations
    /// of that thread; an error of making the directories; or a panic.
    pub fn run(
        seed: u64,
        len: usize,
        count: usize,
        fs: &dyn FileSystem,
        settings: &Settings,
    ) -> Result<Self, Box<Failure>> {
        let models: Vec<MemoryFs> = (0..count)
            .map(|_| MemoryFs::like(&settings.capabilities))
            .collect();
        let ends: Vec<_> = std::thread::scope(|scope| {
            let start = |(number, model)| {
                // The seeds are far apart, so that neighbouring runs have no thread in common.
                let own = seed.wrapping_mul(1_000_003).wrapping_add(number as u64);
                let ops: Vec<Op> = Generator::new(own, settings).take(len).collect();
                scope.spawn(move || in_own_directory(number, &ops, fs, model, settings))
            };
            let workers: Vec<_> = models.iter().enumerate().map(start).collect();
            workers.into_iter().map(|worker| worker.join()).collect()
        });
        for (number, end) in ends.into_iter().enumerate() {
            let result = end.unwrap_or_else(|payload| {
                let text = conformance::panic_text(&*payload);
                Err(Box::new(Failure {
                    seed: None,
                    ops: Vec::new(),
                    what: format!("panicked: {text}"),
                }))
            });
            result.map_err(|failure| {
                Box::new(Failure {
                    seed: Some(seed),
                    what: format!("thread {number}: {}", failure.what),
                    ..*failure
                })
            })?;
        }
        Ok(Self { seed, models })
    }

    /// Name of the directory of a thread.
    #[must_use]
    pub fn name(number: usize) -> String {
        format!("thread-{number}")
    }

    /// Compares the directories of all threads with their models again, for example after a
    /// remount.
    ///
    /// # Errors
    /// The first difference.
    pub fn compare(&self, fs: &dyn FileSystem) -> Result<(), Box<Failure>> {
        for (number, model) in self.models.iter().enumerate() {
            compare_directories(number, fs, model).map_err(|difference| {
                Box::new(Failure {
                    seed: Some(self.seed),
                    ops: Vec::new(),
                    what: format!("thread {number}, afterwards: {difference}"),
                })
            })?;
        }
        Ok(())
    }
}

fn in_own_directory(
    number: usize,
    ops: &[Op],
    fs: &dyn FileSystem,
    model: &MemoryFs,
    settings: &Settings,
) -> Result<(), Box<Failure>> {
    let make = |fs: &dyn FileSystem| {
        let name = Threads::name(number);
        let (root, who) = (fs.root(), Credentials::ROOT);
        fs.create(&who, root, name.as_bytes(), NewInode::Directory, 0o755)
            .map(|entry| entry.ino())
            .map_err(|error| {
                Box::new(Failure {
                    seed: None,
                    ops: Vec::new(),
                    what: format!("making '{name}': {error:?}"),
                })
            })
    };
    let (real, reference) = (make(fs)?, make(model)?);
    let end = run(ops, (fs, real), (model, reference), settings);
    fs.forget(real, 1);
    model.forget(reference, 1);
    end
}

fn compare_directories(number: usize, fs: &dyn FileSystem, model: &MemoryFs) -> Result<(), String> {
    let name = Threads::name(number);
    let find = |fs: &dyn FileSystem| {
        let found = fs.lookup(fs.root(), name.as_bytes());
        found
            .map(|entry| entry.ino())
            .map_err(|error| format!("{name}: lookup: {error:?}"))
    };
    let (real, reference) = (find(fs)?, find(model)?);
    let end = compare_below((fs, real), (model, reference));
    fs.forget(real, 1);
    model.forget(reference, 1);
    end
}
