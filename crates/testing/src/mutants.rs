//! Mutants of a good image, and a comparison of our check with a tool's.
//!
//! The number of a mutant determines it, so that each reported difference can be repeated:
//!
//! - `SAPWOOD_MUTANTS=1500` sets the number of mutants (without it, a small slice)
//! - `SAPWOOD_MUTANTS_SEED=7` makes other mutants
//! - `SAPWOOD_MUTANT=123` makes only this one, prints the full output of both checks, and keeps the
//!   image
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::disallowed_methods
)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use sapwood_block::{Device, MemoryDevice};

/// Longest time of one check, ours or the tool's.
const LIMIT: Duration = Duration::from_secs(60);

/// The result of a check of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// The check found no damage.
    Clean,
    /// The check found this damage.
    Broken(String),
    /// The check failed, with the reason: killed by a signal, or a timeout.
    Nothing(String),
}

/// An image with one change.
#[derive(Debug)]
pub struct Mutant {
    /// The change, in one line that begins with the kind of structure.
    pub what: String,
    /// The image.
    pub device: MemoryDevice,
    /// Byte ranges of the image that differ from the good one, or may.
    pub touched: Vec<(u64, usize)>,
    /// Index of the good image that was changed.
    pub base: usize,
}

/// A change of bytes, which may be valid or invalid for the format.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// One byte becomes another one.
    Byte(u8),
    /// One bit is inverted.
    Bit(u8),
    /// Adds a small number to a little-endian number of `width` bytes.
    Add {
        /// Bytes of the number.
        width: usize,
        /// The number that is added.
        by: i64,
    },
    /// Replaces a number of `width` bytes.
    Set {
        /// Bytes of the number.
        width: usize,
        /// The new number.
        to: u64,
    },
    /// Replaces bytes with bytes from another offset.
    Copy {
        /// Number of bytes.
        width: usize,
        /// Offset of the source.
        from: usize,
    },
}

impl Change {
    /// A random change, for a buffer of `len` bytes.
    pub fn any(rng: &mut Rng, len: usize) -> Self {
        let width = 1 << rng.usize(0..4);
        match rng.u8(0..10) {
            0 => Self::Byte(rng.u8(..)),
            1..=3 => Self::Bit(rng.u8(0..8)),
            4 | 5 => Self::Add {
                width,
                by: *rng.choice(&[-4096, -2, -1, 1, 1, 2, 8, 512, 4096]).unwrap(),
            },
            6 | 7 => Self::Set {
                width,
                to: *rng.choice(&[0, 0, 1, 2, 255, 4096, u64::MAX]).unwrap(),
            },
            8 => Self::Set {
                width,
                to: rng.u64(..),
            },
            _ => Self::Copy {
                width,
                from: rng.usize(0..len),
            },
        }
    }

    /// Applies the change at `at`, or just before the end of the buffer if the number would not fit
    /// there. True if a byte differs.
    pub fn apply(self, bytes: &mut [u8], at: usize) -> bool {
        let width = match self {
            Self::Byte(_) | Self::Bit(_) => 1,
            Self::Add { width, .. } | Self::Set { width, .. } | Self::Copy { width, .. } => width,
        };
        let at = at.min(bytes.len().saturating_sub(width));
        let old = bytes[at..at + width].to_vec();
        let mut number = [0; 8];
        number[..width].copy_from_slice(&old);
        let number = u64::from_le_bytes(number);
        let new = match self {
            Self::Byte(byte) => byte.into(),
            Self::Bit(bit) => number ^ 1 << bit,
            Self::Add { by, .. } => number.wrapping_add_signed(by),
            Self::Set { to, .. } => to,
            Self::Copy { from, .. } => {
                let from = from.min(bytes.len() - width);
                let mut other = [0; 8];
                other[..width].copy_from_slice(&bytes[from..from + width]);
                u64::from_le_bytes(other)
            }
        };
        bytes[at..at + width].copy_from_slice(&new.to_le_bytes()[..width]);
        bytes[at..at + width] != old
    }
}

/// The choice and the number of mutants.
#[derive(Clone, Copy, Debug)]
pub struct MutantPlan {
    seed: u64,
    first: u64,
    count: u64,
    alone: bool,
}

impl MutantPlan {
    /// The plan of the environment variables; `slice` mutants unless they set another number.
    pub fn from_env(slice: u64) -> Self {
        let number = |name: &str| {
            let value = std::env::var(name).ok()?;
            Some(value.parse().unwrap_or_else(|_| panic!("{name}={value}")))
        };
        let one: Option<u64> = number("SAPWOOD_MUTANT");
        let count: Option<u64> = number("SAPWOOD_MUTANTS");
        Self {
            seed: number("SAPWOOD_MUTANTS_SEED").unwrap_or(1),
            first: one.unwrap_or(0),
            count: one.map_or(count.unwrap_or(slice), |_| 1),
            alone: one.is_some(),
        }
    }
}

/// A tool that checks an image file.
pub trait Oracle {
    /// The command.
    fn command(&self, image: &Path) -> Command;
    /// The meaning of its exit status and output.
    fn said(&self, status: i32, output: &str) -> Said;
}

