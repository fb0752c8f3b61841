//! Another machine writes to an image while a mount waits for its NBD server: the mount becomes
//! read-only, and overwrites nothing.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use sapwood_tests::mount::{Mounted, SapwoodMount, sapwood};
use sapwood_tests::{Need, Outcome, process, scratch, trial};

pub(crate) fn trials() -> Vec<Trial> {
    let needs = [Need::Fuse, Need::Program("nbdkit")];
    ["btrfs", "ext4"]
        .into_iter()
        .map(|kind| {
            let name = format!("nothing_is_overwritten_after_a_takeover_{kind}");
            trial(&name, &needs, move || overwrites_nothing(kind))
        })
        .collect()
}

/// `nbdkit` over a file, which it does not lock. Ends with this.
struct Server {
    image: PathBuf,
    socket: PathBuf,
    child: Child,
}

impl Server {
    fn start(image: &Path, socket: &Path) -> Result<Self, String> {
        let mut server = Self {
            image: image.to_owned(),
            socket: socket.to_owned(),
            child: Self::spawn(image, socket)?,
        };
        server.listening()?;
        Ok(server)
    }

    fn spawn(image: &Path, socket: &Path) -> Result<Child, String> {
        let mut command = Command::new("nbdkit");
        command
            .arg("-f")
            .arg("-U")
            .arg(socket)
            .arg("file")
            .arg(image);
        command.stdin(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn();
        child.map_err(|error| format!("nbdkit: {error}"))
    }

    fn listening(&mut self) -> Result<(), String> {
        let end = Instant::now() + process::ORDINARY;
        while UnixStream::connect(&self.socket).is_err() {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("nbdkit: {status}"));
            }
            if Instant::now() >= end {
                return Err("nbdkit does not listen".to_owned());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.socket);
    }

    fn again(&mut self) -> Result<(), String> {
        self.child = Self::spawn(&self.image, &self.socket)?;
        self.listening()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn run(args: &[&str]) -> Result<String, String> {
    process::succeed(Command::new(sapwood()).args(args), process::ORDINARY)
}

/// Writes a new file durably.
fn durable(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(content)?;
    file.sync_all()
}

fn overwrites_nothing(kind: &str) -> Outcome {
    let dir = scratch::directory();
    let image = dir.path().join("disk");
    let text = image.to_str().unwrap();
    run(&["mkfs", "-q", "-t", kind, "--size", "256M", text])?;
    let socket = dir.path().join("socket");
    let mut server = Server::start(&image, &socket)?;
    let operand = format!("nbd+unix:///?socket={}", socket.display());
    let mount = SapwoodMount::served(Path::new(&operand), &image, "rw")?;
    let root = mount.path().to_owned();
    durable(&root.join("early"), b"early").map_err(|error| error.to_string())?;

    server.kill();
    let new = dir.path().join("other");
    fs::write(&new, "of another machine").map_err(|error| error.to_string())?;
    let (new, root_of_image) = (new.to_str().unwrap(), format!("{text}:/"));
    let taken = std::thread::scope(|scope| {
        let late = scope.spawn(|| durable(&root.join("late"), &[7; 100_000]));
        // The fsync waits for the server; its writes are in flight.
        std::thread::sleep(Duration::from_millis(300));
        let written = run(&["cp", "-q", new, &root_of_image]);
        let started = server.again();
        (written.and(started), late.join())
    });
    let (written, late) = taken;
    written?;
    let said = mount.said();
    let late = late.map_err(|_| "the writer panicked")?;
    if late.is_ok() {
        let why = "an fsync succeeded after another machine wrote";
        return Err(format!("{why}\n{said}").into());
    }
    if durable(&root.join("later"), b"x").is_ok() {
        return Err(format!("the mount still writes\n{said}").into());
    }
    if !said.contains("another client wrote to the export") {
        return Err(format!("the log does not say why\n{said}").into());
    }
    mount.kill();
    server.kill();
    run(&["check", "-q", text])?;
    for (path, wanted) in [("other", "of another machine"), ("early", "early")] {
        let found = run(&["cat", &format!("{text}:/{path}")])?;
        if found != wanted {
            return Err(format!("{path} is {found:?}").into());
        }
    }
    Ok(())
}
