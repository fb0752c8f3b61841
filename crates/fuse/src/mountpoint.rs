//! The mount point: the kernel mounts and unmounts it if this process may ask it to, otherwise
//! `fusermount3` does.
//!
//! Protocol of `fusermount3`: it mounts, and sends the open `/dev/fuse` over the socket whose
//! number is in `_FUSE_COMMFD` (here its standard input). With `auto_unmount` it stays until that
//! socket closes, and then unmounts.

use std::ffi::CString;
use std::io::{self, ErrorKind, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::mount::MountFlags;

use crate::block_mount;
use crate::broker::{self, Broker};
use crate::error::MountError;
use crate::options::MountOptions;
use crate::permissions::kernel_checks;
use crate::unmount::{self, FUSERMOUNT, UnmountError, mounted_by_fuse};
use sapwood_vfs::{Access, Choice};

/// A mount, from its creation until it is unmounted.
#[derive(Debug)]
pub(crate) struct MountPoint {
    path: PathBuf,
    kind: Type,
    /// A second descriptor of the connection, to check whether the connection is alive.
    device: OwnedFd,
    /// With `auto_unmount`: open as long as `fusermount3` should wait.
    _keeper: Option<UnixStream>,
    /// Unmounts for a confined daemon.
    broker: Option<Broker>,
}

/// File-system types that the kernel has for FUSE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Type {
    /// `fuse`.
    Ordinary,
    /// `fuseblk`.
    Block,
}

impl Type {
    /// The byte on the broker's socket.
    pub(crate) fn to_byte(self) -> u8 {
        u8::from(self == Self::Block)
    }
}

/// A mount that was just made.
pub(crate) struct Attached {
    path: PathBuf,
    pub(crate) kind: Type,
    /// The descriptor to serve it with.
    pub(crate) device: OwnedFd,
    keeper: Option<UnixStream>,
    /// The reason why it is not of the preferred type.
    pub(crate) warning: Option<String>,
}

/// Mounts on `dir`, through `broker` if there is one. Returns the mount and the descriptor to serve
/// it with.
pub(crate) fn attach(
    dir: &Path,
    options: &MountOptions,
    read_only: bool,
    broker: Option<&Broker>,
) -> Result<(MountPoint, OwnedFd), MountError> {
    let attached = match broker {
        Some(broker) => attach_through(broker, dir, read_only)?,
        None => attach_directly(dir, options, read_only)?,
    };
    if let Some(warning) = attached.warning {
        log::warn!("{warning}");
    }
    let copy = attached.device.try_clone().map_err(MountError::Device)?;
    let mount_point = MountPoint {
        path: attached.path,
        kind: attached.kind,
        device: copy,
        _keeper: attached.keeper,
        broker: broker.cloned(),
    };
    Ok((mount_point, attached.device))
}

fn attach_through(broker: &Broker, dir: &Path, read_only: bool) -> Result<Attached, MountError> {
    let request = [broker::MOUNT, u8::from(read_only)];
    let (answer, device) = broker.ask(&request).map_err(MountError::Session)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match (&*answer, device) {
        ([broker::DONE, kind, warning @ ..], Some(device)) => Ok(Attached {
            path: dir.to_owned(),
            kind: if *kind == Type::Block.to_byte() {
                Type::Block
            } else {
                Type::Ordinary
            },
            device,
            keeper: None,
            warning: Some(text(warning)).filter(|warning| !warning.is_empty()),
        }),
        ([broker::REFUSED, message @ ..], _) => Err(MountError::Broker(text(message))),
        _ => Err(MountError::Session(ErrorKind::InvalidData.into())),
    }
}

