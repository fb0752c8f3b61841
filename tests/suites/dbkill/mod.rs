//! Databases in the mount, and the daemon killed at any moment: no acknowledged commit is lost,
//! and no database is damaged.
//!
//! # How it works
//! Clients, each a process with its own table, commit numbered transactions. The number determines
//! the content of a transaction, so after a crash the last number determines the whole table. It is
//! at least the last acknowledged number, and at most the last that was sent. Acknowledgements
//! during the kill do not count: unlike a power cut, the kill does not stop the database, and
//! SQLite continues when it cannot open the directory that it wants to make durable.
//!
//! A round: mount (in every third round, the kernel first), let the database recover, compare all
//! tables, commit, kill the daemon. The moment comes from the seed that a failure prints; the
//! transaction that it hits depends on the machine.
//!
//! `SAPWOOD_DB_ROUNDS` is the total number of rounds, `SAPWOOD_DB_SECONDS` the time after which
//! each kind of database stops early.
//!
//! The trials `kill_mounts` end the daemon with `SIGKILL` or `SIGTERM` by chance. A killed daemon
//! leaves a mount that `sapwood umount` removes. After `SIGTERM`, while the clients commit, the
//! daemon exits with success and leaves a complete image. `SAPWOOD_MOUNT_ROUNDS` is the number of
//! rounds of both engines, `SAPWOOD_MOUNT_SECONDS` the time after which each engine stops early.
//!
//! The trials `kill_mounts_over_nbd` do the same with the image behind `nbdkit`, a tenth as often.
//! In a third of the rounds the server is killed and started again while the clients commit, and
//! they must not notice. In another third the server fails every request: the clients may stop
//! then, and acknowledged commits are there when the server works again.

mod client;
mod ledger;
mod nbd;
mod postgres;
mod sqlite;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use client::Client;
use ledger::Ledger;
use libtest_mimic::Trial;
use sapwood_tests::image::{Mkfs, TempImage};
use sapwood_tests::mount::{Driver, Mounted, SapwoodMount};
use sapwood_tests::random::{Random, seed};
use sapwood_tests::{Need, Outcome, machine, trial};

/// A kind of database.
trait Database {
    /// Makes it, with an empty table for each ledger, in a mounted file system.
    fn create(&mut self, root: &Path, ledgers: &[Ledger]) -> Result<(), String>;

    /// Starts its server, if it has one, and lets it recover from whatever happened before.
    fn start(&mut self, root: &Path) -> Result<(), String>;

    /// The findings of the database's own check, and the answer to a query on a ledger's table.
    fn query(&mut self, root: &Path, ledger: &Ledger, sql: &str) -> Result<String, String>;

    /// The findings of the database's own check.
    fn check(&mut self, root: &Path, ledger: &Ledger) -> Result<(), String>;

    /// A process that takes SQL and prints the results.
    fn connect(&mut self, root: &Path, ledger: &Ledger) -> Result<Client, String>;

    /// Ends the server, in a file system that may be dead.
    fn stop(&mut self) -> Result<(), String>;
}

/// Options of a mount in turn: the next commit of a transaction may come late or soon.
const OPTIONS: [&str; 3] = [
    "allow_other",
    "allow_other,commit=1",
    "allow_other,compress=zstd",
];

