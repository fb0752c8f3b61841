//! Failures of commands: one line, and a meaningful exit code.

use std::fmt::Display;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use sapwood::block::{Holder, Server};
use sapwood::internal::image::OpenError;
use sapwood::internal::options::OptionError;
use sapwood::internal::{DetectError, NewFileError, NoImage, OperationError};
use sapwood::vfs;

/// A part of the requested work failed.
pub(super) const FAILED: u8 = 1;
/// The command line makes no sense.
pub(super) const USAGE: u8 = 2;
/// The image could not be opened: missing, in use, not a file system, damaged, unsupported.
pub(super) const IMAGE: u8 = 3;
/// A directory is unmounted, but its image is in use yet.
pub(super) const HELD: u8 = 4;
/// Exit code of mount(8) and its helpers after a failed mount.
pub(super) const MOUNT: u8 = 32;

/// A failed command.
#[derive(Debug)]
pub(super) struct Failure {
    code: u8,
    line: String,
}

impl Failure {
    pub(super) fn new(code: u8, line: impl Display) -> Self {
        let line = without_numbers(&line.to_string());
        Self { code, line }
    }

    /// A failure whose lines were printed before.
    pub(super) fn reported() -> Self {
        Self::new(FAILED, "")
    }

    /// An operation on a named thing failed.
    pub(super) fn on(what: impl Display, why: impl Display) -> Self {
        Self::new(FAILED, format!("{what}: {why}"))
    }

    /// An operation on a path of this machine failed.
    pub(super) fn local(path: &Path, why: impl Display) -> Self {
        let line = sapwood::internal::image::named(path, why);
        let failure = Self::new(FAILED, &line);
        match dead_mount(path, &line) {
            Some(point) => failure.advise(format_args!(
                "its daemon has died: `sapwood umount {}` clears the mount away",
                point.display()
            )),
            None => failure,
        }
    }

    /// The same failure with advice for the next step.
    pub(super) fn advise(self, next: impl Display) -> Self {
        let line = if self.line.is_empty() {
            self.line
        } else {
            format!("{}; {next}", self.line)
        };
        Self { line, ..self }
    }

    /// The same failure, prefixed with its subject.
    pub(super) fn about(self, what: impl Display) -> Self {
        let line = format!("{what}: {}", self.line);
        Self { line, ..self }
    }

    /// The same failure with another exit code.
    pub(super) fn with_code(self, code: u8) -> Self {
        Self { code, ..self }
    }

    /// The exit code.
    pub(super) fn code(&self) -> u8 {
        self.code
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.line)
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        let next = next(&error);
        let failure = Self::new(IMAGE, error);
        match next {
            Some(next) => failure.advise(next),
            None => failure,
        }
    }
}

/// Errors of a mount whose daemon has died: the second one for a request that was waiting for it.
pub(super) const DEAD: [i32; 2] = [libc::ENOTCONN, libc::ECONNABORTED];

/// The mount that contains a path of this machine, if the error means that its daemon has died.
fn dead_mount(path: &Path, error: &str) -> Option<PathBuf> {
    let dead = |number: &i32| error.ends_with(&format!("(os error {number})"));
    if !DEAD.iter().any(dead) {
        return None;
    }
    let path = std::path::absolute(path).ok()?;
    let table = crate::host::mount::mount_table().ok()?;
    let above = table
        .into_iter()
        .filter(|entry| entry.is_ours() && path.starts_with(&entry.point));
    let nearest = above.max_by_key(|entry| entry.point.as_os_str().len());
    nearest.map(|entry| entry.point)
}

/// A line without the number that the standard library adds to an error of the system.
fn without_numbers(line: &str) -> String {
    let mut parts = line.split(" (os error ");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|char: char| char.is_ascii_digit() || char == '-');
        text.push_str(rest.strip_prefix(')').unwrap_or(rest));
    }
    text
}