/// Mounts on `dir` with the rights of this process.
pub(crate) fn attach_directly(
    dir: &Path,
    options: &MountOptions,
    read_only: bool,
) -> Result<Attached, MountError> {
    let path = check(dir)?;
    let direct = if options.auto_unmount {
        None
    } else {
        mount_directly(&path, options, read_only)?
    };
    if let Some((device, kind, warning)) = direct {
        return Ok(Attached {
            path,
            kind,
            device,
            keeper: None,
            warning,
        });
    }
    if options.nosymfollow {
        let why = "nosymfollow is not known to fusermount3".to_owned();
        return Err(MountError::Fusermount(why));
    }
    let (device, keeper) = mount_with_fusermount(&path, options, read_only)?;
    Ok(Attached {
        path,
        kind: Type::Ordinary,
        device,
        keeper,
        warning: None,
    })
}

fn check(dir: &Path) -> Result<PathBuf, MountError> {
    let owned = || dir.to_path_buf();
    let path = match dir.canonicalize() {
        Ok(path) => path,
        Err(error) => return Err(path_error(owned(), error)),
    };
    if mounted_by_fuse(&path) {
        // The kernel may answer for attributes from its cache.
        return match rustix::fs::statfs(&path) {
            Err(Errno::NOTCONN) => Err(MountError::Stale(path)),
            _ => Err(MountError::Busy(path)),
        };
    }
    match path.metadata() {
        Ok(meta) if meta.is_dir() => Ok(path),
        Ok(_) => Err(MountError::NotDirectory(path)),
        Err(error) => Err(path_error(owned(), error)),
    }
}

fn path_error(path: PathBuf, error: io::Error) -> MountError {
    match error.kind() {
        ErrorKind::NotFound => MountError::MissingMountPoint(path),
        ErrorKind::NotADirectory => MountError::NotDirectory(path),
        ErrorKind::PermissionDenied => MountError::MountPointDenied(path),
        _ if error.raw_os_error() == Some(libc::ENOTCONN) => MountError::Stale(path),
        _ => MountError::Kernel {
            path,
            source: error,
        },
    }
}

/// The open `/dev/fuse`, the type of the mount, and why it is not the preferred one.
type Direct = (OwnedFd, Type, Option<String>);

/// Mounts with the system call; `None` if this process may not.
fn mount_directly(
    path: &Path,
    options: &MountOptions,
    read_only: bool,
) -> Result<Option<Direct>, MountError> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let device = match std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/fuse")
    {
        Ok(file) => OwnedFd::from(file),
        Err(error) => {
            return Err(match error.raw_os_error() {
                Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => MountError::NoDevice,
                _ => MountError::Device(error),
            });
        }
    };
    let mode = path
        .metadata()
        .map_err(|error| path_error(path.to_path_buf(), error))?
        .permissions()
        .mode();
    let mut warning = None;
    if let Some(image) = block_mount::wanted(options) {
        match block_mount::mount((&device, mode), path, image, options, read_only) {
            Ok(()) => return Ok(Some((device, Type::Block, None))),
            Err(error) if options.fuseblk == Choice::On => return Err(MountError::Block(error)),
            Err(error) => warning = Some(format!("mounting without fuseblk: {error}")),
        }
    }
    let kernel_error = |source: io::Error| MountError::Kernel {
        path: path.to_path_buf(),
        source,
    };
    let mut data = format!(
        "fd={},rootmode={mode:o},user_id={},group_id={}",
        rustix::fd::AsRawFd::as_raw_fd(&device),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    if kernel_checks(options) {
        data.push_str(",default_permissions");
    }
    if options.access != Access::Owner {
        data.push_str(",allow_other");
    }
    let data = CString::new(data).map_err(|error| kernel_error(error.into()))?;
    let kind = format!("fuse.{}", options.subtype);
    let flags = flags(options, read_only);
    match rustix::mount::mount(&*options.fsname, path, &*kind, flags, data.as_c_str()) {
        Ok(()) => Ok(Some((device, Type::Ordinary, warning))),
        Err(Errno::PERM) => Ok(None),
        Err(Errno::NODEV) => Err(MountError::NoDevice),
        Err(Errno::BUSY) => Err(MountError::Busy(path.to_path_buf())),
        Err(error) => Err(kernel_error(error.into())),
    }
}

