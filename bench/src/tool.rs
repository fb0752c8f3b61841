//! Programs that make an image of a directory.

use std::path::Path;
use std::process::Command;

use sapwood::Kind;

use crate::program::sapwood;
use crate::{Error, Result};

/// A program that makes an image of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    /// `sapwood mkfs --rootdir`.
    Sapwood(Kind),
    /// `sapwood mkfs --tar`, from an archive of the directory.
    SapwoodTar(Kind),
    /// `sapwood mkfs --compress zstd --rootdir`, for btrfs.
    SapwoodZstd,
    /// `mkfs.btrfs --rootdir`.
    MkfsBtrfs,
    /// `mkfs.btrfs --compress zstd --rootdir`.
    MkfsBtrfsZstd,
    /// `mke2fs -d`.
    Mke2fs,
    /// `tar` that packs the directory into a pipe: the time in which one thread reads the source.
    ReadSource,
}

impl Tool {
    /// All tools.
    pub const ALL: [Self; 9] = [
        Self::Sapwood(Kind::Btrfs),
        Self::Sapwood(Kind::Ext4),
        Self::MkfsBtrfs,
        Self::Mke2fs,
        Self::SapwoodTar(Kind::Btrfs),
        Self::SapwoodTar(Kind::Ext4),
        Self::SapwoodZstd,
        Self::MkfsBtrfsZstd,
        Self::ReadSource,
    ];

    /// Name on the command line and in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sapwood(Kind::Btrfs) => "sapwood-mkfs-btrfs",
            Self::Sapwood(Kind::Ext4) => "sapwood-mkfs-ext4",
            Self::SapwoodTar(Kind::Btrfs) => "sapwood-mkfs-btrfs-tar",
            Self::SapwoodTar(Kind::Ext4) => "sapwood-mkfs-ext4-tar",
            Self::SapwoodZstd => "sapwood-mkfs-btrfs-zstd",
            Self::MkfsBtrfs => "mkfs.btrfs",
            Self::MkfsBtrfsZstd => "mkfs.btrfs-zstd",
            Self::Mke2fs => "mke2fs",
            Self::ReadSource => "source-read",
        }
    }

    /// The images of the other programs are extracted by the kernel.
    #[must_use]
    pub fn needs_root(self) -> bool {
        matches!(self, Self::MkfsBtrfs | Self::MkfsBtrfsZstd | Self::Mke2fs)
    }

    /// Programs that it needs.
    #[must_use]
    pub fn programs(self) -> &'static [&'static str] {
        match self {
            Self::Sapwood(_) | Self::SapwoodTar(_) | Self::SapwoodZstd => &[],
            Self::MkfsBtrfs | Self::MkfsBtrfsZstd => &["mkfs.btrfs", "btrfs"],
            Self::Mke2fs => &["mke2fs", "debugfs"],
            Self::ReadSource => &["tar"],
        }
    }

    /// The reason why it cannot run on this machine, if there is one.
    #[must_use]
    pub fn missing(self) -> Option<String> {
        if self != Self::MkfsBtrfsZstd {
            return None;
        }
        // A program that is not installed is reported by name later.
        let help = Command::new("mkfs.btrfs").arg("--help").output().ok()?;
        let text = [help.stdout, help.stderr].concat();
        let known = String::from_utf8_lossy(&text).contains("--compress");
        (!known).then(|| "the installed mkfs.btrfs has no --compress".to_owned())
    }

    /// What makes `image` of the directory `tree`, or of `archive`, which contains the same.
    ///
    /// # Errors
    /// The command `sapwood` is not built, or the tool needs an archive and there is none.
    pub(crate) fn command(
        self,
        tree: &Path,
        archive: Option<&Path>,
        image: &Path,
    ) -> Result<Command> {
        let ours = |kind: Kind| -> Result<Command> {
            let mut command = Command::new(sapwood()?);
            command.args(["mkfs", "--quiet", "--force", "-t", kind.name()]);
            Ok(command)
        };
        let named = |program: &str, arguments: &[&str]| {
            let mut command = Command::new(program);
            command.args(arguments);
            command
        };
        let mut command = match self {
            Self::SapwoodTar(kind) => {
                let why = || Error::Refused(format!("{} needs an archive", self.name()));
                let mut command = ours(kind)?;
                command
                    .arg("--tar")
                    .arg(archive.ok_or_else(why)?)
                    .arg(image);
                return Ok(command);
            }
            Self::ReadSource => {
                // `tar` reads no file if it sees that the archive goes to /dev/null.
                let mut command = named("sh", &["-c", "tar -cf - . | cat > /dev/null"]);
                command.current_dir(tree);
                return Ok(command);
            }
            Self::Sapwood(kind) => {
                let mut command = ours(kind)?;
                command.arg("--rootdir");
                command
            }
            Self::SapwoodZstd => {
                let mut command = ours(Kind::Btrfs)?;
                command.args(["--compress", "zstd", "--rootdir"]);
                command
            }
            Self::MkfsBtrfs => named("mkfs.btrfs", &["--quiet", "--rootdir"]),
            Self::MkfsBtrfsZstd => named(
                "mkfs.btrfs",
                &["--quiet", "--compress", "zstd", "--rootdir"],
            ),
            Self::Mke2fs => named("mke2fs", &["-q", "-F", "-t", "ext4", "-d"]),
        };
        command.arg(tree).arg(image);
        Ok(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_gets_the_tree_or_the_archive_and_the_image() {
        let (tree, archive, image) = (Path::new("/t"), Path::new("/t.tar"), Path::new("/i"));
        let arguments = |tool: Tool| -> Vec<String> {
            let command = tool.command(tree, Some(archive), image).unwrap();
            let text = |argument: &std::ffi::OsStr| argument.to_string_lossy().into_owned();
            command.get_args().map(text).collect()
        };
        assert_eq!(arguments(Tool::Mke2fs)[4..], ["-d", "/t", "/i"]);
        let zstd = ["--compress", "zstd", "--rootdir", "/t", "/i"];
        assert_eq!(arguments(Tool::MkfsBtrfsZstd)[1..], zstd);
        let read = Tool::ReadSource.command(tree, None, image).unwrap();
        assert_eq!(read.get_current_dir(), Some(tree));
        assert!(
            Tool::SapwoodTar(Kind::Ext4)
                .command(tree, None, image)
                .is_err()
        );
    }
}
