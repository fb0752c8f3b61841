//! Arguments that name a place: a file on this machine, or `IMAGE:PATH`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A place that a command works on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A file or directory of this machine.
    Local(PathBuf),
    /// A path in an image, without a leading `/`.
    Image {
        /// Image file or device.
        image: PathBuf,
        /// Path from the root of the image.
        path: Vec<u8>,
    },
}

impl Target {
    /// Reads an argument. What exists as it stands is local; else the first colon behind the
    /// name of an existing file or device ends the image's name.
    #[must_use]
    pub fn parse(argument: &OsStr) -> Self {
        let bytes = argument.as_bytes();
        if !Path::new(argument).exists() {
            let colons = bytes.iter().enumerate().filter(|(_, byte)| **byte == b':');
            for (at, _) in colons {
                let (image, path) = (&bytes[..at], &bytes[at + 1..]);
                if Path::new(OsStr::from_bytes(image)).exists() {
                    return Self::image(OsString::from_vec(image.to_vec()), path);
                }
            }
        }
        Self::Local(PathBuf::from(argument))
    }

    /// As [`parse`](Self::parse) where only an image makes sense: without a colon it means the
    /// image's root.
    #[must_use]
    pub fn parse_in_image(argument: &OsStr) -> (PathBuf, Vec<u8>) {
        match Self::parse(argument) {
            Self::Image { image, path } => (image, path),
            Self::Local(image) => (image, Vec::new()),
        }
    }

    fn image(image: OsString, path: &[u8]) -> Self {
        let start = path
            .iter()
            .position(|byte| *byte != b'/')
            .unwrap_or(path.len());
        Self::Image {
            image: image.into(),
            path: path[start..].to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colons_after_existing_files_split() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("a:b.img");
        std::fs::write(&image, b"").unwrap();
        let mut argument = image.clone().into_os_string();
        assert_eq!(Target::parse(&argument), Target::Local(image.clone()));
        argument.push(":/x/y:z");
        let expected = Target::Image {
            image,
            path: b"x/y:z".to_vec(),
        };
        assert_eq!(Target::parse(&argument), expected);
        assert_eq!(
            Target::parse(OsStr::new("no:such")),
            Target::Local("no:such".into())
        );
    }
}
