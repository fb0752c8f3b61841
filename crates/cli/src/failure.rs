//! How a command fails: one line, and an exit code that means something.

use std::fmt::Display;
use std::path::Path;

use sapwood::image::OpenError;
use sapwood::options::OptionError;
use sapwood::target::NoImage;

/// Something that was asked for could not be done.
pub(super) const FAILED: u8 = 1;
/// The command line makes no sense.
pub(super) const USAGE: u8 = 2;
/// The image could not be opened: missing, in use, not a file system, damaged, unsupported.
pub(super) const IMAGE: u8 = 3;
/// What mount(8) and its helpers answer when a mount failed.
pub(super) const MOUNT: u8 = 32;

/// A failed command.
#[derive(Debug)]
pub(super) struct Failure {
    code: u8,
    line: String,
}

impl Failure {
    pub(super) fn new(code: u8, line: impl Display) -> Self {
        Self {
            code,
            line: line.to_string(),
        }
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
        Self::new(FAILED, sapwood::image::named(path, why))
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
        Self::new(IMAGE, error)
    }
}

impl From<sapwood::Error> for Failure {
    fn from(error: sapwood::Error) -> Self {
        match error {
            sapwood::Error::Open(error) => error.into(),
            error => Self::new(FAILED, error),
        }
    }
}

impl From<OptionError> for Failure {
    fn from(error: OptionError) -> Self {
        Self::new(USAGE, error)
    }
}

impl From<NoImage> for Failure {
    fn from(error: NoImage) -> Self {
        Self::new(IMAGE, error)
    }
}

/// Result of a command.
pub(super) type Result<T, E = Failure> = std::result::Result<T, E>;
