//! Loads that this program makes itself, in a mount or in process.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::error::{Error, Result};
use crate::material::{self, Contents};
use crate::place::{Node, Place};
use crate::program::{status_mib, waits};
use crate::rows::{Figure, low};
use crate::run::Run;
use crate::workers::Workers;

/// Writers of one file each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Writes {
    pub(crate) jobs: u32,
    /// Bytes of one write.
    pub(crate) block: u64,
    /// At random offsets, else in sequence.
    pub(crate) random: bool,
    /// Number of writes between two fsyncs.
    pub(crate) fsync_every: u32,
    /// Attributes of 50 bytes on each file.
    pub(crate) xattrs: u32,
}

impl Writes {
    /// Bytes of each file.
    pub(crate) fn size(&self) -> u64 {
        ((2 << 30) / u64::from(self.jobs)).min(256 << 20)
    }
}

const MIB: f64 = 1048576.0;

/// Sets the figures of fsyncs, in milliseconds.
fn set_fsyncs(run: &mut Run, mut all: Vec<Duration>) {
    all.sort_unstable();
    for (key, percent) in [("fsync_p50", 50), ("fsync_p99", 99), ("fsync_max", 100)] {
        let rank = (all.len() * percent).div_ceil(100).max(1);
        if let Some(found) = all.get(rank - 1) {
            run.set(key, found.as_secs_f64() * 1e3);
        }
    }
}

/// Runs `work` in a thread for each of `items`, which gets its number too; all results.
fn together<T: Sync, R: Send>(
    items: &[T],
    work: impl Fn(u64, &T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    thread::scope(|scope| {
        let work = &work;
        let threads = (0..)
            .zip(items)
            .map(|(number, item)| scope.spawn(move || work(number, item)));
        let threads: Vec<_> = threads.collect();
        let join = |one: thread::ScopedJoinHandle<'_, Result<R>>| {
            one.join()
                .unwrap_or_else(|_| Err(Error::new("a thread panicked")))
        };
        threads.into_iter().map(join).collect()
    })
}

/// `Writes` by fio in a mount, and by threads in process.
pub(crate) fn writes(run: &mut Run, writes: Writes) -> Result<()> {
    let root = run.place()?.root()?;
    let mut files = Vec::new();
    for job in 0..writes.jobs {
        let file = root.create(&format!("job.{job}"))?;
        file.set_len(writes.size())?;
        for number in 0..writes.xattrs {
            file.set_xattr(&format!("user.attribute-{number}"), &[b'x'; 50])?;
        }
        files.push(file);
    }
    run.begin()?;
    if let Place::Mount(dir) = run.place()? {
        drop(files);
        return crate::fio::writes(run, &dir, &writes);
    }
    let (began, time) = (Instant::now(), run.time);
    let done = together(&files, |number, file| {
        let mut random = fastrand::Rng::with_seed(number + 1);
        let mut data = vec![0; writes.block as usize];
        random.fill(&mut data);
        let blocks = writes.size() / writes.block;
        let (mut count, mut fsyncs) = (0, Vec::new());
        while began.elapsed() < time {
            let block = if writes.random {
                random.u64(0..blocks)
            } else {
                count % blocks
            };
            file.write(block * writes.block, &data)?;
            count += 1;
            if count.is_multiple_of(writes.fsync_every.into()) {
                let began = Instant::now();
                file.fsync()?;
                fsyncs.push(began.elapsed());
            }
        }
        Ok((count, fsyncs))
    })?;
    let blocks: u64 = done.iter().map(|one| one.0).sum();
    let seconds = began.elapsed().as_secs_f64();
    run.set("rate", (blocks * writes.block) as f64 / MIB / seconds);
    set_fsyncs(run, done.into_iter().flat_map(|one| one.1).collect());
    Ok(())
}

