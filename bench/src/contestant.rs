//! The contestants: the compared ways to run a file system, and to make an image.
//!
//! A name is one of [`BASES`] with suffixes, in this order:
//!
//! | suffix | |
//! |---|---|
//! | `:OPTION,...` | mount options |
//! | `~MECHANISM,...` | without these mechanisms, in a build of `scripts/ablation` |
//! | `@PROGRAM` | another `sapwood`, which `--program PROGRAM=PATH` names |
//! | `+again` | a second run of the same, which shows the noise |

use std::path::{Path, PathBuf};

use sapwood_testing::machine::installed;

use crate::error::{Error, Result};

/// A format of file systems.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Btrfs,
    Ext4,
    Xfs,
}

impl Format {
    /// Name in commands.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Btrfs => "btrfs",
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
        }
    }
}

/// How a contestant runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// `sapwood mount`.
    Sapwood,
    /// Sapwood's engine in process.
    Library,
    /// The kernel's, on a loop device.
    Kernel,
    /// fuse2fs of e2fsprogs.
    Fuse2fs,
    /// Sapwood's transport over a file system that does nothing; it needs no image.
    Limit,
    /// `sapwood mkfs`.
    SapwoodMkfs,
    /// `mkfs.btrfs --rootdir`.
    MkfsBtrfs,
    /// `mke2fs -d`.
    Mke2fs,
    /// No image: the source is only read, by one thread.
    ReadSource,
}

/// Name, way, format, mount options.
///
/// Without `ssd` the kernel's btrfs treats a loop device as a rotating disk and waits a timer tick
/// in each log of several writers. With `nodiscard`, the default of the other peers, a written-out
/// image stays allocated. With `noinit_itable` no kernel thread zeroes inode tables during the
/// measurement of another contestant. `fuse-limit` reads `/dev/fuse`, as the default mount does;
/// with `fuse-limit:io_uring=on` it uses a ring.
const BASES: [(&str, Way, Format, &str); 18] = [
    ("btrfs-fuse", Way::Sapwood, Format::Btrfs, ""),
    ("btrfs-loop", Way::Sapwood, Format::Btrfs, "io_uring=off"),
    (
        "btrfs-trusted",
        Way::Sapwood,
        Format::Btrfs,
        "no_default_permissions",
    ),
    ("btrfs-lib", Way::Library, Format::Btrfs, ""),
    ("ext4-fuse", Way::Sapwood, Format::Ext4, ""),
    ("ext4-loop", Way::Sapwood, Format::Ext4, "io_uring=off"),
    (
        "ext4-trusted",
        Way::Sapwood,
        Format::Ext4,
        "no_default_permissions",
    ),
    ("ext4-lib", Way::Library, Format::Ext4, ""),
    ("kernel-btrfs", Way::Kernel, Format::Btrfs, "ssd,nodiscard"),
    ("kernel-ext4", Way::Kernel, Format::Ext4, "noinit_itable"),
    ("kernel-xfs", Way::Kernel, Format::Xfs, ""),
    ("fuse2fs", Way::Fuse2fs, Format::Ext4, ""),
    ("fuse-limit", Way::Limit, Format::Ext4, "io_uring=off"),
    ("sapwood-mkfs-btrfs", Way::SapwoodMkfs, Format::Btrfs, ""),
    ("sapwood-mkfs-ext4", Way::SapwoodMkfs, Format::Ext4, ""),
    ("mkfs.btrfs", Way::MkfsBtrfs, Format::Btrfs, ""),
    ("mke2fs", Way::Mke2fs, Format::Ext4, ""),
    ("source-read", Way::ReadSource, Format::Btrfs, ""),
];

/// The names without suffixes.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    BASES.iter().map(|base| base.0)
}

/// Programs called `sapwood`, by the name in `--program`; the one of this build has the name "".
#[derive(Debug, Clone)]
pub(crate) struct Programs(pub(crate) Vec<(String, PathBuf)>);

impl Programs {
    fn find(&self, name: &str) -> Result<&Path> {
        let found = self.0.iter().find(|(known, _)| known == name);
        let (_, path) = found.ok_or_else(|| Error::new(format!("no --program {name}=PATH")))?;
        if !path.is_file() {
            let path = path.display();
            return Err(Error::new(format!(
                "{path} is missing: cargo build --release -p sapwood-cli"
            )));
        }
        Ok(path)
    }
}

