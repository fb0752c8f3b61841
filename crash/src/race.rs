//! [`Race`]: threads that work on the same names and inodes.
//!
//! # How it works
//! All paths of the base are opened before the threads start. A path in an operation stands for the
//! inode that was opened under it: a file for data, or the directory of a name; the operation
//! itself looks the name up. So each operation is one call of the engine, also if other threads
//! rename paths in the meantime. `@0` is the file that this thread created last.
//!
//! The log has a mark for the begin and the return of every call, and its result is kept.
//! [`orders`] finds the orders of the calls that explain all results and the final
//! tree. The state after a crash must be right for one of them.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Barrier};

use fastrand::Rng;
use sapwood_testing::op::{Op, Session, Target, from_text, to_text};
use sapwood_testing::tree::{Detail, Tree};
use sapwood_vfs::{Error, FileSystem, Ino};

use crate::base::{Base, BaseKind};
use crate::delay::{Delays, Recorder, recorder};
use crate::explore::seed_of;
use crate::orders::{self, Call};
use crate::plant::Plant;
use crate::record::{BEGIN, END, Recording, Setting};
use crate::subject::Subject;

/// The operations of each thread. Its text is `race: BASE: OP; OP | OP; OP`, with threads separated
/// by `|`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Race {
    /// The base.
    pub base: BaseKind,
    /// Operations of each thread.
    pub plans: Vec<Vec<Op>>,
}

/// First word of the text.
pub const PREFIX: &str = "race:";

/// Changes of a few names and inodes.
const CHANGES: &str = "
    creat A/new; creat A/new; creat A/foo; creat B/new; creat A/C/new; mkdir A/new; mkdir B/E; rmdir B/E;
    rmdir A/new; rmdir A/C; symlink x A/new;
    write A/foo 0 4096 T; write A/foo 4096 8192 T; write A/foo 24576 4096 T; write A/bar 0 200 T;
    write B/foo 0 8192 T; write @0 0 4096 T; append A/foo 3000 T; append A/bar 100 T; append @0 5000 T;
    truncate A/foo 5000; truncate A/foo 0; truncate A/bar 10;
    link A/foo A/ln; link A/foo B/ln; link A/bar A/ln; link @0 B/ln; link A/two A/new;
    rename A/foo A/bar; rename A/bar A/foo; rename A/foo B/foo; rename B/foo A/foo; rename A/new A/foo;
    rename A/new B/new; rename A/ln A/foo; rename A/foo A/new; rename A/C B/C; rename B/C A/C; rename A/C B/D;
    rename B/D A/C; rename A/E A/C/E; exchange A/foo B/foo; exchange A/foo A/bar; exchange A/C B/D;
    unlink A/foo; unlink A/bar; unlink A/ln; unlink A/new; unlink B/foo; unlink B/new; unlink B/ln;
    unlink A/C/new; unlink A/two;
    setxattr A/foo n 20 T; setxattr A/foo n 300 T; removexattr A/foo base; chmod A/foo 448; chmod A/bar 384";

/// Ways to make them durable.
const PERSISTS: &str =
    "fsync A/foo; fsync A/foo; fsync A/bar; fsync B/foo; fsync A/two; fsync @0; fsync @0;
    fsync A; fsync B; fsync A/C; fdatasync A/foo; fdatasync @0; sync";

impl fmt::Display for Race {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plans: Vec<String> = self.plans.iter().map(|plan| to_text(plan)).collect();
        write!(f, "{PREFIX} {}: {}", self.base, plans.join(" | "))
    }
}

impl FromStr for Race {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("not a race: {text:?}");
        let rest = text.trim().strip_prefix(PREFIX).ok_or_else(bad)?;
        let (base, plans) = rest.split_once(':').ok_or_else(bad)?;
        let plans = plans.split('|').map(from_text).collect::<Result<_, _>>();
        Ok(Self {
            base: base.trim().parse()?,
            plans: plans.map_err(|error| error.to_string())?,
        })
    }
}

impl Race {
    /// A race that the seed determines.
    ///
    /// # Errors
    /// Never, unless the list of operations is wrong.
    pub fn by_chance(
        base: BaseKind,
        seed: u64,
        threads: usize,
        ops: usize,
    ) -> Result<Self, String> {
        let mut random = Rng::with_seed(seed);
        let parse = |text: &str| from_text(text).map_err(|error| error.to_string());
        let persists = parse(PERSISTS)?;
        let mut plans = Vec::new();
        for thread in 0..threads {
            let mut plan = Vec::new();
            for number in 0..ops {
                let tag = (10 + thread * 40 + number).to_string();
                let changes = parse(&CHANGES.replace(" T", &format!(" {tag}")))?;
                let list = match random.u32(0..3) {
                    0 => &persists,
                    _ => &changes,
                };
                plan.extend(random.choice(list).cloned());
            }
            plans.push(plan);
        }
        Ok(Self { base, plans })
    }