/// Writers of 4 KiB with an fsync after each, while the file system commits all the time.
pub(crate) fn commits(run: &mut Run) -> Result<()> {
    /// Files that are made between two commits, so that each commit has changes to write.
    const NEW: u32 = 200;
    const BLOCK: [u8; 4096] = [b'x'; 4096];
    let root = run.place()?.root()?;
    let files: Result<Vec<Node>> = (0..run.size.count)
        .map(|number| root.create(&format!("writer-{number}")))
        .collect();
    let files = files?;
    run.begin()?;
    let (began, time) = (Instant::now(), run.time);
    let write = |_, file: &Node| {
        let mut fsyncs = Vec::new();
        while began.elapsed() < time {
            let begun = Instant::now();
            file.write(fsyncs.len() as u64 % 1024 * 4096, &BLOCK)?;
            file.fsync()?;
            fsyncs.push(begun.elapsed());
        }
        Ok(fsyncs)
    };
    let done = thread::scope(|scope| {
        let writers = scope.spawn(|| together(&files, write));
        let mut number = 0;
        while began.elapsed() < time {
            for _ in 0..NEW {
                root.create(&format!("new-{number}"))?;
                number += 1;
            }
            run.sync()?;
        }
        writers
            .join()
            .unwrap_or_else(|_| Err(Error::new("a thread panicked")))
    })?;
    let all = done.concat();
    run.set("rate", all.len() as f64 / began.elapsed().as_secs_f64());
    set_fsyncs(run, all);
    Ok(())
}

/// Renames all files of a directory that was just fsynced. `every`: renames between two fsyncs.
pub(crate) fn renames(run: &mut Run, every: u32) -> Result<()> {
    let dir = run.place()?.root()?.mkdir("renames")?;
    let name = |number: u32| format!("file-{number:06}");
    let count = run.size.count;
    for number in 0..count {
        dir.create(&name(number))?;
    }
    run.begin()?;
    dir.create("one-more")?;
    dir.fsync()?;
    let began = Instant::now();
    for number in 0..count {
        let from = name(number);
        dir.rename(&from, &format!("{from}-RPMDELETE"))?;
        if every > 0 && (number + 1).is_multiple_of(every) {
            dir.fsync()?;
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    run.set("ms", seconds * 1e3);
    run.set("us_each", seconds * 1e6 / f64::from(count));
    Ok(())
}

/// Workers create and then remove empty files, each in a directory of its own: processes in a
/// mount, threads in process. A first turn fills caches and tables.
pub(crate) fn create(run: &mut Run) -> Result<()> {
    create_once(run)?;
    run.begin()?;
    let [create, remove] = create_once(run)?;
    let files = f64::from(run.size.count) * f64::from(run.size.files);
    run.set("rate", files / create.as_secs_f64());
    run.set("removes", files / remove.as_secs_f64());
    Ok(())
}

fn create_once(run: &Run) -> Result<[Duration; 2]> {
    let (root, files) = (run.place()?.root()?, run.size.files);
    let name = |number: u32| format!("tree.{number}");
    for number in 0..run.size.count {
        if root.open(&name(number)).is_err() {
            root.mkdir(&name(number))?;
        }
    }
    if let Place::Mount(dir) = run.place()? {
        let arguments = [dir.display().to_string(), files.to_string()];
        let mut workers = Workers::start(run.size.count, &arguments)?;
        let phases = [workers.phase()?, workers.phase()?];
        workers.end()?;
        return Ok(phases);
    }
    let dirs: Result<Vec<Node>> = (0..run.size.count)
        .map(|number| root.open(&name(number)))
        .collect();
    let dirs = dirs?;
    let mut phases = [Duration::ZERO; 2];
    for (phase, remove) in phases.iter_mut().zip([false, true]) {
        let began = Instant::now();
        together(&dirs, |_, dir| phase_of_worker(dir, files, remove))?;
        *phase = began.elapsed();
    }
    Ok(phases)
}

fn phase_of_worker(dir: &Node, files: u32, remove: bool) -> Result<()> {
    for number in 0..files {
        let name = format!("file.{number}");
        if remove {
            dir.unlink(&name)?;
        } else {
            dir.create(&name)?;
        }
    }
    Ok(())
}

/// The work of one process of [`create`].
///
/// # Errors
/// Errors of the file system; the parent has ended.
pub(crate) fn worker(dir: &Path, files: u32, number: u32) -> Result<()> {
    let dir = Place::Mount(dir.join(format!("tree.{number}"))).root()?;
    for remove in [false, true] {
        crate::workers::wait_for_start()?;
        phase_of_worker(&dir, files, remove)?;
    }
    crate::workers::report_end()
}

/// The access to a large file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Big {
    pub(crate) write: bool,
    /// 4 KiB at random offsets, else 1 MiB in sequence.
    pub(crate) random: bool,
    pub(crate) cache: Cache,
}

/// State of the system's caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cache {
    /// They are empty at the beginning.
    Cold,
    /// The file was read just before.
    Warm,
    /// `O_DIRECT`: none.
    Direct,
}

