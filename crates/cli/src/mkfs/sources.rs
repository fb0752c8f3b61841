//! The sources of `sapwood mkfs`, in the order of the command line, and the metadata that replaces
//! the sources' metadata.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches, Command};
use sapwood::{Changes, IdRange, Sources};

use crate::failure::{FAILED, Failure, Result, USAGE};
use crate::times;

/// An option that names a source, or the directory of the sources after it.
struct Kind {
    long: &'static str,
    short: Option<char>,
    value: &'static str,
    help: &'static str,
    add: fn(&mut Sources, &Path) -> sapwood::Result<()>,
}

const KINDS: &[Kind] = &[
    Kind {
        long: "at",
        short: None,
        value: "PATH",
        help: "Put the sources after this option into the directory PATH of the image, which is \
               made if necessary; --at / ends this",
        add: |sources, path| sources.at(path),
    },
    Kind {
        long: "rootdir",
        short: Some('r'),
        value: "DIR",
        help: "Fill it with the contents of this directory. Sources can be given several times and \
               mixed: a later file replaces an earlier one of the same name",
        add: |sources, path| {
            sources.dir(path);
            Ok(())
        },
    },
    Kind {
        long: "tar",
        short: None,
        value: "FILE",
        help: "Fill it with the files of this tar archive, plain or compressed with gzip, zstd, xz \
               or bzip2; - for standard input",
        add: |sources, path| {
            if path == Path::new("-") {
                sources.tar_stream(std::io::stdin());
            } else {
                sources.tar(path);
            }
            Ok(())
        },
    },
    Kind {
        long: "oci",
        short: None,
        value: "PATH[:TAG]",
        help: "Fill it with the layers of a container image: an OCI layout in a directory or an \
               archive, or an archive of docker save",
        add: |sources, path| {
            sources.oci(path);
            Ok(())
        },
    },
    Kind {
        long: "layer",
        short: None,
        value: "FILE",
        help: "Apply a layer of a container image to the sources before it: a tar archive, whose \
               whiteouts (.wh.NAME) hide names; - for standard input",
        add: |sources, path| {
            if path == Path::new("-") {
                sources.layer_stream(std::io::stdin());
            } else {
                sources.layer(path);
            }
            Ok(())
        },
    },
    Kind {
        long: "overlay",
        short: None,
        value: "PATH",
        help: "Apply a layer in the form of overlayfs to the sources before it: the upper \
               directory of a mount, or a tar archive of it. Its whiteouts and opaque directories \
               hide names",
        add: |sources, path| {
            sources.overlay(path);
            Ok(())
        },
    },
    Kind {
        long: "cpio",
        short: None,
        value: "FILE",
        help: "Fill it with the files of this cpio archive (newc), plain or compressed; - for \
               standard input",
        add: |sources, path| {
            if path == Path::new("-") {
                sources.cpio_stream(std::io::stdin());
            } else {
                sources.cpio(path);
            }
            Ok(())
        },
    },
];

/// Whether a source of this name and value is standard input.
pub(crate) fn is_stdin(name: &str, value: &OsStr) -> bool {
    let archive = |kind: &Kind| kind.long == name && kind.value == "FILE";
    value == "-" && KINDS.iter().any(archive)
}

/// Sources in their order: the place in [`KINDS`], and the value.
#[derive(Debug)]
pub(super) struct Given(Vec<(usize, OsString)>);

