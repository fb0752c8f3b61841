//! Many workers create and then remove empty files, each in a directory of its own, like `mdtest -F
//! -C -r -u`.
//!
//! Through a mount the workers are processes, in process they are threads. A shorter run before
//! fills caches and tables.

use std::fs;
use std::path::Path;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Mode, OFlags};
use sapwood_vfs::{Credentials, FileSystem, Ino, NewInode};

use super::processes::{self, Processes};
use super::{Place, panicked};
use crate::Result;
use crate::contestant::Standing;
use crate::error::on;
use crate::figures::Seen;

/// Durations of the two phases.
#[derive(Debug, Clone, Copy)]
struct Phases {
    create: Duration,
    remove: Duration,
}

pub(super) fn run(standing: &mut Standing, workers: u32, files: u32) -> Result<Seen> {
    let place = standing.place()?;
    once(&place, workers, files)?;
    standing.begin()?;
    let Phases { create, remove } = once(&place, workers, files)?;
    let count = f64::from(workers) * f64::from(files);
    let removes = count / remove.as_secs_f64();
    Ok(Seen::rate(count / create.as_secs_f64()).with("removes", removes))
}

fn once(place: &Place, workers: u32, files: u32) -> Result<Phases> {
    match place {
        Place::Directory(dir) => by_processes(dir, workers, files),
        Place::Library(fs) => by_threads(&**fs, workers, files),
    }
}

fn directory(number: u32) -> String {
    format!("tree.{number}")
}

fn file(number: u32, file: u32) -> String {
    format!("file.mdtest.{number}.{file}")
}

fn by_processes(dir: &Path, workers: u32, files: u32) -> Result<Phases> {
    for number in 0..workers {
        let path = dir.join(directory(number));
        fs::create_dir(&path).map_err(on(&path))?;
    }
    let arguments = [dir.display().to_string(), files.to_string()];
    let mut processes = Processes::start(workers, &arguments)?;
    let create = processes.phase()?;
    let remove = processes.phase()?;
    processes.end()?;
    for number in 0..workers {
        let path = dir.join(directory(number));
        fs::remove_dir(&path).map_err(on(&path))?;
    }
    Ok(Phases { create, remove })
}

/// The work of one process of a load by processes.
///
/// # Errors
/// An error of the file system, or a parent that has ended.
pub fn work(dir: &Path, files: u32, number: u32) -> Result<()> {
    let path = dir.join(directory(number));
    let open = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(&path, open, Mode::empty());
    let dir = dir.map_err(|errno| on(&path)(errno.into()))?;
    processes::wait_for_go()?;
    let new = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
    for count in 0..files {
        let made = rustix::fs::openat(&dir, file(number, count), new, Mode::from_raw_mode(0o644));
        made.map_err(|errno| on(&path)(errno.into()))?;
    }
    processes::wait_for_go()?;
    for count in 0..files {
        rustix::fs::unlinkat(&dir, file(number, count), AtFlags::empty())
            .map_err(|errno| on(&path)(errno.into()))?;
    }
    processes::report_end()
}

fn by_threads(fs: &dyn FileSystem, workers: u32, files: u32) -> Result<Phases> {
    let mut dirs = Vec::new();
    for number in 0..workers {
        let (who, what) = (Credentials::ROOT, NewInode::Directory);
        let name = directory(number);
        let made = fs.create(&who, fs.root(), name.as_bytes(), what, 0o755)?;
        dirs.push((number, made.ino()));
    }
    let create = together(&dirs, |number, dir| {
        for count in 0..files {
            let (who, what) = (Credentials::ROOT, NewInode::Regular);
            let name = file(number, count);
            let made = fs.create(&who, dir, name.as_bytes(), what, 0o644)?;
            fs.forget(made.ino(), 1);
        }
        Ok(())
    })?;
    let remove = together(&dirs, |number, dir| {
        for count in 0..files {
            fs.unlink(dir, file(number, count).as_bytes())?;
        }
        Ok(())
    })?;
    for (number, dir) in dirs {
        fs.rmdir(fs.root(), directory(number).as_bytes())?;
        fs.forget(dir, 1);
    }
    Ok(Phases { create, remove })
}

/// Lets one thread for each directory start at once; returns the time from the first start to the
/// last end, by the threads' own clocks. This thread may learn of a start late on a busy machine.
fn together(dirs: &[(u32, Ino)], work: impl Fn(u32, Ino) -> Result<()> + Sync) -> Result<Duration> {
    let (gate, work) = (Barrier::new(dirs.len()), &work);
    let times: Result<Vec<(Instant, Instant)>> = thread::scope(|scope| {
        let start = |(number, dir): &(u32, Ino)| {
            let (gate, number, dir) = (&gate, *number, *dir);
            scope.spawn(move || {
                gate.wait();
                let began = Instant::now();
                work(number, dir)?;
                Ok((began, Instant::now()))
            })
        };
        let threads: Vec<_> = dirs.iter().map(start).collect();
        let join =
            |one: thread::ScopedJoinHandle<'_, _>| one.join().unwrap_or_else(|_| Err(panicked()));
        threads.into_iter().map(join).collect()
    });
    let times = times?;
    let first = times.iter().map(|(began, _)| *began).min();
    let last = times.iter().map(|(_, ended)| *ended).max();
    let took = first.zip(last).map(|(first, last)| last - first);
    Ok(took.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use sapwood_block::MemoryDevice;
    use sapwood_ext4::{Ext4, Options, mkfs};

    #[test]
    fn threads_leave_nothing_behind_and_each_file_costs_an_inode() {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        mkfs::mkfs(&*device, &mkfs::MkfsOptions::default()).unwrap();
        let fs = Ext4::open(device, Options::default()).unwrap();
        let free = fs.statfs().unwrap().inodes_free;
        by_threads(&fs, 3, 20).unwrap();
        let given = |(name, count): (String, u64)| (name == "inode_alloc_given").then_some(count);
        let given: u64 = fs.counters().into_iter().find_map(given).unwrap();
        assert_eq!(given, 3 * 21);
        assert_eq!(fs.statfs().unwrap().inodes_free, free);
        fs.unmount().unwrap();
    }
}