impl Big {
    /// Bytes of the file.
    pub(crate) const FILE: u64 = 512 << 20;

    pub(crate) fn block(self) -> u64 {
        if self.random { 4 << 10 } else { 1 << 20 }
    }

    /// Bytes that are read or written.
    pub(crate) fn moved(self) -> u64 {
        if self.random { 64 << 20 } else { Self::FILE }
    }
}

/// Writes or reads a large file, by fio in a mount. Written data is durable at the end.
pub(crate) fn big(run: &mut Run, big: Big) -> Result<()> {
    let (write, random, cache) = (true, false, Cache::Cold);
    let first = Big {
        write,
        random,
        cache,
    };
    run.begin()?;
    if !big.write || big.random {
        move_big(run, first)?;
        run.begin()?;
        run.cold()?;
    }
    if big.cache == Cache::Warm {
        move_big(run, Big { random, ..big })?;
    }
    let seconds = move_big(run, big)?;
    run.set("rate", big.moved() as f64 / MIB / seconds);
    Ok(())
}

/// Seconds of one access.
fn move_big(run: &Run, big: Big) -> Result<f64> {
    let place = run.place()?;
    if let Place::Mount(dir) = &place {
        return crate::fio::big(dir, big);
    }
    if big.cache == Cache::Direct {
        return Err(Error::new("nothing is direct in process"));
    }
    let root = place.root()?;
    let file = root.open("big").or_else(|_| root.create("big"))?;
    let mut random = fastrand::Rng::with_seed(1);
    let mut block = vec![0; big.block() as usize];
    random.fill(&mut block);
    let began = Instant::now();
    for turn in 0..big.moved() / big.block() {
        let turn = if big.random {
            random.u64(0..Big::FILE / big.block())
        } else {
            turn
        };
        if big.write {
            file.write(turn * big.block(), &block)?;
        } else {
            file.read(turn * big.block(), &mut block)?;
        }
    }
    if big.write {
        file.fsync()?;
    }
    Ok(began.elapsed().as_secs_f64())
}

/// `stat` of all files, in directories of 1000, with nothing cached and once more.
pub(crate) fn stat(run: &mut Run) -> Result<()> {
    let files = run.size.count;
    let sizes = |dir: u32| (files - dir * 1000).min(1000);
    let root = run.place()?.root()?;
    for number in 0..files.div_ceil(1000) {
        let dir = root.mkdir(&format!("dir-{number}"))?;
        for file in 0..sizes(number) {
            dir.create(&format!("file-{file}"))?;
        }
    }
    drop(root);
    run.begin()?;
    run.cold()?;
    for key in ["rate", "warm"] {
        let (began, root) = (Instant::now(), run.place()?.root()?);
        let mut found = 0;
        for number in 0..files.div_ceil(1000) {
            found += root.open(&format!("dir-{number}"))?.stat_all()?;
        }
        if found != u64::from(files) {
            return Err(Error::new(format!("{found} of {files} files are there")));
        }
        run.set(key, f64::from(files) / began.elapsed().as_secs_f64());
    }
    Ok(())
}

/// The operations of one client, each timed alone, on files of one directory. All earlier changes
/// are durable when an operation begins on all files. In a second turn the client is bound to a
/// processor; the process that serves the mount is not.
pub(crate) fn client(run: &mut Run) -> Result<()> {
    for bound in [false, true] {
        let dir = run.dir()?.join(if bound { "bound" } else { "free" });
        fs::create_dir(&dir)?;
        let mut sum = 0.0;
        for operation in OPERATIONS {
            run.begin()?;
            let mean = client_phase(operation, bound, &dir, run.size.count)?.as_secs_f64() * 1e6;
            run.set(
                &format!("{operation}{}_us", if bound { "_bound" } else { "" }),
                mean,
            );
            sum += mean;
        }
        run.set(if bound { "bound_us" } else { "free_us" }, sum);
    }
    Ok(())
}

