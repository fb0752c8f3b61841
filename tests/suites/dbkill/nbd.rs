//! An image behind `nbdkit`, whose filters are the faults.

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long the server may take to listen.
const PATIENCE: Duration = Duration::from_secs(30);

/// The server; it ends with this.
pub(crate) struct Server {
    dir: tempfile::TempDir,
    image: PathBuf,
    child: Child,
}

impl Server {
    /// Serves this file. Every read and write takes a millisecond.
    ///
    /// # Errors
    /// `nbdkit` does not start, or does not listen.
    pub(crate) fn start(image: &Path) -> Result<Self, String> {
        let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
        let child = spawn(dir.path(), image)?;
        let mut server = Self {
            dir,
            image: image.to_owned(),
            child,
        };
        server.listening()?;
        Ok(server)
    }

    /// The operand of `sapwood mount`.
    pub(crate) fn operand(&self) -> PathBuf {
        let socket = socket(self.dir.path());
        PathBuf::from(format!("nbd+unix:///?socket={}", socket.display()))
    }

    /// Ends it with `SIGKILL`, with whatever it was doing, and starts it again.
    ///
    /// # Errors
    /// The server did not start.
    pub(crate) fn crash(&mut self) -> Result<(), String> {
        self.kill();
        self.child = spawn(self.dir.path(), &self.image)?;
        self.listening()
    }

    /// Every read, write and flush fails from now on.
    ///
    /// # Errors
    /// The file that switches the filter on cannot be made.
    pub(crate) fn fail(&self) -> Result<(), String> {
        let made = File::create(trigger(self.dir.path()));
        made.map(drop).map_err(|error| error.to_string())
    }

    /// The end of [`fail`](Self::fail).
    pub(crate) fn heal(&self) {
        let _ = std::fs::remove_file(trigger(self.dir.path()));
    }

    fn listening(&mut self) -> Result<(), String> {
        let end = Instant::now() + PATIENCE;
        while UnixStream::connect(socket(self.dir.path())).is_err() {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("nbdkit: {status}"));
            }
            if Instant::now() >= end {
                return Err(format!("nbdkit does not listen after {PATIENCE:?}"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn socket(dir: &Path) -> PathBuf {
    dir.join("socket")
}

fn trigger(dir: &Path) -> PathBuf {
    dir.join("fail")
}

fn spawn(dir: &Path, image: &Path) -> Result<Child, String> {
    let _ = std::fs::remove_file(socket(dir));
    let mut command = Command::new("nbdkit");
    command.args(["-f", "--filter=delay", "--filter=error", "-U"]);
    command.arg(socket(dir)).arg("file").arg(image);
    command.args(["rdelay=1ms", "wdelay=1ms", "error=EIO", "error-rate=100%"]);
    command.arg(format!("error-file={}", trigger(dir).display()));
    command.stdin(Stdio::null()).stderr(Stdio::null());
    command
        .spawn()
        .map_err(|error| format!("{command:?}: {error}"))
}