fn flags(options: &MountOptions, read_only: bool) -> MountFlags {
    let mut flags = MountFlags::empty();
    for (on, flag) in [
        (read_only, MountFlags::RDONLY),
        (options.nosuid, MountFlags::NOSUID),
        (options.nodev, MountFlags::NODEV),
        (options.noexec, MountFlags::NOEXEC),
        (options.noatime, MountFlags::NOATIME),
        (options.strictatime, MountFlags::STRICTATIME),
        (options.nodiratime, MountFlags::NODIRATIME),
        (options.lazytime, MountFlags::LAZYTIME),
        (options.nosymfollow, MountFlags::NOSYMFOLLOW),
        (options.sync, MountFlags::SYNCHRONOUS),
        (options.dirsync, MountFlags::DIRSYNC),
    ] {
        flags.set(flag, on);
    }
    flags
}

/// The options in the syntax of `fusermount3`.
fn fusermount_options(options: &MountOptions, read_only: bool) -> String {
    // A comma in a name would end the option.
    let escape = |name: &str| name.replace('\\', "\\\\").replace(',', "\\,");
    let mut words = vec![
        format!("fsname={}", escape(&options.fsname)),
        format!("subtype={}", escape(&options.subtype)),
        if read_only { "ro" } else { "rw" }.to_owned(),
    ];
    for (on, word) in [
        (kernel_checks(options), "default_permissions"),
        (options.access != Access::Owner, "allow_other"),
        (options.auto_unmount, "auto_unmount"),
        (options.nosuid, "nosuid"),
        (options.nodev, "nodev"),
        (options.noexec, "noexec"),
        (options.noatime, "noatime"),
        (options.sync, "sync"),
        (options.dirsync, "dirsync"),
    ] {
        if on {
            words.push(word.to_owned());
        }
    }
    words.join(",")
}

fn mount_with_fusermount(
    path: &Path,
    options: &MountOptions,
    read_only: bool,
) -> Result<(OwnedFd, Option<UnixStream>), MountError> {
    let (ours, theirs) = UnixStream::pair().map_err(MountError::Session)?;
    let spawned = Command::new(FUSERMOUNT)
        .arg("-o")
        .arg(fusermount_options(options, read_only))
        .arg("--")
        .arg(path)
        .env("_FUSE_COMMFD", "0")
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(MountError::NoFusermount),
        Err(error) => return Err(MountError::Fusermount(error.to_string())),
    };
    match receive_device(&ours) {
        Some(device) if options.auto_unmount => {
            // It waits for our end of the socket to close; init then reaps it.
            Ok((device, Some(ours)))
        }
        Some(device) => {
            drop(ours);
            // The descriptor has arrived, so the helper's exit code no longer matters.
            let _ = child.wait();
            Ok((device, None))
        }
        None => {
            let words = child
                .wait_with_output()
                .map(|output| String::from_utf8_lossy(&output.stderr).trim().to_owned())
                .unwrap_or_default();
            Err(fusermount_error(path, words))
        }
    }
}

fn fusermount_error(path: &Path, words: String) -> MountError {
    if words.contains("user_allow_other") {
        return MountError::AllowOther;
    }
    if words.contains("device not found") {
        return MountError::NoDevice;
    }
    if words.contains("open /dev/fuse: Permission denied") {
        return MountError::Device(ErrorKind::PermissionDenied.into());
    }
    if words.contains("resource busy") {
        return MountError::Busy(path.to_path_buf());
    }
    let first = words.lines().next().unwrap_or("no reason given");
    MountError::Fusermount(
        first
            .trim_start_matches("fusermount3: ")
            .trim_start_matches("mount failed: ")
            .to_owned(),
    )
}

/// The descriptor that the helper sends; `None` if the helper ended without one.
fn receive_device(socket: &UnixStream) -> Option<OwnedFd> {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0_u8; 1];
    let received = loop {
        let mut into = [IoSliceMut::new(&mut byte)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        match rustix::net::recvmsg(socket, &mut into, &mut control, flags) {
            Err(Errno::INTR) => {}
            Err(_) => return None,
            Ok(message) => break message.bytes,
        }
    };
    if received == 0 {
        return None;
    }
    control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    })
}

