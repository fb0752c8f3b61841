//! Workloads of threads that use the engine in process.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use sapwood_vfs::{
    Credentials, FileSystem, Ino, NewInode, RenameMode, SetAttr, SetXattrMode, SyncKind, WriteMode,
};

use super::{Writes, panicked};
use crate::Result;
use crate::figures::{Latency, Seen};

/// The work of one thread.
#[derive(Default)]
struct Done {
    bytes: u64,
    fsyncs: Vec<Duration>,
}

impl Done {
    fn fsync(&mut self, fs: &dyn FileSystem, ino: Ino) -> Result<()> {
        let began = Instant::now();
        fs.fsync(ino, SyncKind::All)?;
        self.fsyncs.push(began.elapsed());
        Ok(())
    }
}

/// The same pattern as the fio jobs.
pub(super) fn writes(
    fs: &Arc<dyn FileSystem>,
    writes: &Writes,
    time: Duration,
    settle: &mut dyn FnMut() -> Result<()>,
) -> Result<Seen> {
    let mut files = Vec::new();
    for job in 0..writes.jobs {
        files.push(prepare(&**fs, writes, job)?);
    }
    settle()?;
    together(fs, &files, time, |fs, number, ino, until| {
        write_file(fs, writes, number, ino, until)
    })
}

fn prepare(fs: &dyn FileSystem, writes: &Writes, job: u32) -> Result<Ino> {
    let (who, what) = (Credentials::ROOT, NewInode::Regular);
    let name = writes.file(job);
    let ino = fs.create(&who, fs.root(), name.as_bytes(), what, 0o644)?;
    let ino = ino.ino();
    let changes = SetAttr {
        size: Some(writes.size()),
        ..SetAttr::default()
    };
    fs.setattr(ino, &changes)?;
    for (name, value) in writes.attributes() {
        fs.setxattr(ino, name.as_bytes(), &value, SetXattrMode::Any)?;
    }
    Ok(ino)
}

/// Runs `work` in a thread for each of `inos` until the time is over.
fn together(
    fs: &Arc<dyn FileSystem>,
    inos: &[Ino],
    time: Duration,
    work: impl Fn(&dyn FileSystem, u64, Ino, Instant) -> Result<Done> + Sync,
) -> Result<Seen> {
    let began = Instant::now();
    let until = began + time;
    let work = &work;
    let results: Vec<Result<Done>> = thread::scope(|scope| {
        let threads: Vec<_> = (0u64..)
            .zip(inos)
            .map(|(number, ino)| scope.spawn(move || work(&**fs, number, *ino, until)))
            .collect();
        let join =
            |one: thread::ScopedJoinHandle<'_, _>| one.join().unwrap_or_else(|_| Err(panicked()));
        threads.into_iter().map(join).collect()
    });
    let seconds = began.elapsed().as_secs_f64();
    let mut all = Done::default();
    for result in results {
        let one = result?;
        all.bytes += one.bytes;
        all.fsyncs.extend(one.fsyncs);
    }
    let mut seen = Seen::rate(all.bytes as f64 / f64::from(1 << 20) / seconds);
    seen.fsync = Latency::of(all.fsyncs);
    Ok(seen)
}

fn write_file(
    fs: &dyn FileSystem,
    writes: &Writes,
    number: u64,
    ino: Ino,
    until: Instant,
) -> Result<Done> {
    let mut done = Done::default();
    let mut random = fastrand::Rng::with_seed(number + 1);
    let mut data = vec![0; usize::try_from(writes.block).unwrap_or(0)];
    random.fill(&mut data);
    let blocks = writes.size() / writes.block;
    let mut turn = 0;
    while Instant::now() < until {
        let at = if writes.random {
            random.u64(0..blocks)
        } else {
            turn % blocks
        };
        fs.write(ino, at * writes.block, &data, WriteMode::default())?;
        done.bytes += writes.block;
        turn += 1;
        if turn.is_multiple_of(u64::from(writes.fsync_every)) {
            done.fsync(fs, ino)?;
        }
    }
    Ok(done)
}

/// Number of files that a client of the mix has at once.
const KEPT: u64 = 32;
/// Bytes of one write of the mix, and of one file.
const PIECE: usize = 16 << 10;
const PIECES: u64 = 8;

/// Clients that each create, write, read, rename and remove files in a directory of their own, with
/// an fsync of every fourth: a short form of dbench.
pub(super) fn mixed(
    fs: &Arc<dyn FileSystem>,
    clients: u32,
    time: Duration,
    settle: &mut dyn FnMut() -> Result<()>,
) -> Result<Seen> {
    let mut dirs = Vec::new();
    for client in 0..clients {
        let (name, what) = (format!("client-{client}"), NewInode::Directory);
        let made = fs.create(&Credentials::ROOT, fs.root(), name.as_bytes(), what, 0o755)?;
        dirs.push(made.ino());
    }
    settle()?;
    together(fs, &dirs, time, |fs, _, dir, until| {
        let mut done = Done::default();
        let mut turn = 0;
        while Instant::now() < until {
            one_file(fs, dir, turn, &mut done)?;
            turn += 1;
        }
        Ok(done)
    })
}

fn one_file(fs: &dyn FileSystem, dir: Ino, turn: u64, done: &mut Done) -> Result<()> {
    let name = |turn: u64| format!("file-{turn}").into_bytes();
    let (new, last) = (name(turn), [name(turn), b".done".to_vec()].concat());
    let made = fs.create(&Credentials::ROOT, dir, &new, NewInode::Regular, 0o644)?;
    let ino = made.ino();
    let mut data = vec![turn.to_le_bytes()[0]; PIECE];
    for piece in 0..PIECES {
        fs.write(ino, piece * PIECE as u64, &data, WriteMode::default())?;
        done.bytes += PIECE as u64;
    }
    if turn.is_multiple_of(4) {
        done.fsync(fs, ino)?;
    }
    fs.read(ino, 0, &mut data)?;
    fs.rename(dir, &new, dir, &last, RenameMode::Replace)?;
    fs.forget(ino, 1);
    if let Some(old) = turn.checked_sub(KEPT) {
        fs.unlink(dir, &[name(old), b".done".to_vec()].concat())?;
    }
    Ok(())
}