/// Means of the operations, in µs.
pub(crate) const CLIENT: &[Figure] = &[
    low("free_us", "all operations on a file", "µs"),
    low("bound_us", "the same, client bound to a processor", "µs"),
    low("create_us", "create", "µs"),
    low("write_us", "write", "µs"),
    low("rewrite_us", "rewrite", "µs"),
    low("fchmod_us", "fchmod", "µs"),
    low("chmod_us", "chmod", "µs"),
    low("rename_us", "rename", "µs"),
    low("unlink_us", "unlink", "µs"),
];

/// In this order. A `write` is the first one of its file: before it the kernel asks whether the
/// file has capabilities, because a write removes them.
const OPERATIONS: [&str; 7] = [
    "create", "write", "rewrite", "fchmod", "chmod", "rename", "unlink",
];

/// Mean time of an operation, in a thread of its own, so that its binding ends with it.
fn client_phase(operation: &str, bound: bool, dir: &Path, files: u32) -> Result<Duration> {
    let work = |_, (): &()| {
        if bound {
            bind()?;
        }
        let each = |number| client_operation(operation, dir, number);
        let times: io::Result<Duration> = (0..files).map(each).sum();
        Ok(times? / files)
    };
    together(&[()], work).map(|all| all[0])
}

/// The time of the system calls of an operation on one file: `open` and `close` for a create,
/// `pwrite` or `fchmod` alone on an open file.
fn client_operation(operation: &str, dir: &Path, number: u32) -> io::Result<Duration> {
    let old = dir.join(format!("file-{number:06}"));
    let new = dir.join(format!("renamed-{number:06}"));
    let open = matches!(operation, "write" | "rewrite" | "fchmod");
    let open = open
        .then(|| OpenOptions::new().write(true).open(&old))
        .transpose()?;
    let began = Instant::now();
    match (operation, &open) {
        ("create", _) => drop(File::create_new(&old)?),
        ("fchmod", Some(file)) => file.set_permissions(Permissions::from_mode(0o600))?,
        (_, Some(file)) => file.write_all_at(&[b'x'; 4096], 0)?,
        ("chmod", _) => fs::set_permissions(&old, Permissions::from_mode(0o640))?,
        ("rename", _) => fs::rename(&old, &new)?,
        _ => fs::remove_file(&new)?,
    }
    Ok(began.elapsed())
}

/// Binds this thread to the last processor that it may use: the first ones serve most interrupts.
fn bind() -> io::Result<()> {
    let allowed = sched_getaffinity(None)?;
    let mut all = (0..CpuSet::MAX_CPU).rev();
    let last = all.find(|cpu| allowed.is_set(*cpu));
    let mut one = CpuSet::new();
    one.set(last.ok_or(io::ErrorKind::NotFound)?);
    Ok(sched_setaffinity(None, &one)?)
}

/// Packages of 24 small files, written by four threads as npm writes `node_modules`: a temporary
/// name, the content, the mode, a rename.
pub(crate) fn packages(run: &mut Run) -> Result<()> {
    let mut source = Contents::new();
    let contents: Vec<Vec<u8>> = (0..256).map(|_| source.next().to_vec()).collect();
    let (root, files) = (run.dir()?.join("node_modules"), run.size.count);
    run.begin()?;
    let began = Instant::now();
    together(&[0, 1, 2, 3], |_, first| {
        for package in (*first..files.div_ceil(24)).step_by(4) {
            for number in package * 24..files.min((package + 1) * 24) {
                write_package_file(&root, number, &contents[number as usize % contents.len()])?;
            }
        }
        Ok(())
    })?;
    run.set("s", began.elapsed().as_secs_f64());
    run.durable("durable_s")?;
    material::expect(&root, files)?;
    run.timed("remove_s", "exec rm -rf \"$MOUNT/node_modules\"")
        .map(drop)
}

