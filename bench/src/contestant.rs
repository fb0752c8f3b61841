//! The contestants: the compared ways to run a file system.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use sapwood::Kind;
use sapwood_block::{FileDevice, OpenOptions};
use sapwood_fuse::Choice;

use crate::error::{on, run_program, syncfs};
use crate::figures::Counted;
use crate::images::{Images, forget_cached};
use crate::peer::{Peer, PeerMount};
use crate::policy::Policy;
use crate::serve::{Opened, Served};
use crate::setup::{Search, Setup};
use crate::tool::Tool;
use crate::workload::Place;
use crate::{Error, Result};

/// How Sapwood is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Face {
    /// Through a FUSE mount.
    Fuse,
    /// In process.
    Library,
}

/// A way to run a file system.
///
/// As text: `btrfs-fuse`, `btrfs-loop` (through FUSE, but not over io_uring), `btrfs-trusted`
/// (through FUSE with `no_default_permissions`), `btrfs-lib`, the same of `ext4`, with a policy as
/// in `btrfs-lib:overlap-off` and `ext4-fuse:spread-off`, and `+control` for a second run that
/// shows the noise; and the names of the [peers](Peer).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contestant {
    /// Sapwood.
    Sapwood {
        /// How it is used.
        face: Face,
        /// Engine, mechanisms, transport.
        setup: Setup,
        /// A second run that shows how much a contestant differs from itself.
        control: bool,
    },
    /// Another file system.
    Peer(Peer),
    /// A program that makes an image of a directory, and extracts it again.
    Tool(Tool),
}

impl Contestant {
    /// Sapwood with the defaults of users.
    #[must_use]
    pub fn ours(kind: Kind, face: Face) -> Self {
        Self::Sapwood {
            face,
            setup: Setup::new(kind),
            control: false,
        }
    }

    /// Sapwood through FUSE, without io_uring.
    #[must_use]
    pub fn plain_loop(kind: Kind) -> Self {
        let setup = Setup {
            io_uring: Choice::Off,
            ..Setup::new(kind)
        };
        Self::Sapwood {
            face: Face::Fuse,
            setup,
            control: false,
        }
    }

    /// Sapwood through FUSE, for one trusted user.
    #[must_use]
    pub fn trusted(kind: Kind) -> Self {
        let setup = Setup {
            trusted: true,
            ..Setup::new(kind)
        };
        Self::Sapwood {
            face: Face::Fuse,
            setup,
            control: false,
        }
    }

    /// ext4 with a chosen policy of the inode search.
    #[must_use]
    pub fn ext4(face: Face, search: Search) -> Self {
        let setup = Setup {
            search,
            ..Setup::new(Kind::Ext4)
        };
        Self::Sapwood {
            face,
            setup,
            control: false,
        }
    }

    /// btrfs with chosen mechanisms of its log.
    #[must_use]
    pub fn btrfs(face: Face, log: Policy) -> Self {
        let setup = Setup {
            log,
            ..Setup::new(Kind::Btrfs)
        };
        Self::Sapwood {
            face,
            setup,
            control: false,
        }
    }

    /// A second run of the same contestant, to show the noise.
    #[must_use]
    pub fn again(self) -> Self {
        match self {
            Self::Sapwood { face, setup, .. } => Self::Sapwood {
                face,
                setup,
                control: true,
            },
            other @ (Self::Peer(_) | Self::Tool(_)) => other,
        }
    }

    /// True if it runs in process, and not through a directory.
    #[must_use]
    pub fn in_process(&self) -> bool {
        matches!(
            self,
            Self::Sapwood {
                face: Face::Library,
                ..
            }
        )
    }

    /// Programs that it needs.
    #[must_use]
    pub fn programs(&self) -> &'static [&'static str] {
        match self {
            Self::Sapwood { .. } => &[],
            Self::Peer(peer) => peer.programs(),
            Self::Tool(tool) => tool.programs(),
        }
    }

    /// # Errors
    /// What needs root and does not have it.
    pub fn check(&self) -> Result<()> {
        if let Self::Peer(peer) = self
            && !rustix::process::geteuid().is_root()
        {
            return Err(Error::Refused(format!("{peer} as a peer needs root")));
        }
        Ok(())
    }
}

