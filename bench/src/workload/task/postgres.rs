//! Transactions of PostgreSQL, by its own `pgbench`.
//!
//! The server refuses to run as root, so all its programs run as the user that Debian creates for
//! it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use sapwood_testing::machine;

use crate::contestant::Standing;
use crate::error::{on, run_program};
use crate::figures::Seen;
use crate::{Error, Result};

const USER: &str = "postgres";
const CLIENTS: &str = "4";

/// Directory of the server's programs.
pub(super) fn programs() -> Option<PathBuf> {
    machine::postgres(&["initdb", "pg_ctl", "pgbench"])
}

/// A running server; dropping it stops it.
struct Server {
    programs: PathBuf,
    data: PathBuf,
}

impl Server {
    fn command(programs: &Path, program: &str) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", USER, "--regid", USER, "--init-groups"]);
        command.arg(programs.join(program)).current_dir("/");
        command.env_remove("PGDATA").env("LC_ALL", "C.UTF-8");
        command
    }

    /// `home` belongs to the user.
    fn start(home: &Path) -> Result<Self> {
        let missing = || Error::Refused("PostgreSQL is not installed".to_owned());
        let programs = programs().ok_or_else(missing)?;
        let data = home.join("data");
        let mut init = Self::command(&programs, "initdb");
        init.args(["--no-sync", "--auth=trust", "--no-locale", "-D"]);
        run_program(init.arg(&data))?;
        let options = format!(
            "-c listen_addresses='' -c unix_socket_directories='{}'",
            home.display()
        );
        let mut start = Self::command(&programs, "pg_ctl");
        start.arg("-D").arg(&data).arg("-o").arg(options);
        start.arg("-l").arg(home.join("log")).args(["-w", "start"]);
        run_program(&mut start)?;
        Ok(Self { programs, data })
    }

    fn bench<'a>(&self, home: &Path, more: impl IntoIterator<Item = &'a str>) -> Result<String> {
        let mut command = Self::command(&self.programs, "pgbench");
        command
            .arg("-h")
            .arg(home)
            .args(more.into_iter().map(OsStr::new));
        run_program(command.arg("postgres"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let mut stop = Self::command(&self.programs, "pg_ctl");
        stop.arg("-D")
            .arg(&self.data)
            .args(["-m", "fast", "-w", "stop"]);
        if let Err(error) = run_program(&mut stop) {
            eprintln!("left behind: {error}");
        }
    }
}

pub(super) fn run(dir: &Path, standing: &mut Standing, seconds: u64) -> Result<Seen> {
    let home = dir.join("postgres");
    std::fs::create_dir(&home).map_err(on(&home))?;
    run_program(Command::new("chown").arg(USER).arg(&home))?;
    // In a deep directory the path would be too long for a socket; here it is short.
    let server = Server::start(&home)?;
    server.bench(&home, ["-i", "-q", "-s", "1"])?;
    standing.begin()?;
    let time = seconds.to_string();
    let said = server.bench(&home, ["-c", CLIENTS, "-j", "2", "-T", &time])?;
    drop(server);
    read(&said)
}

fn read(text: &str) -> Result<Seen> {
    let missing = Error::Output {
        program: "pgbench",
        what: "transactions per second",
    };
    let number = |start: &str| -> Option<f64> {
        let line = text.lines().find(|line| line.starts_with(start))?;
        line.split('=')
            .nth(1)?
            .split_whitespace()
            .next()?
            .parse()
            .ok()
    };
    let rate = number("tps = ").ok_or(missing)?;
    let seen = Seen::rate(rate);
    Ok(match number("latency average = ") {
        Some(latency) => seen.with("latency_ms", latency),
        None => seen,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_summary_is_read() {
        let text = "number of transactions actually processed: 812\nlatency average = 4.929 ms\n\
            tps = 811.463200 (without initial connection time)\n";
        let seen = read(text).unwrap();
        assert!((seen.rate - 811.4632).abs() < 1e-9);
        assert_eq!(seen.more["latency_ms"], 4.929);
        assert!(read("failed").is_err());
    }
}
