//! A mount with chosen mechanisms, served by a child process.
//!
//! # How it works
//! The child runs `sapwood-bench serve IMAGE DIR`. It prints a line of JSON (its counters) when the
//! mount is ready and for each line that it reads; if that is [`SYNC`], it syncs first. It unmounts
//! when its standard input ends, also because its parent died. As a mount of `sapwood mount` it
//! does the bulk work of `sapwood untar` and `sapwood cp`, and it has the command's allocator.

use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

use sapwood::Kind;
use sapwood::internal::image::Mounted;
use sapwood_block::{Device, FileDevice, OpenOptions};
use sapwood_btrfs::Btrfs;
use sapwood_ext4::Ext4;
use sapwood_fuse::{Access, MountOptions};
use sapwood_testing::CountDevice;

use crate::error::{io_error, syncfs};
use crate::figures::Counted;
use crate::setup::Setup;
use crate::{Error, Result};

/// A file system in process, on a device with counters.
pub struct Opened {
    /// The file system.
    pub fs: Mounted,
    device: Arc<CountDevice<FileDevice>>,
}

impl Opened {
    /// Opens the image.
    ///
    /// # Errors
    /// An error of the device or the engine.
    pub fn open(image: &Path, setup: Setup) -> Result<Self> {
        let device = FileDevice::open(image, OpenOptions::default())?;
        let device = Arc::new(CountDevice::new(device));
        let below: Arc<dyn Device> = device.clone();
        let fs = match setup.kind {
            Kind::Btrfs => Mounted::Btrfs(Arc::new(Btrfs::open(vec![below], setup.btrfs())?)),
            Kind::Ext4 => Mounted::Ext4(Arc::new(Ext4::open(below, setup.ext4())?)),
        };
        Ok(Self { fs, device })
    }

    /// The counters so far.
    ///
    /// # Errors
    /// The engine's counters have an unexpected form.
    pub fn counted(&self) -> Result<Counted> {
        let counted = Counted::read(&self.fs.stats_json(), &self.device.counts());
        counted.map_err(|error| Error::Serve(format!("counters: {error}")))
    }
}

/// The line that asks for a `sync` before the counters.
const SYNC: &str = "sync";

/// Serves a mount until standard input ends; this runs in the child.
///
/// # Errors
/// An error of the image, the mount or the unmount.
pub fn serve(image: &Path, dir: &Path, setup: Setup) -> Result<()> {
    let opened = Opened::open(image, setup)?;
    let options = MountOptions {
        access: if setup.others {
            Access::All
        } else {
            Access::Owner
        },
        fsname: image.display().to_string(),
        threads: (setup.fuse_threads > 0).then_some(setup.fuse_threads),
        io_uring: setup.io_uring,
        default_permissions: !setup.trusted,
        ..MountOptions::default()
    };
    let session = sapwood_fuse::mount(opened.fs.shared(), dir, &options)?;
    sapwood::internal::mount::serve_bulk(&session, opened.fs.shared());
    // A terminal sends its interrupt to the parent too, which ends this process when it is done.
    let watch = sapwood_fuse::signals::on_termination(|_| {});
    let told = tell(&opened, &session);
    session.unmount()?;
    session.end_bulk();
    drop(watch);
    opened.fs.unmount()?;
    told
}

fn tell(opened: &Opened, session: &sapwood_fuse::Session) -> Result<()> {
    let mut lines = io::stdin().lines();
    let mut asked = String::new();
    loop {
        if asked == SYNC {
            opened.fs.sync()?;
        }
        let counted = Counted {
            requests: session.requests().into_iter().collect(),
            ..opened.counted()?
        };
        let text = serde_json::to_string(&counted);
        let text = text.map_err(|error| Error::Serve(error.to_string()))?;
        let mut out = io::stdout().lock();
        let said = writeln!(out, "{text}").and_then(|()| out.flush());
        match (said, lines.next()) {
            (Ok(()), Some(Ok(line))) => asked = line,
            _ => return Ok(()),
        }
    }
}

/// A mount that a child serves, as the parent sees it. Dropping it unmounts.
#[derive(Debug)]
pub struct Served {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    dir: PathBuf,
}

impl Served {
    /// Mounts the image and returns when the mount is ready.
    ///
    /// # Errors
    /// An error of the child, which prints the cause on our standard error.
    pub fn start(image: &Path, dir: &Path, setup: Setup) -> Result<Self> {
        let program = std::env::current_exe().map_err(io_error("this program"))?;
        let mut command = Command::new(program);
        command.arg("serve").arg(image).arg(dir);
        command.args(setup.arguments());
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(io_error("serve"))?;
        let pipes = (child.stdin.take(), child.stdout.take());
        let (Some(input), Some(output)) = pipes else {
            return Err(Error::Serve("no pipe".to_owned()));
        };
        let mut served = Self {
            child,
            input: Some(input),
            output: BufReader::new(output),
            dir: dir.to_owned(),
        };
        served.read()?;
        Ok(served)
    }

    /// The mount point.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The child's process id.
    #[must_use]
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// The counters so far.
    ///
    /// # Errors
    /// The child has died.
    pub fn counted(&mut self) -> Result<Counted> {
        self.ask("")
    }

    /// Makes all that was written durable. The kernel keeps its caches, which
    /// [`sapwood_fuse::control::sync`] drops.
    ///
    /// # Errors
    /// The kernel's, or the child has died. An error of the child's file system ends it.
    pub fn sync(&mut self) -> Result<()> {
        syncfs(&self.dir)?;
        self.ask(SYNC).map(drop)
    }

    fn ask(&mut self, line: &str) -> Result<Counted> {
        let asked = self.input.as_mut().map(|input| writeln!(input, "{line}"));
        if !matches!(asked, Some(Ok(()))) {
            return Err(Error::Serve("it is gone".to_owned()));
        }
        self.read()
    }

    fn read(&mut self) -> Result<Counted> {
        let mut line = String::new();
        let read = self.output.read_line(&mut line);
        if read.map_err(io_error("serve"))? == 0 {
            return Err(Error::Serve("it ended".to_owned()));
        }
        serde_json::from_str(&line).map_err(|error| Error::Serve(error.to_string()))
    }

    /// Unmounts and waits for the child.
    ///
    /// # Errors
    /// The unmount failed.
    pub fn stop(mut self) -> Result<()> {
        self.input = None;
        let status = self.child.wait().map_err(io_error("serve"))?;
        if status.success() {
            Ok(())
        } else {
            Err(Error::Serve(status.to_string()))
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.input = None;
        // A drop cannot report an error.
        let _ = self.child.wait();
    }
}