impl fmt::Display for Contestant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (face, setup, control) = match self {
            Self::Sapwood {
                face,
                setup,
                control,
            } => (face, setup, control),
            Self::Peer(peer) => return write!(f, "{peer}"),
            Self::Tool(tool) => return f.write_str(tool.name()),
        };
        let way = match (face, setup.io_uring) {
            (Face::Library, _) => "lib",
            (Face::Fuse, _) if setup.trusted => "trusted",
            (Face::Fuse, Choice::Off) => "loop",
            (Face::Fuse, _) => "fuse",
        };
        write!(f, "{}-{way}", setup.kind)?;
        match setup.kind {
            Kind::Btrfs if setup.log != Policy::On => write!(f, ":{}", setup.log)?,
            Kind::Ext4 if setup.search != Search::On => write!(f, ":{}", setup.search)?,
            _ => {}
        }
        if *control {
            f.write_str("+control")?;
        }
        Ok(())
    }
}

impl FromStr for Contestant {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if let Some(peer) = Peer::ALL.into_iter().find(|peer| peer.name() == text) {
            return Ok(Self::Peer(peer));
        }
        if let Some(tool) = Tool::ALL.into_iter().find(|tool| tool.name() == text) {
            return Ok(Self::Tool(tool));
        }
        let (rest, control) = match text.strip_suffix("+control") {
            Some(rest) => (rest, true),
            None => (text, false),
        };
        let (name, policy) = match rest.split_once(':') {
            Some((name, policy)) => (name, Some(policy)),
            None => (rest, None),
        };
        let wrong = || {
            let peers = Peer::ALL.map(Peer::name).join(", ");
            format!(
                "no contestant {text}; there are KIND-fuse, KIND-loop, KIND-trusted and \
                 KIND-lib of btrfs and ext4, with :POLICY and +control, and {peers}"
            )
        };
        let (kind, way) = name.split_once('-').ok_or_else(wrong)?;
        let mut setup = Setup::new(kind.parse().map_err(|_| wrong())?);
        match (setup.kind, policy) {
            (_, None) => {}
            (Kind::Btrfs, Some(policy)) => setup.log = policy.parse()?,
            (Kind::Ext4, Some(policy)) => setup.search = policy.parse()?,
        }
        let face = match way {
            "lib" => Face::Library,
            "fuse" => Face::Fuse,
            "loop" => {
                setup.io_uring = Choice::Off;
                Face::Fuse
            }
            "trusted" => {
                setup.trusted = true;
                Face::Fuse
            }
            _ => return Err(wrong()),
        };
        Ok(Self::Sapwood {
            face,
            setup,
            control,
        })
    }
}

/// Requirements of a workload for its image and mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Size of the image in bytes.
    pub bytes: u64,
    /// Sparse, as images that users make.
    pub sparse: bool,
    /// Number of inodes that an ext4 must have; 0: the default of `mke2fs`.
    pub inodes: u64,
    /// Processes of other users use the mount.
    pub others: bool,
}

impl Room {
    /// With at least this many inodes, if `mke2fs` would make fewer for this size.
    #[must_use]
    pub(crate) fn with_inodes(self, needed: u64) -> Self {
        let usual = self.bytes / 16384;
        Self {
            inodes: if needed > usual { needed } else { 0 },
            ..self
        }
    }
}

impl Default for Room {
    fn default() -> Self {
        Self {
            bytes: 8 << 30,
            sparse: false,
            inodes: 0,
            others: false,
        }
    }
}

/// A contestant that runs on an image.
pub struct Standing {
    contestant: Contestant,
    commit: Option<u64>,
    others: bool,
    /// `None` only during a remount.
    inner: Option<Inner>,
    /// The counters at the begin of the measured part.
    mark: Option<Counted>,
    image: PathBuf,
    /// The directory with the mount point; it is dropped after the mount.
    home: tempfile::TempDir,
}

enum Inner {
    Served(Served),
    Opened(Opened),
    Peer(PeerMount),
}