pub(crate) fn trials() -> Vec<Trial> {
    let rounds = number("SAPWOOD_DB_ROUNDS");
    // Three tenths of the rounds go to each journal mode, four tenths to the server.
    let share = move |tenths: u64| rounds.map_or(1, |all| (all * tenths / 10).max(1));
    let sqlite = [machine::KERNEL, Need::Fuse, Need::Program("sqlite3")];
    let served = [sqlite.as_slice(), &[Need::Program("nbdkit")]].concat();
    let server = [machine::KERNEL, Need::Fuse, machine::POSTGRES];
    vec![
        trial("dbkill::sqlite_rollback_journal", &sqlite, move || {
            // SQLite's documentation on `synchronous`: with FULL the last commit before a power
            // cut may be rolled back, because the journal's removal is not made durable; EXTRA
            // does that.
            let ledgers = vec![Ledger::new(0), Ledger::new(1).that_may_lose(1)];
            let setup = [
                "journal_mode=DELETE; PRAGMA synchronous=EXTRA",
                "journal_mode=DELETE; PRAGMA synchronous=FULL",
            ];
            rounds_of(
                &mut sqlite::Sqlite::new(&setup),
                ledgers,
                &killed(share(3), 0xdb01),
            )
        }),
        trial("dbkill::sqlite_wal", &sqlite, move || {
            let ledgers = vec![Ledger::new(0), Ledger::new(1)];
            let setup = ["journal_mode=WAL; PRAGMA synchronous=FULL"; 2];
            rounds_of(
                &mut sqlite::Sqlite::new(&setup),
                ledgers,
                &killed(share(3), 0xdb02),
            )
        }),
        trial("dbkill::postgresql", &server, move || {
            let ledgers = (0..4).map(Ledger::new).collect();
            rounds_of(
                &mut postgres::Postgres::new()?,
                ledgers,
                &killed(share(4), 0xdb03),
            )
        }),
        trial("dbkill::kill_mounts_btrfs", &sqlite, || {
            kill_mounts(Mkfs::default(), 0xdb04, false)
        }),
        trial("dbkill::kill_mounts_ext4", &sqlite, || {
            kill_mounts(Mkfs::ext4(""), 0xdb05, false)
        }),
        trial("dbkill::kill_mounts_over_nbd_btrfs", &served, || {
            kill_mounts(Mkfs::default(), 0xdb06, true)
        }),
        trial("dbkill::kill_mounts_over_nbd_ext4", &served, || {
            kill_mounts(Mkfs::ext4(""), 0xdb07, true)
        }),
    ]
}

/// Parameters of a run of rounds.
struct KillPlan {
    mkfs: Mkfs,
    rounds: u64,
    seconds: Option<u64>,
    seed: u64,
    /// Options of the mounts in turn.
    options: &'static [&'static str],
    /// Whether a signal ends the daemon in some rounds; it is killed in the others.
    told: bool,
    /// Most acknowledged commits before the end of a round.
    commits: u64,
    /// Whether a server has the image.
    served: bool,
}

/// Rounds on btrfs that kill the daemon at the end.
fn killed(rounds: u64, seed: u64) -> KillPlan {
    KillPlan {
        mkfs: Mkfs::default(),
        rounds,
        seconds: number("SAPWOOD_DB_SECONDS"),
        seed,
        options: &OPTIONS,
        told: false,
        commits: 120,
        served: false,
    }
}

fn kill_mounts(mkfs: Mkfs, seed: u64, served: bool) -> Outcome {
    let ledgers = vec![Ledger::new(0), Ledger::new(1)];
    let setup = [
        "journal_mode=WAL; PRAGMA synchronous=FULL",
        "journal_mode=DELETE; PRAGMA synchronous=EXTRA",
    ];
    let plan = KillPlan {
        mkfs,
        rounds: number("SAPWOOD_MOUNT_ROUNDS").map_or(4, |all| {
            if served {
                (all / 20).max(1)
            } else {
                (all / 2).max(1)
            }
        }),
        seconds: number("SAPWOOD_MOUNT_SECONDS"),
        seed,
        options: &[
            "allow_other",
            "allow_other,commit=1",
            "allow_other,fuseblk=off",
        ],
        told: true,
        commits: 20,
        served,
    };
    rounds_of(&mut sqlite::Sqlite::new(&setup), ledgers, &plan)
}

fn number(variable: &str) -> Option<u64> {
    let given = std::env::var(variable).ok()?;
    Some(
        given
            .parse()
            .unwrap_or_else(|_| panic!("{variable}={given} is no number")),
    )
}