/// A way to run a file system, or to make an image.
#[derive(Debug, Clone)]
pub(crate) struct Contestant {
    /// The name on the command line and in tables.
    pub(crate) name: String,
    pub(crate) way: Way,
    pub(crate) format: Format,
    /// Mount options; empty for the defaults.
    pub(crate) options: String,
    /// Mechanisms that are switched off.
    pub(crate) without: String,
    /// The `sapwood` that it runs.
    pub(crate) program: PathBuf,
}

impl Contestant {
    /// Parses a name.
    ///
    /// # Errors
    /// There is no such contestant, program, or switch in this build.
    pub(crate) fn parse(name: &str, programs: &Programs) -> Result<Self> {
        let rest = name.strip_suffix("+again").unwrap_or(name);
        let (rest, program) = rest.split_once('@').unwrap_or((rest, ""));
        let (rest, without) = rest.split_once('~').unwrap_or((rest, ""));
        let (base, more) = rest.split_once(':').unwrap_or((rest, ""));
        let found = BASES.iter().find(|known| known.0 == base);
        let (_, way, format, options) = *found.ok_or_else(|| {
            let all = names().collect::<Vec<_>>().join(" ");
            Error::new(format!("no contestant {name}; there are {all}"))
        })?;
        let switches = std::env::var("SAPWOOD_SWITCHES").unwrap_or_default();
        let known = |one: &str| switches.split(' ').any(|switch| switch == one);
        if let Some(unknown) = without
            .split(',')
            .find(|one| !one.is_empty() && !known(one))
        {
            return Err(Error::new(format!(
                "{name}: this build has no switch {unknown}; `make ablation` makes one with switches"
            )));
        }
        let ours = matches!(way, Way::Sapwood | Way::SapwoodMkfs);
        if !program.is_empty() && !ours {
            return Err(Error::new(format!(
                "{name}: only contestants that run the command sapwood have a program"
            )));
        }
        let program = if ours {
            programs.find(program)?.to_owned()
        } else {
            PathBuf::new()
        };
        let options: Vec<_> = [options, more]
            .into_iter()
            .filter(|one| !one.is_empty())
            .collect();
        Ok(Self {
            name: name.to_owned(),
            way,
            format,
            options: options.join(","),
            without: without.to_owned(),
            program,
        })
    }

    /// Whether it makes images, and mounts none.
    pub(crate) fn is_maker(&self) -> bool {
        use Way::{Mke2fs, MkfsBtrfs, ReadSource, SapwoodMkfs};
        matches!(self.way, SapwoodMkfs | MkfsBtrfs | Mke2fs | ReadSource)
    }

    /// The reason why it cannot run on this machine, if there is one.
    pub(crate) fn missing(&self) -> Option<String> {
        let program = match (self.way, self.format) {
            (Way::Kernel, Format::Xfs) => "mkfs.xfs",
            (Way::Kernel, _) => "losetup",
            (Way::Fuse2fs, _) => "fuse2fs",
            (Way::MkfsBtrfs, _) => "mkfs.btrfs",
            (Way::Mke2fs, _) => "mke2fs",
            _ => return None,
        };
        if !installed(program) {
            return Some(format!("{program} is not installed"));
        }
        let root = rustix::process::geteuid().is_root() || self.is_maker();
        (!root).then(|| "it needs root".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_add_options_switches_and_programs() {
        let this = std::env::current_exe().unwrap();
        let programs = Programs(vec![
            (String::new(), this.clone()),
            ("old".to_owned(), this),
        ]);
        let parse = |name: &str| Contestant::parse(name, &programs);
        let all = parse("btrfs-loop:notreelog,commit=5@old+again").unwrap();
        assert_eq!(all.options, "io_uring=off,notreelog,commit=5");
        assert_eq!(all.name, "btrfs-loop:notreelog,commit=5@old+again");
        assert_eq!(parse("ext4-fuse").unwrap().options, "");
        assert!(parse("mke2fs").unwrap().is_maker());
        for name in names() {
            assert!(parse(name).is_ok(), "{name}");
        }
        for wrong in [
            "btrfs",
            "ext4-tape",
            "",
            "btrfs-fuse@new",
            "fuse2fs@old",
            "btrfs-fuse~x",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
