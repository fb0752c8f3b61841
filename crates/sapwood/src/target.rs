//! Arguments that name a file on this machine, or a path in an image as `IMAGE:PATH`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use sapwood_block::Operand;

use crate::image;

/// A file or directory that a command works on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A file or directory of this machine.
    Local(PathBuf),
    /// A path in an image, without a leading `/`.
    Image {
        /// Image: a file, a device, or a part of one ([`Operand`]); `IMAGE@GENERATION` for a state
        /// of a btrfs.
        image: PathBuf,
        /// Path from the root of the image.
        path: Vec<u8>,
    },
}

/// An argument has the form `IMAGE:PATH`, but there is no such image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: no such image (a file of this machine with a colon in its name is written ./NAME)", image.display())]
pub struct NoImage {
    /// The image that the argument would name.
    pub image: PathBuf,
}

impl Target {
    /// Parses an argument. An argument that names an existing file is local; else the first colon
    /// after the name of an existing file or device ends the image's name. Without such an image a
    /// name with a colon is local only if its directory exists and the colon is in the directory's
    /// name, or if the component with the colon follows `./`: a mistyped image must not become a
    /// file.
    ///
    /// # Errors
    /// [`NoImage`].
    pub fn parse(argument: &OsStr) -> Result<Self, NoImage> {
        let bytes = argument.as_bytes();
        let local = Ok(Self::Local(PathBuf::from(argument)));
        let least = Operand::least_end(bytes);
        let is_end = |(at, byte): &(usize, &u8)| *at >= least && **byte == b':';
        let Some((first, _)) = bytes.iter().enumerate().find(is_end) else {
            return local;
        };
        if Path::new(argument).symlink_metadata().is_ok() {
            return local;
        }
        let colons = bytes.iter().enumerate().filter(is_end);
        for (at, _) in colons {
            let (image, path) = (&bytes[..at], &bytes[at + 1..]);
            if names_image(Path::new(OsStr::from_bytes(image))) {
                return Ok(Self::image(OsString::from_vec(image.to_vec()), path));
            }
        }
        let before = &bytes[..first];
        let start = before
            .iter()
            .rposition(|byte| *byte == b'/')
            .map_or(0, |at| at + 1);
        let above = &before[..start];
        let marked = above == b"./" || above.ends_with(b"/./");
        let parent = Path::new(argument).parent();
        let in_parent =
            parent.is_some_and(|dir| dir.as_os_str().as_bytes().contains(&b':') && dir.is_dir());
        if marked || in_parent {
            local
        } else {
            Err(NoImage {
                image: OsString::from_vec(before.to_vec()).into(),
            })
        }
    }

    /// Like [`parse`](Self::parse), for commands that need an image: without a colon the argument
    /// means the root of the image.
    ///
    /// # Errors
    /// [`NoImage`].
    pub fn parse_in_image(argument: &OsStr) -> Result<(PathBuf, Vec<u8>), NoImage> {
        Ok(match Self::parse(argument)? {
            Self::Image { image, path } => (image, path),
            Self::Local(image) => (image, Vec::new()),
        })
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

fn names_image(path: &Path) -> bool {
    Operand::exists(path) || image::state_of(path).is_some()
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
        assert_eq!(Target::parse(&argument), Ok(Target::Local(image.clone())));
        argument.push(":/x/y:z");
        let expected = Target::Image {
            image: image.clone(),
            path: b"x/y:z".to_vec(),
        };
        assert_eq!(Target::parse(&argument), Ok(expected));
        let mut part = image.clone().into_os_string();
        part.push("#root fs");
        argument = part.clone();
        argument.push(":etc");
        let expected = Target::Image {
            image: part.into(),
            path: b"etc".to_vec(),
        };
        assert_eq!(Target::parse(&argument), Ok(expected));
    }

    #[test]
    fn the_path_follows_the_whole_address_of_an_export() {
        for image in [
            "nbd://box:7/x",
            "nbd://[::1]:7/x",
            "nbd+unix:///x?socket=/run/s#2",
        ] {
            let whole = Target::parse_in_image(OsStr::new(image)).unwrap();
            assert_eq!(whole, (image.into(), Vec::new()));
            let place = format!("{image}:/etc/a:b");
            let expected = Target::Image {
                image: image.into(),
                path: b"etc/a:b".to_vec(),
            };
            assert_eq!(Target::parse(OsStr::new(&place)), Ok(expected));
        }
    }

    #[test]
    fn a_missing_image_is_no_local_file() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).into_os_string();
        for name in ["typo.img:", "typo.img:/x", "no:such", "a/no.img:x/y"] {
            let image = dir.path().join(name.split(':').next().unwrap());
            assert_eq!(Target::parse(&at(name)), Err(NoImage { image }), "{name}");
        }
        assert!(Target::parse(OsStr::new("no:such")).is_err());
        // A directory is no image.
        assert!(Target::parse(&at(":x")).is_err());
        std::fs::create_dir(dir.path().join("d:e")).unwrap();
        std::fs::write(dir.path().join("f:g"), b"").unwrap();
        for name in ["./no:such", "d:e/new", "f:g", "no-colon"] {
            assert_eq!(
                Target::parse(&at(name)),
                Ok(Target::Local(at(name).into())),
                "{name}"
            );
        }
        let marked = Target::parse(OsStr::new("./no:such"));
        assert_eq!(marked, Ok(Target::Local("./no:such".into())));
    }
}