/// Advice for an image that does not open.
fn next(error: &OpenError) -> Option<String> {
    use sapwood::block::Error;

    Some(match error {
        OpenError::Device(Error::Open { device, source }) => match source.kind() {
            ErrorKind::NotFound => format!("`sapwood mkfs --size 10G {device}` would make it"),
            ErrorKind::PermissionDenied => {
                "you need read access, and write access for changes".to_owned()
            }
            ErrorKind::ReadOnlyFilesystem => "only reading commands work there".to_owned(),
            _ => return None,
        },
        OpenError::Device(Error::Busy { holder, .. }) => return release(holder),
        OpenError::Device(Error::ReadOnly { .. }) => "only reading commands work there".to_owned(),
        OpenError::Btrfs { source, .. } => match **source {
            sapwood::internal::btrfs::Error::MissingDevice { .. } => DEVICES.to_owned(),
            _ => return None,
        },
        OpenError::Kind {
            source: DetectError::Encrypted,
            ..
        } => "that is --key-file or --ask-passphrase".to_owned(),
        OpenError::Kind {
            path,
            source: DetectError::Neither,
        } => {
            if named_part(path) {
                return None;
            } else {
                format!(
                    "`sapwood info {}` lists the partitions of a disk",
                    path.display()
                )
            }
        }
        _ => return None,
    })
}

/// Advice for releasing an image in use.
fn release(holder: &Holder) -> Option<String> {
    Some(match holder {
        Holder::Mount {
            point,
            server,
            namespace,
        } => {
            let umount = match server {
                Server::Kernel(_) => "umount",
                Server::Sapwood(_) => "sapwood umount",
            };
            let inside = namespace.as_ref().map_or(String::new(), |process| {
                format!("nsenter --mount --target {} ", process.id)
            });
            format!("`{inside}{umount} {}` releases it", point.display())
        }
        Holder::Hidden | Holder::Unknown => {
            "`sapwood umount DIR` releases a mount, `lsof` shows programs".to_owned()
        }
        Holder::Swap | Holder::Device(_) | Holder::Program(_) | Holder::Opener(_) => return None,
    })
}

/// Whether an operand names a part of an image.
fn named_part(path: &Path) -> bool {
    sapwood::block::Operand::file_of(path) != path
}

impl From<sapwood::Error> for Failure {
    fn from(error: sapwood::Error) -> Self {
        let part = error.downcast::<OpenError>().map(Self::from);
        let part = part.or_else(|error| error.downcast::<NewFileError>().map(Self::from));
        let part = part.or_else(|error| error.downcast::<OptionError>().map(Self::from));
        part.unwrap_or_else(|error| {
            let full = matches!(engine_error(&error), Some(vfs::Error::NoSpace));
            let failure = Self::new(FAILED, error);
            if full { failure.advise(FULL) } else { failure }
        })
    }
}

/// The engine's error, if an operation on the files of an image failed.
pub(super) fn engine_error(error: &sapwood::Error) -> Option<&vfs::Error> {
    match error.downcast_ref()? {
        OperationError::Path { source, .. } | OperationError::FileSystem { source, .. } => {
            Some(source)
        }
        OperationError::NotUtf8(_) => None,
    }
}

/// Advice for an image that is one of several devices.
pub(super) const DEVICES: &str = "--device FILE names each of the others";

/// Advice for a full image.
pub(super) const FULL: &str = "`sapwood df` and `sapwood du` show the used space";

impl From<OptionError> for Failure {
    fn from(error: OptionError) -> Self {
        let unknown = matches!(error, OptionError::Unknown(_));
        let failure = Self::new(USAGE, error);
        if unknown {
            failure.advise("`sapwood mount-options` explains all options")
        } else {
            failure
        }
    }
}

impl From<NewFileError> for Failure {
    fn from(error: NewFileError) -> Self {
        match error {
            NewFileError::Old(error) => OpenError::from(error).into(),
            NewFileError::Exists(_) => Self::new(FAILED, error).advise("-f replaces it"),
            error => Self::new(FAILED, error),
        }
    }
}

impl From<NoImage> for Failure {
    fn from(error: NoImage) -> Self {
        Self::new(IMAGE, error)
    }
}

/// Result of a command.
pub(super) type Result<T, E = Failure> = std::result::Result<T, E>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_system_has_no_number() {
        let error = std::io::Error::from_raw_os_error(2);
        let line = Failure::on("a.img", error).advise("make it").to_string();
        assert_eq!(line, "a.img: No such file or directory; make it");
    }
}
