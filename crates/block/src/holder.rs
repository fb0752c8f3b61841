//! [`Holder`]: the user of an image, for the message of a refused open. [`MountEntry`]: a mount.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

/// The user of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// A mount.
    Mount {
        /// The mount point, in its namespace.
        point: PathBuf,
        /// The server of the mount.
        server: Server,
        /// A process that has its mount namespace, if that is another one.
        namespace: Option<Process>,
    },
    /// The kernel swaps to it.
    Swap,
    /// A block device on top of it, by name: device mapper, or a RAID.
    Device(String),
    /// A program that has locked it.
    Program(Process),
    /// Another open of the block device, perhaps by this program, which has it open.
    Opener(Process),
    /// There are processes that this user may not examine.
    Hidden,
    /// None was found.
    Unknown,
}

/// The server of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Server {
    /// The kernel's file system of this type.
    Kernel(String),
    /// A daemon of Sapwood; `None` if this user may not examine it.
    Sapwood(Option<Process>),
}

/// A process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Process id.
    pub id: u32,
    /// The name of its program, as far as the kernel keeps it.
    pub name: String,
}

/// One mount of this process's mount namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountEntry {
    /// Major and minor number of the file system, which all its mounts share.
    pub device: (u32, u32),
    /// Directory of the file system that is visible there: `/`, or another one in a bind mount.
    pub root: PathBuf,
    /// Mount point.
    pub point: PathBuf,
    /// Type of the file system: `fuse.sapwood`, `fuseblk.sapwood`.
    pub kind: OsString,
    /// The source as the file system names it: an image or a device.
    pub source: OsString,
}

impl MountEntry {
    /// Whether a Sapwood daemon serves it.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.kind == "fuse.sapwood" || self.kind == "fuseblk.sapwood"
    }

    /// Whether the kernel waits for the daemon in `sync` and `umount`.
    #[must_use]
    pub fn is_block(&self) -> bool {
        self.kind.as_encoded_bytes().starts_with(b"fuseblk")
    }
}

/// A mount in another mount namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountElsewhere {
    /// A process in that namespace.
    pub process: Process,
    /// Mount point in the process's namespace.
    pub point: PathBuf,
}

/// A text from another program, without control characters.
pub(crate) fn printable(text: &str) -> String {
    text.chars()
        .map(|char| if char.is_control() { '?' } else { char })
        .collect()
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.id == std::process::id() {
            return f.write_str("this process");
        }
        write!(f, "{} (process {})", printable(&self.name), self.id)
    }
}

/// The words after "in use".
impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mount {
                point,
                server,
                namespace,
            } => {
                let point = printable(&point.display().to_string());
                write!(f, " by the mount on {point} ({server})")?;
                namespace.as_ref().map_or(Ok(()), |process| {
                    write!(f, " in the mount namespace of {process}")
                })
            }
            Self::Swap => f.write_str(" as swap space"),
            Self::Device(name) => write!(f, " by the device {}", printable(name)),
            Self::Program(process) => write!(f, " by {process}"),
            Self::Opener(process) => write!(f, "; {process} has it open"),
            Self::Hidden => f.write_str(" by another process, which only root can name"),
            Self::Unknown => f.write_str(" by another mount or program"),
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel(kind) => write!(f, "{kind} of the kernel"),
            Self::Sapwood(None) => f.write_str("sapwood"),
            Self::Sapwood(Some(daemon)) => {
                write!(f, "{}, process {}", printable(&daemon.name), daemon.id)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_others_cannot_control_the_terminal() {
        let (id, name) = (7, "a\x1b[2J\n".to_owned());
        assert_eq!(Process { id, name }.to_string(), "a?[2J? (process 7)");
    }
}