impl clap::Args for Given {
    fn augment_args(command: Command) -> Command {
        command.args(KINDS.iter().map(|kind| {
            let parser = clap::value_parser!(OsString);
            let arg = Arg::new(kind.long).long(kind.long).help(kind.help);
            let arg = arg.value_name(kind.value).value_parser(parser);
            let arg = arg.action(ArgAction::Append);
            match kind.short {
                Some(letter) => arg.short(letter),
                None => arg,
            }
        }))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for Given {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut given = Vec::new();
        for (at, kind) in KINDS.iter().enumerate() {
            let values = matches.get_many::<OsString>(kind.long);
            let places = matches.indices_of(kind.long).into_iter().flatten();
            let values = values.into_iter().flatten();
            given.extend(
                places
                    .zip(values)
                    .map(|(place, value)| (place, at, value.clone())),
            );
        }
        given.sort_by_key(|(place, ..)| *place);
        let given = given.into_iter().map(|(_, at, value)| (at, value));
        Ok(Self(given.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.extend(Self::from_arg_matches(matches)?.0);
        Ok(())
    }
}

/// Refuses standard input as several sources.
///
/// # Errors
/// It is.
pub(crate) fn check_stdin(times: usize) -> Result<()> {
    match times {
        0 | 1 => Ok(()),
        _ => {
            let why = "standard input can only be one source";
            Err(Failure::new(USAGE, why))
        }
    }
}

#[derive(Debug, clap::Args)]
pub(super) struct ChangeArgs {
    /// Everything belongs to root
    #[arg(long)]
    all_root: bool,
    /// Map COUNT owners from FROM on to the owners from TO on; others stay
    #[arg(long, value_name = "FROM:TO:COUNT")]
    uid_map: Vec<IdRange>,
    /// Like --uid-map, for groups
    #[arg(long, value_name = "FROM:TO:COUNT")]
    gid_map: Vec<IdRange>,
    /// Leave out matches, with everything below them: names, or paths from the root if the pattern
    /// has a slash. * ? [a-z] {a,b} match within a name, ** any number of directories
    #[arg(long, value_name = "GLOB")]
    exclude: Vec<String>,
    /// Times of files after SOURCE_DATE_EPOCH become that time
    #[arg(long)]
    clamp_mtime: bool,
    /// Metadata from this list, in the format of BSD mtree or the dump format of composefs: owners,
    /// modes, times, attributes, and device nodes, links and empty files that no source has
    #[arg(long, value_name = "FILE")]
    manifest: Vec<PathBuf>,
    /// Owners of the files of the same paths in this tar or cpio archive, or list as --manifest
    #[arg(long, value_name = "FILE")]
    owner_from: Vec<PathBuf>,
    /// SELinux labels from this file_contexts file
    #[arg(long, value_name = "FILE")]
    file_contexts: Option<PathBuf>,
}

impl Given {
    /// The directory that is the only source.
    pub(super) fn only_directory(&self) -> Option<&Path> {
        let [(at, value)] = self.0.as_slice() else {
            return None;
        };
        let is_directory = KINDS.get(*at).is_some_and(|kind| kind.long == "rootdir");
        is_directory.then_some(Path::new(value))
    }

    /// The sources with their changes.
    ///
    /// # Errors
    /// A pattern or file that makes no sense; no `SOURCE_DATE_EPOCH`.
    pub(super) fn sources(&self, changes: &ChangeArgs) -> Result<Sources> {
        let mut sources = Sources::default();
        let stdin = self.0.iter().filter(|(at, value)| {
            let kind = KINDS.get(*at);
            kind.is_some_and(|kind| is_stdin(kind.long, value))
        });
        check_stdin(stdin.count())?;
        let last = self.0.last().and_then(|(at, _)| KINDS.get(*at));
        if last.is_some_and(|kind| kind.long == "at") {
            return Err(Failure::new(USAGE, "--at needs a source after it"));
        }
        for (at, value) in &self.0 {
            if let Some(kind) = KINDS.get(*at) {
                let added = (kind.add)(&mut sources, Path::new(value));
                added.map_err(|error| {
                    Failure::new(USAGE, format_args!("--{}: {error}", kind.long))
                })?;
            }
        }
        for path in &changes.manifest {
            sources.manifest(path);
        }
        for path in &changes.owner_from {
            let read = sources.owners_from(path);
            read.map_err(|error| Failure::new(FAILED, error))?;
        }
        changes.apply(sources.changes_mut())?;
        Ok(sources)
    }
}

impl ChangeArgs {
    fn apply(&self, changes: &mut Changes) -> Result<()> {
        if self.all_root {
            changes.all_root();
        }
        for range in &self.uid_map {
            changes.map_uids(*range);
        }
        for range in &self.gid_map {
            changes.map_gids(*range);
        }
        for pattern in &self.exclude {
            let added = changes.exclude(pattern);
            added.map_err(|error| Failure::new(USAGE, format_args!("--exclude: {error}")))?;
        }
        if self.clamp_mtime {
            let epoch = times::source_date_epoch()?.ok_or_else(|| {
                Failure::new(
                    USAGE,
                    "--clamp-mtime needs SOURCE_DATE_EPOCH in the environment",
                )
            })?;
            changes.clamp_times(epoch);
        }
        if let Some(path) = &self.file_contexts {
            let text = std::fs::read_to_string(path);
            let text = text.map_err(|error| Failure::local(path, error))?;
            let added = changes.file_contexts(&text);
            added.map_err(|error| Failure::local(path, error))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::{Cli, Command};
    use clap::Parser;

    #[test]
    fn sources_are_taken_in_their_order() {
        let words = [
            "sapwood", "mkfs", "--tar", "a", "-r", "b", "--cpio", "c", "--tar=d", "img", "--oci",
            "e:1",
        ];
        let Command::Mkfs(args) = Cli::try_parse_from(words).unwrap().command else {
            panic!("another command");
        };
        let given = args.content.sources.0.iter();
        let given: Vec<_> = given
            .map(|(at, value)| (*at, value.to_str().unwrap()))
            .collect();
        assert_eq!(given, [(2, "a"), (1, "b"), (6, "c"), (2, "d"), (3, "e:1")]);
    }
}
