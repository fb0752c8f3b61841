//! Starting, and being, the process that mounts and unmounts for a daemon in its sandbox.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::host::mount::broker::{self, Broker, BrokerSockets};
use crate::host::mount::{broker_options, broker_process};
use rustix::io::fcntl_dupfd_cloexec;
use sapwood::Options;

use crate::failure::{Failure, Result};
use crate::output;

/// Starts the process for the mount of `image` on `dir`, both real paths, with the options that the
/// command was given.
///
/// # Errors
/// Errors of system calls.
pub(super) fn start(image: &Path, dir: &Path, lists: &[String]) -> io::Result<Broker> {
    let (broker, sockets) = broker::sockets()?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("sapwood").args(["mount", "--broker"]);
    for list in lists {
        command.args(["-o", list]);
    }
    // A group of its own, which the terminal does not interrupt.
    command
        .arg("--")
        .args([image, dir])
        .current_dir("/")
        .stdin(sockets.mounts)
        .stdout(sockets.connections)
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()?;
    Ok(broker)
}

/// Serves the daemon at the other end of the standard streams until it ends.
pub(super) fn serve(image: &Path, dir: &Path, options: &Options) -> Result<()> {
    let copy = |stream: std::os::fd::BorrowedFd<'_>| {
        fcntl_dupfd_cloexec(stream, 3)
            .map_err(|error| Failure::on("broker", io::Error::from(error)))
    };
    let sockets = BrokerSockets {
        mounts: copy(io::stdin().as_fd())?,
        connections: copy(io::stdout().as_fd())?,
    };
    let log: PathBuf = output::log_socket();
    let fuse = broker_options(image, options);
    let auto_unmount = options.mounting().auto_unmount;
    broker_process::serve(sockets, dir, &fuse, log, auto_unmount)
        .map_err(|error| Failure::on("broker", error))
}