    /// Runs the race.
    ///
    /// # Errors
    /// The mismatch with the model, or that no order of the calls explains their results.
    pub fn run(&self, setting: &Setting) -> Result<Recording, String> {
        let base = Base::get(self.base)?;
        let engine = self.base.engine();
        let recorder = Arc::new(recorder(base.device.snapshot(), Delays::NONE));
        let fs = engine.open(setting.planted(&recorder), setting.policy, 2);
        let fs = fs.map_err(|error| format!("mount: {error}"))?;
        let failed = |error: Error| error.to_string();
        let start = Tree::of(&*fs, Detail::Bytes)?;
        let opened = open_all(&*fs, &start).map_err(failed)?;
        let seed = seed_of(&Subject::from(self.clone()));
        recorder.inner().set(setting.delays(seed));
        let skip_fsync = setting.plant == Some(Plant::SkipFsync);
        let calls = self.all(&*fs, &opened, &recorder, skip_fsync)?;
        let log = recorder.take_log();
        let end = Tree::of(&*fs, Detail::Bytes)?;
        for (path, ino) in &opened.inodes {
            if path != "." {
                fs.forget(*ino, 1);
            }
        }
        let orders = orders::find(engine, start, end, opened.inodes, calls, &log)?;
        Ok(Recording {
            engine,
            base: base.device.snapshot(),
            log,
            lanes: Vec::new(),
            race: Some(orders),
            sizes: None,
        })
    }

    /// Runs all threads and returns the calls of each.
    fn all(
        &self,
        fs: &dyn FileSystem,
        opened: &Opened,
        recorder: &Recorder,
        skip_fsync: bool,
    ) -> Result<Vec<Vec<Call>>, String> {
        let barrier = Barrier::new(self.plans.len());
        let run = |number: usize, plan: &[Op]| {
            let mut session = Session::on_opened(fs, &opened.inodes);
            barrier.wait();
            let calls = plan.iter().map(|op| {
                recorder.mark(format!("{BEGIN}{number}"));
                let created = session.last_created();
                let result = if skip_fsync && op.persists() {
                    Ok(None)
                } else {
                    session.perform(op).map(|()| session.new_inode())
                };
                recorder.mark(format!("{END}{number}"));
                Call::new(op, created, opened.target(op, created), result)
            });
            let calls: Vec<Call> = calls.collect();
            (calls, session.take_created())
        };
        let run = &run;
        let ended: Vec<_> = std::thread::scope(|scope| {
            let plans = self.plans.iter().enumerate();
            let threads = plans.map(|(number, plan)| scope.spawn(move || run(number, plan)));
            let threads: Vec<_> = threads.collect();
            threads.into_iter().map(|thread| thread.join()).collect()
        });
        recorder.inner().set(Delays::NONE);
        let mut calls = Vec::new();
        for one in ended {
            let (one, created) = one.map_err(|_| "a thread panicked".to_owned())?;
            for ino in created {
                fs.forget(ino, 1);
            }
            calls.push(one);
        }
        Ok(calls)
    }
}

/// The inodes that were opened before the threads started.
struct Opened {
    inodes: BTreeMap<String, Ino>,
}

fn open_all(fs: &dyn FileSystem, tree: &Tree) -> Result<Opened, Error> {
    let mut inodes = BTreeMap::from([(".".to_owned(), fs.root())]);
    // A directory comes before its content.
    for path in tree.paths().into_keys().filter(|path| path != ".") {
        let (dir, name) = path.rsplit_once('/').unwrap_or((".", &path));
        let dir = inodes.get(dir).copied().ok_or(Error::NotFound)?;
        let found = fs.lookup(dir, name.as_bytes())?;
        inodes.insert(path, found.ino());
    }
    Ok(Opened { inodes })
}

impl Opened {
    /// The inode that an operation changes, if it changes one.
    fn target(&self, op: &Op, created: Option<Ino>) -> Option<Ino> {
        match orders::target_of(op)? {
            Target::Path(path) => self.inodes.get(path).copied(),
            Target::Held(_) => created,
        }
    }
}
