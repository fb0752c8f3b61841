//! The command lines of `mke2fs`, `mkfs.ext2`, `mkfs.ext3`, `mkfs.ext4` and `mkfs.btrfs`.
//!
//! Image builders call those tools. [`parse`] turns the words of such a call into a [`Request`],
//! as far as builders use the options. An option that changes nothing here is accepted, and one
//! that cannot be served is refused by name.

mod btrfs;
mod mke2fs;

use std::ffi::OsString;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use sapwood::{MkfsOptions, Storage};

/// A file system to make.
#[derive(Debug)]
pub struct Request {
    /// Format, features, label and size of the file system.
    pub options: MkfsOptions,
    /// Image file or block device.
    pub file: PathBuf,
    /// Further devices of the file system.
    pub others: Vec<PathBuf>,
    /// First byte of the file system in the file.
    pub offset: u64,
    /// Bytes of the file system; without it, the file from the offset to its end.
    pub size: Option<u64>,
    /// The file is created if it does not exist.
    pub creates: bool,
    /// The directory whose files the file system gets.
    pub rootdir: Option<PathBuf>,
    /// How btrfs stores these files.
    pub storage: Storage,
    /// Owner and mode of the root directory; without them, the owner and mode of `rootdir`.
    pub root: Option<RootDirectory>,
    /// Nothing but errors is printed.
    pub quiet: bool,
    /// Warnings that the tool prints on standard error before it makes the file system.
    pub warnings: Vec<String>,
}

/// Owner and mode of the root directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RootDirectory {
    /// User and group.
    pub owner: (u32, u32),
    /// Permission bits.
    pub mode: u32,
}

/// The request of a call of a tool.
#[derive(Debug)]
pub enum Asked {
    /// A file system.
    Make(Box<Request>),
    /// A text on standard output: help, a version, a list of features.
    Print(String),
}

/// Why a call of a tool is refused: one line, without the name of the tool.
#[derive(Debug)]
pub struct Error(String);

impl Error {
    fn new(line: impl Display) -> Self {
        Self(line.to_string())
    }

    /// An option or value that Sapwood does not have.
    fn unsupported(what: impl Display) -> Self {
        Self(format!("{what} is not supported"))
    }
}

impl Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

/// Result of a part of the parsing.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The tool that a program is called as: the last component of its first argument.
#[must_use]
pub fn tool(args: &[OsString]) -> Option<&str> {
    let name = Path::new(args.first()?).file_name()?.to_str()?;
    let known = [
        "mkfs.btrfs",
        "mke2fs",
        "mkfs.ext2",
        "mkfs.ext3",
        "mkfs.ext4",
    ];
    known.contains(&name).then_some(name)
}

/// Parses the arguments of [`tool`], the name of the program included.
///
/// # Errors
/// An unknown option, a bad value, or an option that cannot be served.
pub fn parse(tool: &str, args: &[OsString]) -> Result<Asked> {
    if tool == "mkfs.btrfs" {
        btrfs::parse(args)
    } else {
        mke2fs::parse(tool, args)
    }
}

/// Reads the words of a tool; the inner error is a text that they ask for.
fn words<A: clap::Parser>(args: &[OsString]) -> Result<Result<A, String>> {
    match A::try_parse_from(args) {
        Ok(args) => Ok(Ok(args)),
        Err(error) if error.kind() == ErrorKind::DisplayHelp => Ok(Err(error.to_string())),
        Err(error) => {
            let text = error.to_string();
            let text = text.trim_end();
            Err(Error::new(text.strip_prefix("error: ").unwrap_or(text)))
        }
    }
}

/// Sets an option of mkfs.
fn set(options: &mut MkfsOptions, name: &str, value: Option<&str>) -> Result<()> {
    options.set(name, value).map_err(Error::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(line: &str) -> Result<Asked> {
        let args: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        let tool = tool(&args).expect("the name of a tool").to_owned();
        parse(&tool, &args)
    }

    fn request(line: &str) -> Request {
        match asked(line) {
            Ok(Asked::Make(request)) => *request,
            other => panic!("{line}: {other:?}"),
        }
    }

    fn refusal(line: &str) -> String {
        asked(line).expect_err(line).to_string()
    }

    #[test]
    fn a_tool_is_known_by_the_name_of_the_program() {
        let name = |program: &str| tool(&[program.into()]).map(str::to_owned);
        assert_eq!(name("/sbin/mkfs.ext4").as_deref(), Some("mkfs.ext4"));
        assert_eq!(name("mkfs.btrfs").as_deref(), Some("mkfs.btrfs"));
        assert_eq!(name("/usr/bin/sapwood"), None);
        assert_eq!(tool(&[]), None);
    }

    #[test]
    fn sizes_have_the_units_of_each_tool() {
        let size = |line: &str| request(line).size;
        assert_eq!(size("mke2fs -F a.img 2048"), Some(2 << 20));
        assert_eq!(size("mke2fs -F -b 4096 a.img 512"), Some(2 << 20));
        assert_eq!(size("mke2fs -F a.img 4096s"), Some(2 << 20));
        assert_eq!(size("mkfs.btrfs -b 1G a.img"), Some(1 << 30));
        assert_eq!(size("mkfs.btrfs a.img"), None);
        assert!(refusal("mke2fs a.img 3x").contains("is no size"));
    }

    #[test]
    fn extended_options_choose_the_root_directory_and_the_offset() {
        let made = request("mke2fs -F -E root_owner=7:8,root_perms=700,offset=1M a.img 8M");
        let root = RootDirectory {
            owner: (7, 8),
            mode: 0o700,
        };
        assert_eq!((made.root, made.offset), (Some(root), 1 << 20));
        assert_eq!(made.options.root_owner(), Some((7, 8)));
        let plain = request("mkfs.ext4 -F a.img")
            .root
            .expect("a root directory");
        assert_eq!((plain.owner, plain.mode), ((0, 0), 0o755));
        assert!(refusal("mke2fs -E root_owner=x a.img 8M").contains("root_owner=x"));
    }

    #[test]
    fn a_long_label_is_cut_with_a_warning() {
        let made = request("mke2fs -F -L a-label-of-20-letters a.img 8M");
        assert_eq!(made.options.label(), "a-label-of-20-le");
        assert_eq!(made.warnings, ["label cut to \"a-label-of-20-le\""]);
    }

    #[test]
    fn what_cannot_be_served_is_refused_by_name() {
        assert_eq!(
            refusal("mke2fs -n a.img"),
            "-n: a run that makes nothing is not supported"
        );
        assert_eq!(
            refusal("mkfs.btrfs --shrink a.img"),
            "--shrink is not supported"
        );
        assert_eq!(
            refusal("mkfs.btrfs --compress zstd a.img"),
            "--compress needs --rootdir"
        );
    }

    #[test]
    fn help_and_versions_are_texts() {
        for line in ["mke2fs -V", "mkfs.btrfs --help", "mkfs.btrfs -O list-all"] {
            assert!(matches!(asked(line), Ok(Asked::Print(_))), "{line}");
        }
    }
}