impl Inner {
    fn start(
        contestant: Contestant,
        image: &Path,
        home: &Path,
        commit: Option<u64>,
        others: bool,
    ) -> Result<Self> {
        let dir = home.join("mount");
        Ok(match contestant {
            Contestant::Sapwood { face, setup, .. } => match face {
                Face::Fuse => {
                    let setup = Setup { others, ..setup };
                    Self::Served(Served::start(image, &dir, setup)?)
                }
                Face::Library => Self::Opened(Opened::open(image, setup)?),
            },
            Contestant::Peer(peer) => {
                Self::Peer(PeerMount::start(peer, image, &dir, commit, others)?)
            }
            Contestant::Tool(tool) => return Err(no_mount(tool)),
        })
    }

    fn stop(self) -> Result<()> {
        match self {
            Self::Served(served) => served.stop(),
            Self::Peer(mount) => mount.stop(),
            Self::Opened(opened) => Ok(opened.fs.unmount()?),
        }
    }
}

impl Standing {
    /// Makes a fresh file system in an image on `medium` and starts the contestant on it. `commit`
    /// is for peers; Sapwood has it in its setup.
    ///
    /// # Errors
    /// An error of the image or the mount.
    pub fn start(
        contestant: Contestant,
        images: &Images,
        medium: &Path,
        room: Room,
        commit: Option<u64>,
    ) -> Result<Self> {
        let home = tempfile::Builder::new()
            .prefix("sapwood-bench-")
            .tempdir_in(medium)
            .map_err(on(medium))?;
        let dir = home.path().join("mount");
        std::fs::create_dir(&dir).map_err(on(&dir))?;
        let image = images.get(medium, room, home.path())?;
        make(contestant, &image, room)?;
        forget_cached(&image)?;
        let inner = Inner::start(contestant, &image, home.path(), commit, room.others)?;
        Ok(Self {
            contestant,
            commit,
            others: room.others,
            inner: Some(inner),
            mark: None,
            image,
            home,
        })
    }

    /// The place of the file system for a workload.
    ///
    /// # Errors
    /// An earlier remount failed.
    pub fn place(&self) -> Result<Place> {
        Ok(match self.inner()? {
            Inner::Served(served) => Place::Directory(served.dir().to_owned()),
            Inner::Peer(mount) => Place::Directory(mount.dir().to_owned()),
            Inner::Opened(opened) => Place::Library(opened.fs.shared()),
        })
    }

    /// A directory on the same medium outside of the contestant's file system; it is removed with
    /// this value.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn scratch(&self) -> Result<PathBuf> {
        let dir = self.home.path().join("scratch");
        std::fs::create_dir_all(&dir).map_err(on(&dir))?;
        Ok(dir)
    }

    fn inner(&self) -> Result<&Inner> {
        self.inner.as_ref().ok_or_else(not_mounted)
    }

    /// True of Sapwood, and false of a peer.
    #[must_use]
    pub fn is_sapwood(&self) -> bool {
        matches!(self.contestant, Contestant::Sapwood { .. })
    }

    /// The process that serves the mount, if there is one.
    #[must_use]
    pub fn process(&self) -> Option<u32> {
        match self.inner.as_ref()? {
            Inner::Served(served) => Some(served.process()),
            Inner::Peer(mount) => mount.process(),
            Inner::Opened(_) => None,
        }
    }

    fn counters(&mut self) -> Result<Option<Counted>> {
        match self.inner.as_mut().ok_or_else(not_mounted)? {
            Inner::Served(served) => served.counted().map(Some),
            Inner::Opened(opened) => opened.counted().map(Some),
            Inner::Peer(_) => Ok(None),
        }
    }

    /// The counters since the begin of the [measured part](Self::begin); peers have none.
    ///
    /// # Errors
    /// The child has ended.
    pub fn counted(&mut self) -> Result<Option<Counted>> {
        let now = self.counters()?;
        Ok(now
            .zip(self.mark.as_ref())
            .map(|(now, mark)| now.since(mark)))
    }

    /// Starts the measured part: makes all earlier changes durable, so that the measured part does
    /// not pay for them, and does not count them.
    ///
    /// # Errors
    /// The file system's.
    pub fn begin(&mut self) -> Result<()> {
        match self.inner.as_mut().ok_or_else(not_mounted)? {
            Inner::Opened(opened) => opened.fs.sync()?,
            Inner::Served(served) => served.sync()?,
            Inner::Peer(mount) => syncfs(mount.dir())?,
        }
        self.mark = self.counters()?;
        Ok(())
    }

    /// Unmounts, drops the image from the page cache, and mounts again. After that, nothing is
    /// cached unless the medium itself is memory. Every earlier [`Place`] must have been dropped.
    ///
    /// # Errors
    /// The file system's.
    pub fn remount_cold(&mut self) -> Result<()> {
        self.unmounted(|_| Ok(()))
    }

    /// As [`remount_cold`](Self::remount_cold), with `work` done while nothing is mounted; it gets
    /// the path of the image.
    ///
    /// # Errors
    /// Errors of the file system and of `work`: then nothing is mounted.
    pub fn unmounted<T>(&mut self, work: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
        self.inner.take().ok_or_else(not_mounted)?.stop()?;
        forget_cached(&self.image)?;
        let done = work(&self.image)?;
        forget_cached(&self.image)?;
        self.inner = Some(Inner::start(
            self.contestant,
            &self.image,
            self.home.path(),
            self.commit,
            self.others,
        )?);
        self.mark = self.counters()?;
        Ok(done)
    }

    /// Unmounts.
    ///
    /// # Errors
    /// The file system's.
    pub fn stop(mut self) -> Result<()> {
        self.inner.take().map_or(Ok(()), Inner::stop)
    }
}

