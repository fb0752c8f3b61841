//! Many small files: one client unpacks an archive and lists, reads and removes the files.
//!
//! The archive is written before the measured part, from a fixed seed, without a tree on disk. Its
//! files have 0.2 to 12 KiB, with [`PER_DIRECTORY`] files in each directory.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use serde_json::json;

use crate::contestant::Standing;
use crate::error::{io_error, on, run_program};
use crate::figures::{Counted, Seen};
use crate::usage::Usage;
use crate::workload::Place;
use crate::{Error, Result};

/// Number of files of a directory.
const PER_DIRECTORY: u32 = 100;
/// Number of directories of a directory.
const PER_PACKAGE: u32 = 10;
/// Greatest number of files that are read.
const READ: usize = 20_000;
/// Bytes of the smallest and the largest file.
const SIZES: (usize, usize) = (200, 12_000);

pub(super) fn run(dir: &Path, standing: &mut Standing, files: u32) -> Result<Seen> {
    let archive = standing.scratch()?.join("small.tar");
    let file = File::create(&archive).map_err(on(&archive))?;
    write_archive(BufWriter::with_capacity(1 << 20, file), files).map_err(on(&archive))?;
    standing.begin()?;
    let before = standing.process().map(Usage::of).transpose()?;
    let mut unpack = Command::new("tar");
    let unpacked = timed(unpack.arg("-xf").arg(&archive).arg("-C").arg(dir))?;
    let counted = standing.counted()?;
    let after = standing.process().map(Usage::of).transpose()?;
    let (began, each) = (Instant::now(), f64::from(files));
    standing.begin()?;
    let durable = began.elapsed().as_secs_f64();
    standing.remount_cold()?;
    let Place::Directory(dir) = standing.place()? else {
        return Err(Error::Refused("a mount is needed".to_owned()));
    };
    let mut find = Command::new("find");
    let listed = timed(find.arg(&dir).args(["-type", "f", "-printf", "%s\\n"]))?;
    let read = read_some(&dir, files)?;
    let removed = timed(Command::new("rm").arg("-rf").arg(dir.join("small")))?;
    let mut seen = Seen::rate(each / unpacked)
        .with("s", unpacked)
        .with("durable_s", durable)
        .with("find_s", listed)
        .with("read_s", read)
        .with("remove_s", removed);
    if let (Some(before), Some(after)) = (before, after) {
        let used = after.since(&before);
        seen = seen
            .with("cpu_us", used.processor_seconds * 1e6 / each)
            .with("switches", used.switches as f64 / each);
    }
    Ok(match counted {
        Some(counted) => with_requests(seen, &counted, each),
        None => seen,
    })
}

/// Seconds that a program took.
fn timed(command: &mut Command) -> Result<f64> {
    let began = Instant::now();
    run_program(command)?;
    Ok(began.elapsed().as_secs_f64())
}

/// Adds the number of requests per file, and in the details the same by kind.
fn with_requests(seen: Seen, counted: &Counted, files: f64) -> Seen {
    let all: u64 = counted.requests.values().sum();
    let kinds = counted.requests.iter();
    let kinds: serde_json::Map<_, _> = kinds
        .map(|(kind, count)| (kind.clone(), json!(*count as f64 / files)))
        .collect();
    Seen {
        details: json!({ "requests_per_file": kinds }),
        ..seen.with("requests", all as f64 / files)
    }
}

/// The path of a file below the root of the tree.
fn path(number: u32) -> String {
    let dir = number / PER_DIRECTORY;
    let package = dir / PER_PACKAGE;
    format!("small/package-{package:03}/part-{dir:04}/file-{number:06}.js")
}

fn write_archive(out: impl Write, files: u32) -> io::Result<()> {
    let mut random = fastrand::Rng::with_seed(19);
    let mut archive = tar::Builder::new(out);
    let mut content = vec![0; SIZES.1];
    for number in 0..files {
        let size = random.usize(SIZES.0..SIZES.1);
        let part = &mut content[..size];
        // Similar to text: it compresses, but no two files are the same.
        part.fill_with(|| b"etaoin shrdlu\n{}();"[random.usize(0..19)]);
        let mut header = tar::Header::new_ustar();
        header.set_size(size as u64);
        header.set_mode(0o644);
        header.set_mtime(1_700_000_000 + u64::from(number));
        archive.append_data(&mut header, path(number), &*part)?;
    }
    archive.into_inner()?.flush()
}

/// Seconds to read whole files in random order.
fn read_some(dir: &Path, files: u32) -> Result<f64> {
    let mut order: Vec<u32> = (0..files).collect();
    fastrand::Rng::with_seed(20).shuffle(&mut order);
    order.truncate(READ);
    let began = Instant::now();
    for number in order {
        let path = dir.join(path(number));
        let content = fs::read(&path).map_err(on(&path))?;
        if content.len() < SIZES.0 {
            let short = io::Error::from(io::ErrorKind::UnexpectedEof);
            return Err(io_error(path.display().to_string())(short));
        }
    }
    Ok(began.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_has_every_file_once_and_is_the_same_each_time() {
        let [mut one, mut other] = [Vec::new(), Vec::new()];
        write_archive(&mut one, 250).unwrap();
        write_archive(&mut other, 250).unwrap();
        assert_eq!(one, other);
        let mut archive = tar::Archive::new(&*one);
        let found: Vec<_> = archive
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap().path().unwrap().display().to_string())
            .collect();
        assert_eq!(found, (0..250).map(path).collect::<Vec<_>>());
    }

    #[test]
    fn requests_are_told_for_each_file() {
        let requests = [("lookup".to_owned(), 30), ("write".to_owned(), 10)];
        let counted = Counted {
            requests: requests.into(),
            ..Counted::default()
        };
        let seen = with_requests(Seen::rate(1.0), &counted, 10.0);
        assert!((seen.more["requests"] - 4.0).abs() < 1e-9);
        assert_eq!(seen.details["requests_per_file"]["lookup"], 3.0);
    }
}