fn rounds_of(database: &mut dyn Database, mut ledgers: Vec<Ledger>, plan: &KillPlan) -> Outcome {
    let start = seed(plan.seed);
    let end = plan
        .seconds
        .map(|s| Instant::now() + Duration::from_secs(s));
    let image = TempImage::new(&plan.mkfs.clone().sized(4 << 30))?;
    let mount = Driver::Sapwood.mount(image.path(), plan.options[0])?;
    database.create(mount.path(), &ledgers)?;
    mount.unmount()?;
    let mut server = if plan.served {
        Some(nbd::Server::start(image.path())?)
    } else {
        None
    };
    let mut done = 0;
    while done < plan.rounds && end.is_none_or(|end| Instant::now() < end) {
        let seed = start.wrapping_add(done);
        let failed = |why: String| format!("round {done}, SAPWOOD_SEED={seed}: {why}");
        let clients = Clients {
            database,
            ledgers: &mut ledgers,
        };
        round(clients, &image, server.as_mut(), (done, seed), plan).map_err(failed)?;
        done += 1;
    }
    verified(database, &mut ledgers, &image, Driver::Sapwood)?;
    image.check()?;
    let acknowledged: u64 = ledgers.iter().map(|ledger| ledger.all_acknowledged).sum();
    println!(
        "{done} of {} rounds, {acknowledged} acknowledged commits, none lost",
        plan.rounds
    );
    Ok(())
}

/// The database and the commits of its clients.
struct Clients<'c> {
    database: &'c mut dyn Database,
    ledgers: &'c mut [Ledger],
}

fn round(
    Clients { database, ledgers }: Clients<'_>,
    image: &TempImage,
    mut server: Option<&mut nbd::Server>,
    (nth, seed): (u64, u64),
    plan: &KillPlan,
) -> Result<(), String> {
    let mut random = Random::new(seed);
    if nth % 3 == 2 {
        verified(database, ledgers, image, Driver::Kernel)?;
    }
    let options = plan.options[usize::try_from(nth).unwrap() % plan.options.len()];
    let mut mount = match &server {
        Some(server) => SapwoodMount::served(&server.operand(), image.path(), options)?,
        None => SapwoodMount::new(image.path(), options)?,
    };
    let root = mount.path().to_owned();
    database.start(&root)?;
    compare(database, &root, ledgers)?;
    let fault = match &server {
        Some(_) => match random.below(3) {
            0 => None,
            1 => Some(Fault::Crash),
            _ => Some(Fault::Errors),
        },
        None => None,
    };
    // Ended after this number of acknowledged commits and a short time.
    let moment = Moment {
        target: 5 + random.below(plan.commits),
        pause: Duration::from_micros(random.below(50_000)),
        // A daemon that cannot write has nothing to complete.
        told: plan.told && fault != Some(Fault::Errors) && random.below(2) == 0,
        lead: Duration::from_micros(random.below(100_000)),
        fault,
    };
    let clients = Clients {
        database: &mut *database,
        ledgers,
    };
    let loaded = load(clients, &mut mount, server.as_deref_mut(), &moment);
    let stopped = database.stop();
    match plan.told {
        true if moment.told => mount.unmounted()?,
        true => mount.cleaned()?,
        false => drop(mount.kill()),
    }
    if let Some(server) = server {
        // A request of the dead daemon that is still being served would reach the next mount.
        server.crash()?;
    }
    loaded?;
    stopped?;
    // Before any recovery, and with a log if there is one.
    match nth.is_multiple_of(4) {
        // A check by e2fsprogs replays no journal.
        true if plan.told && !moment.told => image.check_after_crash(),
        true => image.check(),
        false => Ok(()),
    }
}

/// The end of the daemon in a round.
struct Moment {
    /// Number of acknowledged commits before the end.
    target: u64,
    /// Time after the last of them.
    pause: Duration,
    /// A signal ends the daemon instead of a kill.
    told: bool,
    /// Time for which the clients continue after the signal.
    lead: Duration,
    /// The server's fault before that.
    fault: Option<Fault>,
}

/// A fault of a server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// It is killed after half of the commits, and starts again.
    Crash,
    /// It fails every request after the last of the commits.
    Errors,
}