fn write_package_file(root: &Path, number: u32, content: &[u8]) -> io::Result<()> {
    let (package, file) = (number / 24, number % 24);
    let package = match package % 5 {
        3 => format!("@scope-{:02}/package-{package:05}", package % 40),
        4 => format!(
            "package-{:05}/node_modules/package-{package:05}",
            package - 4
        ),
        _ => format!("package-{package:05}"),
    };
    let inside = match file {
        0..4 => "",
        4..12 => "lib",
        12..18 => "dist/cjs/internal",
        _ => "dist/esm/internal",
    };
    let dir = root.join(package).join(inside);
    // Files of one directory follow each other.
    if matches!(file, 0 | 4 | 12 | 18) {
        fs::create_dir_all(&dir)?;
    }
    let temporary = dir.join(format!(".module-{file:02}.js-{number:08x}"));
    let mut open = File::create_new(&temporary)?;
    open.write_all(content)?;
    open.set_permissions(Permissions::from_mode(0o644))?;
    drop(open);
    fs::rename(&temporary, dir.join(format!("module-{file:02}.js")))
}

/// Wake-ups and memory of a mount that is not used.
pub(crate) fn idle(run: &mut Run) -> Result<()> {
    /// After this time, everything that the setup caused is over: reports of the kernel, threads
    /// that end, and changes of the files: ext4 checks 5 s after its first commit whether there
    /// are more changes.
    const QUIET: Duration = Duration::from_secs(6);
    let dir = run.dir()?;
    for number in 0..200 {
        fs::write(dir.join(format!("file-{number}")), [0; 5000])?;
    }
    run.begin()?;
    let process = run
        .process()
        .ok_or_else(|| Error::new("no process serves this mount"))?;
    thread::sleep(QUIET);
    let before = waits(process);
    let time = run.time.max(Duration::from_secs(5));
    thread::sleep(time);
    let woken = waits(process).saturating_sub(before);
    run.set("rate", woken as f64 / time.as_secs_f64());
    run.set("resident_mib", status_mib(process, "VmRSS:").unwrap_or(0.0));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::tests::both;

    #[test]
    fn every_operation_of_a_client_does_what_its_name_says() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let run = |operation| client_phase(operation, true, dir.path(), 3);
        let mode = |name: &str| fs::metadata(path(name)).unwrap().permissions().mode() & 0o777;
        run("create").unwrap();
        assert!(run("create").is_err());
        run("write").unwrap();
        run("rewrite").unwrap();
        assert_eq!(fs::read(path("file-000002")).unwrap(), [b'x'; 4096]);
        run("fchmod").unwrap();
        assert_eq!(mode("file-000001"), 0o600);
        run("chmod").unwrap();
        assert_eq!(mode("file-000001"), 0o640);
        run("rename").unwrap();
        assert!(path("renamed-000001").exists() && !path("file-000001").exists());
        run("unlink").unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_bound_client_has_one_processor_and_this_thread_keeps_its_own() {
        let before = sched_getaffinity(None).unwrap();
        let bound = thread::spawn(|| {
            bind().unwrap();
            sched_getaffinity(None).unwrap().count()
        });
        assert_eq!(bound.join().unwrap(), 1);
        assert_eq!(sched_getaffinity(None).unwrap(), before);
    }

    #[test]
    fn a_worker_creates_every_file_and_removes_it() {
        both(|place| {
            let root = place.root().unwrap();
            let dir = root.mkdir("tree.0").unwrap();
            phase_of_worker(&dir, 30, false).unwrap();
            assert_eq!(dir.stat_all().unwrap(), 30);
            phase_of_worker(&dir, 30, true).unwrap();
            assert_eq!(dir.stat_all().unwrap(), 0);
        });
    }

    #[test]
    fn every_file_of_a_package_is_there_and_no_temporary_name() {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..500 {
            write_package_file(dir.path(), number, b"content").unwrap();
        }
        material::expect(dir.path(), 500).unwrap();
        let find = std::process::Command::new("find")
            .arg(dir.path())
            .args(["-mindepth", "1", "-name", ".*"])
            .output();
        assert!(find.unwrap().stdout.is_empty());
    }
}
