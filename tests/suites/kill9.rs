//! The daemon is killed at any moment: the next mount, by Sapwood and by the kernel, is consistent,
//! and durable files are whole.
//!
//! Several threads create, rename, overwrite and delete files, each in a directory of its own, and
//! record the promise of each `fsync` that returned. Operations in progress when the daemon died
//! may or may not have happened.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use sapwood_tests::form::Form;
use sapwood_tests::image::TempImage;
use sapwood_tests::mount::{Driver, Mounted, SapwoodMount};
use sapwood_tests::random::{Random, seed};
use sapwood_tests::{Outcome, machine};

const THREADS: u64 = 4;

pub(crate) fn trials() -> Vec<Trial> {
    let rounds = if machine::full() { 40 } else { 6 };
    let forms = [
        Form::btrfs("plain", "", "rw"),
        Form::btrfs("zstd", "", "compress=zstd"),
        Form::btrfs("often", "", "commit=1"),
        Form::btrfs("nodatacow", "", "nodatacow"),
        Form::ext4("plain", "", "rw"),
        Form::ext4("often", "", "commit=1"),
        Form::ext4("data_journal", "", "data=journal"),
        Form::ext4("small_journal_1k", "-b 1024 -J size=1", "rw"),
        Form::ext4("inline_data", "-O inline_data -I 512", "rw"),
        Form::ext4("fast_commit", "-O fast_commit", "rw"),
    ];
    let trial = |form: &Form| {
        let name = format!("kill9::{}", form.name);
        form.trial(name, &[], move |form| kill(form, rounds))
    };
    forms.iter().map(trial).collect()
}

/// The allowed contents of one name; `None`: the name is absent. Several if a change was in
/// progress.
type Allowed = BTreeMap<PathBuf, Vec<Option<Vec<u8>>>>;

fn kill(form: &Form, rounds: u64) -> Outcome {
    let start = seed(0x9111);
    let image = TempImage::new(&form.mkfs.clone().sized(2 << 30))?;
    let mut known: Vec<Allowed> = (0..THREADS).map(|_| Allowed::new()).collect();
    for round in 0..rounds {
        let seed = start.wrapping_add(round);
        let again = |why: String| format!("round {round}, SAPWOOD_SEED={seed}: {why}");
        let mut random = Random::new(seed);
        let mount = SapwoodMount::new(image.path(), form.options)?;
        // Killed after this number of finished changes and a short time.
        let target = 20 + random.below(400);
        let pause = Duration::from_micros(random.below(30_000));
        load(mount, &mut known, seed, target, pause)?;
        // In every other round the kernel sees the crash first.
        image.check_after_crash().map_err(again)?;
        let order = if round % 2 == 0 {
            [Driver::Kernel, Driver::Sapwood]
        } else {
            [Driver::Sapwood, Driver::Kernel]
        };
        for driver in order {
            let mount = driver.mount(image.path(), "rw")?;
            for allowed in &mut known {
                verify(mount.path(), allowed).map_err(|why| again(format!("{driver:?}: {why}")))?;
            }
            mount.unmount()?;
            image.check_by_us().map_err(again)?;
        }
        image.check_by_kernel().map_err(again)?;
    }
    Ok(())
}

/// Works in all directories until the daemon is gone.
fn load(
    mut mount: SapwoodMount,
    known: &mut [Allowed],
    seed: u64,
    target: u64,
    pause: Duration,
) -> Result<(), String> {
    let done = AtomicU64::new(0);
    let root = mount.path().to_owned();
    std::thread::scope(|scope| {
        let mut workers = Vec::new();
        for (thread, allowed) in known.iter_mut().enumerate() {
            let (root, done) = (&root, &done);
            let random = Random::new(seed ^ ((thread as u64 + 1) << 32));
            let dir = PathBuf::from(format!("thread-{thread}"));
            workers.push(scope.spawn(move || {
                let mut worker = Worker {
                    root,
                    dir,
                    allowed,
                    random,
                };
                worker.run(done)
            }));
        }
        let end = Instant::now() + Duration::from_secs(120);
        while done.load(Ordering::Relaxed) < target
            && Instant::now() < end
            && workers.iter().any(|worker| !worker.is_finished())
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(pause);
        let dead = mount.kill_daemon();
        for worker in workers {
            let error = worker.join().map_err(|_| "a worker panicked".to_owned())?;
            // Only the end of the daemon may have stopped it. The kernel cancels io_uring requests
            // to a daemon that dies.
            let gone = [
                libc::ENOTCONN,
                libc::ECONNABORTED,
                libc::ECANCELED,
                libc::EIO,
            ]
            .map(Some);
            if !gone.contains(&error.raw_os_error()) {
                return Err(format!("a worker stopped early: {error}\n{dead}"));
            }
        }
        Ok(())
    })
}

