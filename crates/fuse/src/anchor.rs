//! A loop device over the first sector of the image: the block device that a mount of type
//! `fuseblk` needs.
//!
//! # How it works
//!
//! The kernel serves a `fuseblk` mount from the daemon like any other FUSE mount, and never reads
//! or writes its block device. So the device is only an *anchor*. It covers the first [`SIZE`]
//! bytes of the image, where neither btrfs nor ext4 stores anything. I/O through it cannot reach
//! the file system, and programs that probe block devices find no file system on it. Yet `losetup`
//! lists it with its image, and mount(8) refuses a second loop device over the image.
//!
//! The kernel detaches the loop device when its last user is gone (`autoclear`): the mount, or this
//! process if the mount failed. The daemon's lock on the image does not interfere, because the loop
//! device has its own open file.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Size of the anchor in bytes: one sector. The superblock of ext4 begins at byte 1024, the
/// superblock of btrfs at 64 KiB.
const SIZE: u64 = 512;
/// Most attempts to attach: another process may take the free loop device first.
const ATTEMPTS: usize = 16;
/// Major number of loop devices.
const MAJOR: u32 = 7;

/// A loop device over the first sector of an image, attached while this exists.
#[derive(Debug)]
pub(crate) struct Anchor {
    /// Keeps the device attached.
    _device: File,
    number: u32,
}

impl Anchor {
    /// Attaches a loop device to the file or block device `image`. If `read_only`, an image that
    /// may not be opened for writing suffices.
    ///
    /// # Errors
    /// The machine has no loop devices, or this process may not use one.
    pub(crate) fn attach(image: &Path, read_only: bool) -> io::Result<Self> {
        let open = |write| File::options().read(true).write(write).open(image);
        // The kernel makes a mount writable only if its device is: not if the anchor is read-only.
        let (backing, read_only) = match open(true) {
            Err(_) if read_only => (open(false)?, true),
            opened => (opened?, false),
        };
        let control = File::options()
            .read(true)
            .write(true)
            .open("/dev/loop-control")?;
        let mut taken = io::Error::from_raw_os_error(libc::EBUSY);
        for _ in 0..ATTEMPTS {
            let number = call::free_number(&control)?;
            let device = OpenOptions::new()
                .read(true)
                .write(!read_only)
                .custom_flags(libc::O_CLOEXEC)
                .open(format!("/dev/loop{number}"))?;
            match call::configure(&device, &backing, SIZE, read_only) {
                Ok(()) => {
                    return Ok(Self {
                        _device: device,
                        number,
                    });
                }
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => taken = error,
                Err(error) => return Err(error),
            }
        }
        Err(taken)
    }

    /// Path of the loop device.
    pub(crate) fn path(&self) -> String {
        format!("/dev/loop{}", self.number)
    }

    /// Major and minor number of the loop device.
    pub(crate) fn device_number(&self) -> (u32, u32) {
        (MAJOR, self.number)
    }
}

/// The ioctls of `linux/loop.h` hand the kernel a pointer or a number, hence `unsafe`. [`Config`]
/// has the layout of `struct loop_config`, which has 304 bytes on every architecture.
#[expect(unsafe_code, reason = "ioctl; see the module's text")]
mod call {
    use std::fs::File;
    use std::io;
    use std::os::fd::AsRawFd;

    const GET_FREE: libc::Ioctl = 0x4c82;
    const CONFIGURE: libc::Ioctl = 0x4c0a;
    const READ_ONLY: u32 = 1;
    const AUTOCLEAR: u32 = 4;

    #[repr(C)]
    struct Config {
        fd: u32,
        block_size: u32,
        device: u64,
        inode: u64,
        rdevice: u64,
        offset: u64,
        size_limit: u64,
        number: u32,
        encrypt_type: u32,
        encrypt_key_size: u32,
        flags: u32,
        names_and_key: [u8; 64 + 64 + 32],
        init: [u64; 2],
        reserved: [u64; 8],
    }

    const _: () = assert!(size_of::<Config>() == 304);

    pub(super) fn free_number(control: &File) -> io::Result<u32> {
        // SAFETY: the command takes no argument.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), GET_FREE) };
        u32::try_from(number).map_err(|_| io::Error::last_os_error())
    }

    pub(super) fn configure(
        device: &File,
        backing: &File,
        size_limit: u64,
        read_only: bool,
    ) -> io::Result<()> {
        let config = Config {
            fd: u32::try_from(backing.as_raw_fd()).map_err(io::Error::other)?,
            block_size: 0,
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            size_limit,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags: AUTOCLEAR | if read_only { READ_ONLY } else { 0 },
            names_and_key: [0; 160],
            init: [0; 2],
            reserved: [0; 8],
        };
        // SAFETY: the kernel reads one `struct loop_config`, which `config` is.
        match unsafe { libc::ioctl(device.as_raw_fd(), CONFIGURE, &raw const config) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