fn not_mounted() -> Error {
    Error::Refused("nothing is mounted".to_owned())
}

fn no_mount(tool: Tool) -> Error {
    Error::Refused(format!("{} only makes images", tool.name()))
}

/// Makes an empty file system. For btrfs and ext4 it is the same for Sapwood and the peers. It
/// discards nothing.
pub(crate) fn make(contestant: Contestant, image: &Path, room: Room) -> Result<()> {
    let device = FileDevice::open(image, OpenOptions::default())?;
    let kind = match contestant {
        Contestant::Sapwood { setup, .. } => setup.kind,
        Contestant::Peer(Peer::Btrfs) => Kind::Btrfs,
        Contestant::Peer(Peer::Ext4 | Peer::Fuse2fs) => Kind::Ext4,
        Contestant::Tool(tool) => return Err(no_mount(tool)),
        Contestant::Peer(Peer::Xfs) => {
            drop(device);
            let mut command = std::process::Command::new("mkfs.xfs");
            return run_program(command.args(["-q", "-f", "-K"]).arg(image)).map(drop);
        }
    };
    match kind {
        Kind::Btrfs => {
            let options = sapwood_btrfs::mkfs::MkfsOptions {
                force: true,
                discard: false,
                ..sapwood_btrfs::mkfs::MkfsOptions::default()
            };
            sapwood_btrfs::mkfs::mkfs(&device, &options)?;
        }
        Kind::Ext4 => {
            let options = sapwood_ext4::mkfs::MkfsOptions {
                inodes: (room.inodes > 0).then_some(room.inodes),
                force: true,
                discard: false,
                ..sapwood_ext4::mkfs::MkfsOptions::default()
            };
            sapwood_ext4::mkfs::mkfs(&device, &options)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for name in [
            "btrfs-fuse",
            "btrfs-loop",
            "ext4-trusted",
            "btrfs-lib",
            "btrfs-lib:overlap-off",
            "ext4-fuse:spread-off",
            "ext4-fuse+control",
            "ext4-lib:all-off+control",
            "kernel-btrfs",
            "kernel-ext4",
            "kernel-xfs",
            "fuse2fs",
            "sapwood-mkfs-ext4",
            "mkfs.btrfs",
            "mke2fs",
            "sapwood-mkfs-btrfs-tar",
            "sapwood-mkfs-btrfs-zstd",
            "mkfs.btrfs-zstd",
            "source-read",
        ] {
            let contestant: Contestant = name.parse().unwrap();
            assert_eq!(contestant.to_string(), name);
        }
        for wrong in ["btrfs", "xfs-lib", "ext4-tape", "btrfs-lib:spread-off", ""] {
            assert!(wrong.parse::<Contestant>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_control_is_the_same_but_for_its_name() {
        let one = Contestant::ours(Kind::Ext4, Face::Fuse);
        assert_eq!(one.again().to_string(), "ext4-fuse+control");
        assert_ne!(one.again(), one);
    }
}
