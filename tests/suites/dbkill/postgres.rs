//! PostgreSQL: a cluster of our own in the mount, served by an ordinary user.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use sapwood_tests::machine::postgres_programs;
use sapwood_tests::process::{self, ORDINARY};
use sapwood_tests::scratch;
use tempfile::TempDir;

use super::Database;
use super::client::Client;
use super::ledger::Ledger;

const USER: &str = "sapwood";
/// How long a server may take to recover or to end.
const PATIENCE: Duration = Duration::from_secs(120);
/// Safe and small: everything is durable at commit, and files are written back often.
const SETTINGS: [&str; 10] = [
    "listen_addresses=",
    "fsync=on",
    "synchronous_commit=on",
    "full_page_writes=on",
    "max_connections=16",
    "shared_buffers=8MB",
    "max_wal_size=32MB",
    "checkpoint_timeout=30s",
    "max_parallel_workers=0",
    "autovacuum_naptime=1s",
];

/// The server, and where it listens.
pub(crate) struct Postgres {
    programs: PathBuf,
    uid: u32,
    gid: u32,
    /// Socket and log; outside of the mount.
    outside: TempDir,
    server: Option<Child>,
}

impl Postgres {
    /// Finds the programs and a user to run them.
    ///
    /// # Errors
    /// There is no ordinary user.
    pub(crate) fn new() -> Result<Self, String> {
        let users = fs::read_to_string("/etc/passwd").map_err(|error| error.to_string())?;
        let user = ["postgres:", "nobody:"]
            .iter()
            .find_map(|name| users.lines().find(|line| line.starts_with(name)));
        let ids: Vec<u32> = user
            .into_iter()
            .flat_map(|line| line.split(':').skip(2).take(2))
            .filter_map(|id| id.parse().ok())
            .collect();
        let [uid, gid] = ids[..] else {
            return Err("neither postgres nor nobody is a user".to_owned());
        };
        let outside = scratch::directory();
        let own = chown(outside.path(), Some(uid), Some(gid));
        own.map_err(|error| error.to_string())?;
        Ok(Self {
            programs: postgres_programs().ok_or("no PostgreSQL")?,
            uid,
            gid,
            outside,
            server: None,
        })
    }

    /// A program as the ordinary user, which ends if this process does.
    fn as_user(&self, program: &str) -> Command {
        let mut command = Command::new("setpriv");
        command.arg(format!("--reuid={}", self.uid));
        command.arg(format!("--regid={}", self.gid));
        command.args(["--clear-groups", "--pdeathsig", "QUIT", "--"]);
        command.arg(self.programs.join(program));
        command.current_dir(self.outside.path());
        command
    }

    fn client(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command
            .arg("-h")
            .arg(self.outside.path())
            .args(["-U", USER]);
        command.current_dir("/");
        command
    }

    fn psql(&self) -> Command {
        let mut command = self.client("psql");
        command.args([
            "-X",
            "-q",
            "-A",
            "-t",
            "-d",
            "postgres",
            "-v",
            "ON_ERROR_STOP=1",
        ]);
        command
    }

    fn ask(&self, sql: &str) -> Result<String, String> {
        process::succeed(self.psql().args(["-c", sql]), ORDINARY)
    }

    fn log(&self) -> PathBuf {
        self.outside.path().join("log")
    }

    fn said(&self) -> String {
        process::tail(&fs::read_to_string(self.log()).unwrap_or_default())
    }
}

fn cluster(root: &Path) -> PathBuf {
    root.join("cluster")
}

impl Database for Postgres {
    fn create(&mut self, root: &Path, ledgers: &[Ledger]) -> Result<(), String> {
        let dir = cluster(root);
        fs::create_dir(&dir)
            .and_then(|()| fs::set_permissions(&dir, PermissionsExt::from_mode(0o700)))
            .and_then(|()| chown(&dir, Some(self.uid), Some(self.gid)))
            .map_err(|error| error.to_string())?;
        let mut initdb = self.as_user("initdb");
        initdb.args(["-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C"]);
        initdb.args(["--data-checksums", "-D"]).arg(&dir);
        process::succeed(&mut initdb, ORDINARY)?;
        self.start(root)?;
        for ledger in ledgers {
            self.ask(&ledger.schema())?;
        }
        self.ask("CREATE EXTENSION amcheck;")?;
        self.stop()
    }

    fn start(&mut self, root: &Path) -> Result<(), String> {
        let failed = |error: std::io::Error| error.to_string();
        // Another process may have the number of the server that died with the daemon.
        let _ = fs::remove_file(cluster(root).join("postmaster.pid"));
        let log = File::create(self.log()).map_err(failed)?;
        let copy = log.try_clone().map_err(failed)?;
        let mut command = self.as_user("postgres");
        command.arg("-D").arg(cluster(root));
        command.arg("-k").arg(self.outside.path());
        for setting in SETTINGS {
            command.args(["-c", setting]);
        }
        command.stdin(Stdio::null()).stdout(copy).stderr(log);
        self.server = Some(command.spawn().map_err(failed)?);
        let end = Instant::now() + PATIENCE;
        loop {
            let answer = process::finish(self.client("pg_isready").args(["-q"]), ORDINARY)?;
            if answer.status.success() {
                return Ok(());
            }
            let ended = self
                .server
                .as_mut()
                .and_then(|server| server.try_wait().ok());
            if ended.flatten().is_some() || Instant::now() > end {
                return Err(format!("PostgreSQL does not start\n{}", self.said()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn query(&mut self, _root: &Path, _ledger: &Ledger, sql: &str) -> Result<String, String> {
        self.ask(sql)
            .map_err(|why| format!("{why}\n{}", self.said()))
    }

    fn check(&mut self, _root: &Path, ledger: &Ledger) -> Result<(), String> {
        // All of the cluster once, with the first client.
        if ledger.id > 0 {
            return Ok(());
        }
        let mut command = self.client("pg_amcheck");
        command.args(["--all", "--heapallindexed"]);
        process::succeed(&mut command, ORDINARY)
            .map(drop)
            .map_err(|why| format!("{why}\n{}", self.said()))
    }

    fn connect(&mut self, _root: &Path, _ledger: &Ledger) -> Result<Client, String> {
        Client::start(&mut self.psql())
    }

    fn stop(&mut self) -> Result<(), String> {
        let Some(mut server) = self.server.take() else {
            return Ok(());
        };
        // At once, as the file system may be gone: the next start recovers.
        let id = i32::try_from(server.id()).ok().and_then(Pid::from_raw);
        if let Some(id) = id {
            let _ = rustix::process::kill_process(id, Signal::QUIT);
        }
        if process::wait(&mut server, PATIENCE).is_some() {
            return Ok(());
        }
        let _ = server.kill();
        let _ = server.wait();
        Err(format!("PostgreSQL does not end\n{}", self.said()))
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if let Err(why) = self.stop() {
            eprintln!("{why}");
        }
    }
}