impl MountPoint {
    /// The directory, as an absolute path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the kernel waits for the daemon in `sync` and at the end of the mount.
    pub(crate) fn is_block(&self) -> bool {
        self.kind == Type::Block
    }

    /// Detaches a mount that no thread serves. Ends the connection first: otherwise the kernel
    /// would wait for an answer to its last request.
    pub(crate) fn abort(&self) -> Result<(), UnmountError> {
        match &self.broker {
            Some(broker) => self.ask(broker, broker::ABORT),
            None => unmount::abort(&self.path),
        }
    }

    fn ask(&self, broker: &Broker, request: u8) -> Result<(), UnmountError> {
        let failed = |reason: String| UnmountError::Failed {
            path: self.path.clone(),
            reason,
        };
        let (answer, _) = broker
            .ask(&[request])
            .map_err(|error| failed(error.to_string()))?;
        match &*answer {
            [broker::DONE, ..] => Ok(()),
            [_, kind, reason @ ..] => Err(UnmountError::of_bytes(*kind, reason, &self.path)),
            _ => Err(failed("the broker process gave no reason".to_owned())),
        }
    }

    /// Whether the connection is alive. After its end the kernel signals an error on the
    /// descriptor.
    pub(crate) fn is_alive(&self) -> bool {
        use rustix::event::{PollFd, PollFlags};

        let mut fds = [PollFd::from_borrowed_fd(
            self.device.as_fd(),
            PollFlags::empty(),
        )];
        let now = rustix::time::Timespec::default();
        match rustix::event::poll(&mut fds, Some(&now)) {
            Ok(_) => !fds[0].revents().intersects(PollFlags::ERR),
            Err(_) => true,
        }
    }

    /// Unmounts.
    pub(crate) fn unmount(&self) -> Result<(), UnmountError> {
        self.detach_with(broker::UNMOUNT, |path| unmount::detach(path, false))
    }

    /// Has the kernel write back its dirty pages, and detaches the mount although it is in use: its
    /// name disappears now, and the mount ends when its last user does.
    pub(crate) fn detach_busy(&self) -> Result<(), UnmountError> {
        self.detach_with(broker::DETACH_BUSY, unmount::detach_busy)
    }

    fn detach_with(
        &self,
        request: u8,
        directly: impl FnOnce(&Path) -> Result<(), UnmountError>,
    ) -> Result<(), UnmountError> {
        // A mount that replaced this one after its end must not be unmounted.
        if !self.is_alive() {
            return Ok(());
        }
        let result = match &self.broker {
            Some(broker) => self.ask(broker, request),
            None => directly(&self.path),
        };
        match result {
            // Another process already detached it lazily.
            Err(UnmountError::NotMounted(_)) => Ok(()),
            Err(UnmountError::Failed { .. }) if !self.is_alive() => Ok(()),
            result => result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_must_be_a_directory_that_exists() {
        let missing = Path::new("/nonexistent/sapwood");
        assert!(matches!(
            check(missing),
            Err(MountError::MissingMountPoint(_))
        ));
        let file = std::env::current_exe().unwrap_or_default();
        assert!(matches!(check(&file), Err(MountError::NotDirectory(_))));
    }

    #[test]
    fn names_with_commas_stay_one_option() {
        let options = MountOptions {
            fsname: "a,b\\c".to_owned(),
            ..MountOptions::default()
        };
        assert!(fusermount_options(&options, false).starts_with("fsname=a\\,b\\\\c,"));
    }

    #[test]
    fn refusals_map_to_variants() {
        let path = Path::new("/m");
        let words = "fusermount3: option allow_other only allowed if 'user_allow_other' is set";
        assert!(matches!(
            fusermount_error(path, words.to_owned()),
            MountError::AllowOther
        ));
        let words = "fusermount3: user has no write access to mountpoint /m\nmore";
        let error = fusermount_error(path, words.to_owned());
        assert_eq!(
            error.to_string(),
            "fusermount3 refused: user has no write access to mountpoint /m"
        );
    }
}