/// Mounts, compares, and unmounts regularly.
fn verified(
    database: &mut dyn Database,
    ledgers: &mut [Ledger],
    image: &TempImage,
    driver: Driver,
) -> Result<(), String> {
    let options = match driver {
        Driver::Kernel => "rw",
        Driver::Sapwood => OPTIONS[0],
    };
    let mount = driver.mount(image.path(), options)?;
    let root = mount.path().to_owned();
    let compared = database
        .start(&root)
        .and_then(|()| compare(database, &root, ledgers))
        .map_err(|why| format!("{driver:?}: {why}"));
    let stopped = database.stop();
    compared?;
    stopped?;
    mount.unmount()?;
    image.check_by_us()
}

/// Every table is in the state of its last transaction.
fn compare(database: &mut dyn Database, root: &Path, ledgers: &mut [Ledger]) -> Result<(), String> {
    for ledger in ledgers {
        database.check(root, ledger)?;
        let last = database.query(root, ledger, &ledger.last_query())?;
        let all = database.query(root, ledger, &ledger.all_query())?;
        ledger.compare(&last, &all)?;
    }
    Ok(())
}

/// All clients commit until the daemon is dead.
fn load(
    Clients { database, ledgers }: Clients<'_>,
    mount: &mut SapwoodMount,
    mut server: Option<&mut nbd::Server>,
    moment: &Moment,
) -> Result<(), String> {
    let target = moment.target;
    let root = mount.path().to_owned();
    let mut clients = Vec::new();
    for ledger in ledgers.iter() {
        clients.push(database.connect(&root, ledger)?);
    }
    let (acknowledged, killed) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let mut workers = Vec::new();
        for (ledger, client) in ledgers.iter_mut().zip(&mut clients) {
            let (input, output) = client.pipes();
            let (acknowledged, killed) = (&acknowledged, &killed);
            workers.push(
                scope.spawn(move || {
                    ledger.commit_until_the_end(input, output, acknowledged, killed)
                }),
            );
        }
        let end = Instant::now() + Duration::from_secs(180);
        let wait_for = |target| {
            while acknowledged.load(Ordering::Relaxed) < target
                && Instant::now() < end
                && !workers.iter().any(|worker| worker.is_finished())
            {
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        // The error is returned after the clients have ended, because the scope waits for them.
        let mut crashed = Ok(());
        if let (Some(server), Some(Fault::Crash)) = (&mut server, moment.fault) {
            wait_for(target / 2);
            crashed = server.crash();
        }
        wait_for(target);
        std::thread::sleep(moment.pause);
        let early = workers.iter().position(|worker| worker.is_finished());
        let mut failed = Ok(());
        if let (Some(server), Some(Fault::Errors)) = (&server, moment.fault) {
            failed = server.fail();
            let end = Instant::now() + Duration::from_secs(60);
            let all_stopped = || workers.iter().all(|worker| worker.is_finished());
            while Instant::now() < end && !all_stopped() {
                std::thread::sleep(Duration::from_millis(1));
            }
            if !all_stopped() {
                failed = Err("a client goes on without a server".to_owned());
            }
            server.heal();
        }
        killed.store(true, Ordering::SeqCst);
        let said = if moment.told {
            mount.tell_to_end()?;
            std::thread::sleep(moment.lead);
            mount.said()
        } else {
            mount.kill_daemon()
        };
        // A client may wait for the server, which may wait for ever.
        clients.iter_mut().for_each(Client::kill);
        crashed?;
        failed.map_err(|why| format!("{why}\n{said}"))?;
        let joined = workers.into_iter().all(|worker| worker.join().is_ok());
        if let Some(early) = early {
            let client = clients[early].said();
            return Err(format!("client {early} stopped early: {client}\n{said}"));
        }
        if !joined || acknowledged.load(Ordering::Relaxed) < target {
            return Err(format!("only {acknowledged:?} of {target} commits\n{said}"));
        }
        Ok(())
    })
}