struct Worker<'a> {
    root: &'a Path,
    dir: PathBuf,
    allowed: &'a mut Allowed,
    random: Random,
}

impl Worker<'_> {
    /// Changes files until something fails.
    fn run(&mut self, done: &AtomicU64) -> io::Error {
        let dir = self.root.join(&self.dir);
        if let Err(error) = fs::create_dir(&dir)
            && error.kind() != io::ErrorKind::AlreadyExists
        {
            return error;
        }
        loop {
            if let Err(error) = self.step() {
                return error;
            }
            done.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn name(&mut self) -> PathBuf {
        self.dir.join(format!("file-{}", self.random.below(60)))
    }

    /// The current content, if no change of the name is in progress.
    fn now(&self, name: &Path) -> Option<Vec<u8>> {
        self.allowed
            .get(name)
            .and_then(|states| states.last().cloned())
            .flatten()
    }

    /// Records that the name is about to get this content.
    fn begin(&mut self, name: &Path, state: Option<Vec<u8>>) {
        self.allowed
            .entry(name.to_owned())
            .or_insert_with(|| vec![None])
            .push(state);
    }

    /// Records that the changes so far are durable.
    fn durable(&mut self, name: &Path) {
        if let Some(states) = self.allowed.get_mut(name) {
            states.drain(..states.len() - 1);
        }
    }

    fn step(&mut self) -> io::Result<()> {
        let name = self.name();
        match self.random.below(10) {
            0 | 1 if self.now(&name).is_some() => {
                self.begin(&name, None);
                fs::remove_file(self.root.join(&name))?;
                self.settle(&[name])
            }
            2 | 3 => {
                let to = self.name();
                let Some(content) = self.now(&name).filter(|_| to != name) else {
                    return Ok(());
                };
                self.begin(&name, None);
                self.begin(&to, Some(content));
                fs::rename(self.root.join(&name), self.root.join(&to))?;
                self.settle(&[name, to])
            }
            _ => self.replace(&name),
        }
    }

    /// Writes a new file next to the old one, makes it durable and renames it over the old one.
    fn replace(&mut self, name: &Path) -> io::Result<()> {
        let len =
            [0, 100, 2000, 5000, 70_000, 700_000][usize::try_from(self.random.below(6)).unwrap()];
        let content = if self.random.below(2) == 0 {
            self.random.bytes(len)
        } else {
            self.random.text(len)
        };
        let side = self.root.join(&self.dir).join("new");
        let mut file = File::create(&side)?;
        file.write_all(&content)?;
        file.sync_all()?;
        self.begin(name, Some(content));
        fs::rename(&side, self.root.join(name))?;
        self.settle(&[name.to_owned()])
    }

    /// Often makes the directory durable, and with it the names.
    fn settle(&mut self, names: &[PathBuf]) -> io::Result<()> {
        if self.random.below(3) > 0 {
            return Ok(());
        }
        File::open(self.root.join(&self.dir))?.sync_all()?;
        for name in names {
            self.durable(name);
        }
        Ok(())
    }
}

/// Every name holds one of its allowed contents, which becomes the only one.
fn verify(root: &Path, allowed: &mut Allowed) -> Result<(), String> {
    for (name, states) in allowed.iter_mut() {
        let found = match fs::read(root.join(name)) {
            Ok(content) => Some(content),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(format!("{}: {error}", name.display())),
        };
        if !states.contains(&found) {
            let shown = |state: &Option<Vec<u8>>| {
                state
                    .as_ref()
                    .map(|content| (content.len(), crc32c::crc32c(content)))
            };
            let may: Vec<_> = states.iter().map(shown).collect();
            return Err(format!(
                "{}: (length, CRC) {:?}, not one of {may:?}",
                name.display(),
                shown(&found)
            ));
        }
        *states = vec![found];
    }
    Ok(())
}
