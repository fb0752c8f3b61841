//! A contestant that runs: image, mount, daemon, and their end.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use sapwood_block::mount_table::mounted_on;
use sapwood_block::{FileDevice, OpenOptions};
use sapwood_btrfs::Btrfs;
use sapwood_ext4::Ext4;
use sapwood_testing::oracle::{KernelMount, Loop};
use sapwood_vfs::FileSystem;

use crate::contestant::{Contestant, Format, Way};
use crate::error::{Context, Error, Result};
use crate::image::forget_cached;
use crate::place::Place;
use crate::program::{output, syncfs};

/// A file system in use. Dropping it ends it.
pub(crate) struct Stage {
    contestant: Contestant,
    image: PathBuf,
    dir: PathBuf,
    /// `None` only during a remount.
    used: Option<Used>,
}

enum Used {
    /// Served by a child in the foreground.
    Served(Served),
    /// The mount is dropped before the loop device.
    Kernel(KernelMount, #[allow(dead_code)] Loop),
    Library(Arc<dyn FileSystem>),
}

/// A mount that a child serves.
pub(crate) struct Served {
    child: Child,
    dir: PathBuf,
    ended: bool,
}

impl Served {
    /// Waits until `command` has mounted on `dir`.
    fn start(command: &mut Command, dir: &Path) -> Result<Self> {
        const LIMIT: Duration = Duration::from_secs(20);
        let name = command.get_program().display().to_string();
        let command = command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut served = Self {
            child: command.spawn().on(&name)?,
            dir: dir.to_owned(),
            ended: false,
        };
        let began = Instant::now();
        while mounted_on(dir).is_none() {
            if served.child.try_wait()?.is_some() || began.elapsed() > LIMIT {
                return Err(Error::new(format!("{name}: it did not mount")));
            }
            thread::sleep(Duration::from_millis(2));
        }
        Ok(served)
    }

    /// Unmounts and waits for the child.
    fn end(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.ended, true) {
            return Ok(());
        }
        let unmounted = if mounted_on(&self.dir).is_some() {
            output(Command::new("fusermount3").arg("-u").arg(&self.dir)).map(drop)
        } else {
            Ok(())
        };
        if unmounted.is_err() {
            // The daemon unmounts itself.
            let child = rustix::process::Pid::from_child(&self.child);
            let _ = rustix::process::kill_process(child, rustix::process::Signal::TERM);
        }
        let status = self.child.wait()?;
        unmounted?;
        if status.success() {
            return Ok(());
        }
        Err(Error::new(format!(
            "the process that served {}: {status}",
            self.dir.display()
        )))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("{error}");
        }
    }
}

impl Used {
    fn start(contestant: &Contestant, image: &Path, dir: &Path) -> Result<Self> {
        let mut options = contestant.options.clone();
        // A database server runs as another user.
        let served = matches!(contestant.way, Way::Sapwood | Way::Fuse2fs | Way::Limit);
        if served && rustix::process::geteuid().is_root() {
            options += if options.is_empty() {
                "allow_other"
            } else {
                ",allow_other"
            };
        }
        let mut command = match contestant.way {
            Way::Library => return library(contestant, image).map(Self::Library),
            Way::Kernel => {
                // Bypasses the host's page cache if the host's file system supports that.
                let device =
                    Loop::new(image, &["--direct-io=on"]).or_else(|_| Loop::new(image, &[]));
                let device = device.on("losetup")?;
                let options = if options.is_empty() { "rw" } else { &options };
                let kind = contestant.format.name();
                let mount =
                    KernelMount::of_device(device.path(), kind, options, dir).on("mount")?;
                return Ok(Self::Kernel(mount, device));
            }
            Way::Sapwood => {
                let mut command = Command::new(&contestant.program);
                command.args(["mount", "--quiet", "--foreground"]);
                command
            }
            Way::Fuse2fs => {
                let mut command = Command::new("fuse2fs");
                command.arg("-f");
                command
            }
            Way::Limit => {
                let mut command = Command::new(std::env::current_exe()?);
                command.args(["limit", "-o", &options]).arg(dir);
                return Served::start(&mut command, dir).map(Self::Served);
            }
            _ => return Err(Error::new(format!("{} only makes images", contestant.name))),
        };
        if !options.is_empty() {
            command.arg("-o").arg(options);
        }
        command.env("SAPWOOD_WITHOUT", &contestant.without);
        Served::start(command.arg(image).arg(dir), dir).map(Self::Served)
    }