/// The differences between the two checks, and how often they agree.
#[derive(Debug, Default)]
pub struct Tally {
    agreed: [u64; 2],
    /// The tool finds damage, and our check finds none.
    pub missed: Vec<String>,
    /// Our check finds damage, and the tool finds none; by our finding.
    stricter: BTreeMap<String, Vec<u64>>,
    /// The tool failed.
    silent: u64,
    /// Our check panicked or timed out.
    pub failed: Vec<String>,
}

impl Tally {
    fn add(&mut self, number: u64, what: &str, ours: Said, theirs: Said) {
        match (ours, theirs) {
            (Said::Nothing(how), _) => self.failed.push(format!("{number}: {what}: {how}")),
            (_, Said::Nothing(_)) => self.silent += 1,
            (Said::Clean, Said::Clean) => self.agreed[0] += 1,
            (Said::Broken(_), Said::Broken(_)) => self.agreed[1] += 1,
            (Said::Clean, Said::Broken(why)) => {
                self.missed.push(format!("{number}: {what}: {why}"));
            }
            (Said::Broken(code), Said::Clean) => {
                self.stricter.entry(code).or_default().push(number)
            }
        }
    }

    /// The whole tally as text.
    pub fn text(&self) -> String {
        let [clean, broken] = self.agreed;
        let stricter: usize = self.stricter.values().map(Vec::len).sum();
        let mut out = format!(
            "both clean {clean}, both broken {broken}, missed {}, only we say broken {stricter}, \
             tool failed {}, we failed {}\n",
            self.missed.len(),
            self.silent,
            self.failed.len(),
        );
        for line in &self.missed {
            let _ = writeln!(out, "missed {line}");
        }
        for line in &self.failed {
            let _ = writeln!(out, "failed {line}");
        }
        for (code, numbers) in &self.stricter {
            let some = numbers.iter().take(5).map(u64::to_string);
            let some: Vec<String> = some.collect();
            let _ = writeln!(
                out,
                "only we: {} {code} ({})",
                numbers.len(),
                some.join(" ")
            );
        }
        out
    }
}

/// Makes mutants and runs both checks on each.
pub fn compare(
    plan: MutantPlan,
    bases: &[&MemoryDevice],
    mutant: impl Fn(&mut Rng) -> Option<Mutant>,
    ours: fn(MemoryDevice) -> Said,
    tool: &dyn Oracle,
) -> Tally {
    let dir = tempfile::tempdir().unwrap();
    let files: Vec<PathBuf> = (0..bases.len())
        .map(|n| dir.path().join(format!("image-{n}")))
        .collect();
    for (base, file) in bases.iter().zip(&files) {
        base.save(file).unwrap();
    }
    let mut tally = Tally::default();
    for number in plan.first..plan.first + plan.count {
        let mut rng = Rng::with_seed(plan.seed << 40 ^ number);
        // A change that leaves all bytes as they are is replaced by another one.
        let mutant = (0..100).find_map(|_| mutant(&mut rng)).unwrap();
        let file = &files[mutant.base];
        copy(&mutant.device, file, &mutant.touched);
        let own = within_limit(mutant.device.snapshot(), ours);
        let theirs = ask(tool, file, plan.alone);
        if plan.alone {
            let kept = std::env::temp_dir().join(format!("mutant-{number}.img"));
            std::fs::copy(file, &kept).unwrap();
            eprintln!("{}\nours: {own:?}\ntool: {theirs:?}\n{kept:?}", mutant.what);
        }
        tally.add(number, &mutant.what, own, theirs);
        copy(bases[mutant.base], file, &mutant.touched);
    }
    tally
}

fn copy(device: &MemoryDevice, file: &Path, ranges: &[(u64, usize)]) {
    let file = std::fs::File::options().write(true).open(file).unwrap();
    for (at, len) in ranges {
        let mut bytes = vec![0; *len];
        device.read_at(*at, &mut bytes).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &bytes, *at).unwrap();
    }
}

/// Runs our check in a thread, which keeps running after a timeout.
fn within_limit(device: MemoryDevice, ours: fn(MemoryDevice) -> Said) -> Said {
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        let said = catch_unwind(AssertUnwindSafe(|| ours(device)));
        let _ = send.send(said.unwrap_or_else(|_| Said::Nothing("panics".to_owned())));
    });
    let said = receive.recv_timeout(LIMIT);
    said.unwrap_or_else(|_| Said::Nothing("does not end".to_owned()))
}

fn ask(tool: &dyn Oracle, image: &Path, show: bool) -> Said {
    let command = tool.command(image);
    // `timeout` ends a tool that runs too long, and reports it by its own exit status.
    let mut bounded = Command::new("timeout");
    bounded.args(["-k", "5", &LIMIT.as_secs().to_string()]);
    bounded.arg(command.get_program()).args(command.get_args());
    let output = bounded.stdin(Stdio::null()).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    if show {
        eprintln!("{text}");
    }
    match output.status.code() {
        Some(124 | 128..) | None => Said::Nothing(output.status.to_string()),
        Some(status) => tool.said(status, &text),
    }
}