    fn stop(self) -> Result<()> {
        match self {
            Self::Served(mut served) => served.end(),
            Self::Kernel(mount, _device) => mount.unmount().on("umount"),
            Self::Library(fs) => Ok(fs.unmount()?),
        }
    }
}

/// Opens an image in this process.
fn library(contestant: &Contestant, image: &Path) -> Result<Arc<dyn FileSystem>> {
    let device = Arc::new(FileDevice::open(image, OpenOptions::default())?);
    Ok(if contestant.format == Format::Btrfs {
        Arc::new(Btrfs::open(
            vec![device],
            sapwood_btrfs::Options::default(),
        )?)
    } else {
        Arc::new(Ext4::open(device, sapwood_ext4::Options::default())?)
    })
}

impl Stage {
    /// Starts a contestant on an image, and mounts it on `dir`.
    ///
    /// # Errors
    /// The mount fails.
    pub(crate) fn start(contestant: &Contestant, image: &Path, dir: &Path) -> Result<Self> {
        forget_cached(image)?;
        Ok(Self {
            contestant: contestant.clone(),
            image: image.to_owned(),
            dir: dir.to_owned(),
            used: Some(Used::start(contestant, image, dir)?),
        })
    }

    /// The contestant.
    pub(crate) fn contestant(&self) -> &Contestant {
        &self.contestant
    }

    fn used(&self) -> Result<&Used> {
        self.used
            .as_ref()
            .ok_or_else(|| Error::new("nothing is mounted"))
    }

    /// The file system for a load.
    pub(crate) fn place(&self) -> Result<Place> {
        Ok(match self.used()? {
            Used::Served(_) | Used::Kernel(..) => Place::Mount(self.dir.clone()),
            Used::Library(fs) => Place::Library(Arc::clone(fs)),
        })
    }

    /// The process that serves the mount, or this one in process; `None` for the kernel.
    pub(crate) fn process(&self) -> Option<u32> {
        match self.used.as_ref()? {
            Used::Served(served) => Some(served.child.id()),
            Used::Kernel(..) => None,
            Used::Library(_) => Some(std::process::id()),
        }
    }

    /// Makes everything durable.
    ///
    /// # Errors
    /// Errors of the file system.
    pub(crate) fn sync(&self) -> Result<()> {
        match self.used()? {
            Used::Library(fs) => fs.sync()?,
            // FUSE does not pass syncfs on.
            Used::Served(_) if self.contestant.way == Way::Sapwood => {
                output(
                    Command::new(&self.contestant.program)
                        .arg("sync")
                        .arg(&self.dir),
                )?;
            }
            Used::Served(_) | Used::Kernel(..) => syncfs(&self.dir)?,
        }
        Ok(())
    }

    /// Unmounts, drops the image from the page cache, calls `work` with it, and mounts again. After
    /// that, nothing is cached unless the medium itself is memory. Every earlier [`Place`] must
    /// have been dropped.
    ///
    /// # Errors
    /// Errors of the file system and of the work. Nothing is mounted then.
    pub(crate) fn unmounted<T>(&mut self, work: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
        self.end()?;
        forget_cached(&self.image)?;
        let done = work(&self.image)?;
        forget_cached(&self.image)?;
        self.used = Some(Used::start(&self.contestant, &self.image, &self.dir)?);
        Ok(done)
    }

    /// Unmounts.
    ///
    /// # Errors
    /// Errors of the file system.
    pub(crate) fn end(&mut self) -> Result<()> {
        self.used.take().map_or(Ok(()), Used::stop)
    }
}
