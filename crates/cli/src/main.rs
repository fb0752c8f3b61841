//! The `sapwood` command.

#![deny(clippy::print_stdout, clippy::print_stderr)]
// Parts of commands on mounts.
#![cfg_attr(
    not(all(target_os = "linux", not(sapwood_portable))),
    allow(dead_code, unused_imports)
)]

mod apply;
mod attributes;
mod balance;
mod change;
mod check;
mod choice;
mod colors;
mod complete;
mod content;
mod copy;
#[cfg_attr(sapwood_portable, path = "absent.rs")]
#[cfg_attr(not(target_os = "linux"), path = "absent.rs")]
mod demo;
mod device;
mod diff;
#[cfg_attr(sapwood_portable, path = "absent.rs")]
#[cfg_attr(not(target_os = "linux"), path = "absent.rs")]
mod doctor;
mod dropin;
mod dump;
mod entry;
mod export;
mod failure;
mod files;
mod find;
mod generate;
mod help;
mod host;
mod info;
mod interrupt;
mod limits;
mod list;
mod long_paths;
mod luks;
mod mkdisk;
mod mkfs;
mod mode;
#[cfg_attr(sapwood_portable, path = "absent.rs")]
#[cfg_attr(not(target_os = "linux"), path = "absent.rs")]
mod mount;
mod output;
mod owner;
mod progress;
mod quota;
mod range;
mod receive;
mod rescue;
mod resize;
mod script;
mod scrub;
mod send;
mod session;
mod shell;
mod sizes;
mod stat;
mod stats;
mod subvolume;
mod sync;
mod times;
mod trim;
#[cfg_attr(sapwood_portable, path = "absent.rs")]
#[cfg_attr(not(target_os = "linux"), path = "absent.rs")]
mod umount;
mod untar;
mod usage;
mod verity;
mod xattr;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use sapwood_allocator as _;

/// btrfs and ext4 in user space: make, mount, read, write and check images, without root and
/// without a kernel driver.
#[derive(Debug, Parser)]
#[command(
    name = "sapwood",
    version,
    arg_required_else_help = true,
    disable_help_subcommand = true,
    max_term_width = 100
)]
struct Cli {
    #[command(flatten)]
    range: range::Range,
    #[command(flatten)]
    devices: choice::Devices,
    #[command(flatten)]
    verity: choice::Verity,
    #[command(flatten)]
    encryption: choice::Encryption,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a new file system in an image or on a device
    Mkfs(Box<mkfs::Args>),
    /// Make a disk image: a partition table with filled partitions
    Mkdisk(mkdisk::Args),
    /// Mount an image on a directory
    Mount(mount::Args),
    /// Explain every mount option
    #[command(long_about = sapwood::internal::options::table::as_text())]
    MountOptions(mount::OptionsArgs),
    /// Explain every option of mkfs
    #[command(long_about = sapwood::internal::mkfs_table::as_text())]
    MkfsOptions(mkfs::OptionsArgs),
    /// Unmount a directory and wait until its image is complete
    Umount(umount::Args),
    /// Make everything that was written to a mount durable
    Sync(sync::Args),
    /// Show features, sizes and use of an image
    Info(info::Args),
    /// List a directory in an image
    Ls(list::LsArgs),
    /// Print files of an image
    Cat(content::CatArgs),
    /// Show all attributes of files in an image
    Stat(stat::Args),
    /// Show a directory of an image and everything below it
    Tree(list::TreeArgs),
    /// Find files in an image by name, kind, size, time, owner or mode
    Find(Box<find::Args>),
    /// Show how much space directories of an image take
    Du(usage::DuArgs),
    /// Show how full images and mounts are
    Df(usage::DfArgs),
    /// Copy files between this machine and images, or between images
    Cp(copy::Args),
    /// Put the files of a tar archive into a directory of an image
    Untar(untar::Args),
    /// Write files of an image to a tar archive or OCI layer
    Export(export::Args),
    /// Remove files in an image
    Rm(change::RmArgs),
    /// Make directories in an image
    Mkdir(change::MkdirArgs),
    /// Rename or move within an image
    Mv(change::MvArgs),
    /// Make hard and symbolic links in an image
    Ln(change::LnArgs),
    /// Write standard input to a file in an image
    Write(content::WriteArgs),
    /// Edit a file in an image with $VISUAL or $EDITOR
    Edit(content::EditArgs),
    /// Change times of files in an image, or make empty files
    Touch(attributes::TouchArgs),
    /// Change the size of files in an image
    Truncate(attributes::TruncateArgs),
    /// Change modes of files in an image
    Chmod(attributes::ChmodArgs),
    /// Change owners of files in an image
    Chown(attributes::ChownArgs),
    /// Run the commands of a script in an image: all of them, or none
    Apply(apply::Args),
    /// Run commands in one opened image, with history and completion
    Shell(shell::Args),
    /// List, print, set and remove extended attributes
    #[command(subcommand)]
    Xattr(xattr::Command),
    /// List, create, snapshot and delete subvolumes
    #[command(subcommand)]
    Subvolume(subvolume::Command),
    /// Show what changed between two snapshots, directories or images
    Diff(diff::Args),
    /// Write a snapshot, or its changes since another one, as a stream
    Send(send::Args),
    /// Make the subvolume of a stream in an image
    Receive(receive::Args),
    /// Show the counters of a mount: fsyncs, commits, durations
    Stats(stats::Args),
    /// Make the file system of an image larger or smaller
    Resize(resize::Args),
    /// Discard the free space of an image on its device
    Trim(trim::Args),
    /// Read all copies of everything, and repair bad ones
    Scrub(scrub::Args),
    /// Move block groups of a btrfs, and change their profiles
    Balance(balance::Args),
    /// Add and remove devices of a btrfs
    #[command(subcommand)]
    Device(device::Command),
    /// Show and change the quota groups of a btrfs
    #[command(subcommand)]
    Quota(quota::Command),
    /// Make and verify hash trees of images and of files
    #[command(subcommand)]
    Verity(verity::Command),
    /// Make and show encrypted volumes
    #[command(subcommand)]
    Luks(luks::Command),
    /// Check an image, and repair it on request
    Check(check::Args),
    /// Restore an image as it was before a repair
    Undo(check::UndoArgs),
    /// Show what is left of a damaged image, and copy it out
    Rescue(Box<rescue::Args>),
    /// Print the trees of an image
    Dump(dump::Args),
    /// Show what mounts need of this machine, and what it lacks
    Doctor(doctor::Args),
    /// Make an image, work in it, pull the plug, recover
    Demo(demo::Args),
    /// Make man pages and shell completions
    #[command(subcommand, hide = true)]
    Generate(generate::Args),
    /// Print the paths in an image that continue a word
    #[command(hide = true)]
    Complete(complete::Args),
    /// Show this page, or the help of a command
    Help(help::Args),
}

impl Command {
    /// Restricts each image that the command names to the given range.
    fn apply(&mut self, range: range::Range) -> failure::Result<()> {
        if !range.is_given() {
            return Ok(());
        }
        match self {
            Self::Mkfs(args) => range.image(&mut args.image),
            Self::Mount(args) => range.image(args.image()),
            Self::Info(args) => range.image(&mut args.image),
            Self::Check(args) => range.image(&mut args.image),
            Self::Resize(args) => range.image(args.image_mut()),
            Self::Trim(args) => range.image(&mut args.image),
            Self::Apply(args) => range.image(&mut args.image),
            Self::Scrub(args) => range.image(&mut args.image),
            Self::Balance(args) => range.image(args.image_mut()),
            Self::Device(command) => command.image().map_or(Ok(()), |image| range.image(image)),
            Self::Quota(command) => range.image(command.image_mut()),
            Self::Dump(args) => range.image(&mut args.image),
            Self::Rescue(args) => args.apply(range),
            Self::Ls(args) => range.places(&mut args.places),
            Self::Cat(args) => range.places(&mut args.places),
            Self::Stat(args) => range.places(&mut args.places),
            Self::Tree(args) => range.place(&mut args.place),
            Self::Untar(args) => range.place(&mut args.place),
            Self::Export(args) => range.place(&mut args.place),
            Self::Shell(args) => range.place(&mut args.place),
            Self::Rm(args) => range.places(&mut args.places),
            Self::Mkdir(args) => range.places(&mut args.places),
            Self::Find(args) => {
                range.places(&mut args.places)?;
                range.optional(args.newer.as_mut())
            }
            Self::Du(args) => range.places(&mut args.places),
            Self::Df(args) => args
                .images
                .iter_mut()
                .try_for_each(|image| range.image(image)),
            Self::Mv(args) => range.places_with_paths(&mut args.places),
            Self::Ln(args) if args.symbolic => match args.places.last_mut() {
                Some(new) => range.place(new),
                None => Ok(()),
            },
            Self::Ln(args) => range.places_with_paths(&mut args.places),
            Self::Write(args) => range.place(&mut args.place),
            Self::Edit(args) => range.place(&mut args.place),
            Self::Touch(args) => {
                range.places(&mut args.places)?;
                range.optional(args.reference.as_mut())
            }
            Self::Truncate(args) => range.places(&mut args.places),
            Self::Chmod(args) => range.places(&mut args.places),
            Self::Chown(args) => range.places(&mut args.places),
            Self::Xattr(command) => range.places(command.places()),
            Self::Cp(args) => range.places_with_paths(&mut args.places),
            Self::Subvolume(command) => range.subvolume(command),
            Self::Diff(args) => {
                range.place(&mut args.old)?;
                range.place_with_path(&mut args.new)
            }
            Self::Receive(args) => args
                .place
                .as_mut()
                .map_or(Ok(()), |place| range.place(place)),
            Self::Send(args) => {
                range.place(&mut args.place)?;
                range.optional(args.parent.as_mut())?;
                range.places_with_paths(&mut args.clone_source)
            }
            Self::Mkdisk(_)
            | Self::Verity(_)
            | Self::Luks(_)
            | Self::MountOptions(_)
            | Self::MkfsOptions(_)
            | Self::Umount(_)
            | Self::Sync(_)
            | Self::Stats(_)
            | Self::Doctor(_)
            | Self::Undo(_)
            | Self::Generate(_)
            | Self::Complete(_)
            | Self::Help(_)
            | Self::Demo(_) => range.refuse(),
        }
    }
}

impl Command {
    /// Lets the command open images with further devices.
    fn with_devices(&self, devices: choice::Devices) -> failure::Result<()> {
        let makes = matches!(self, Self::Mkfs(_) | Self::Resize(_));
        if devices.are_given() && (makes || !self.opens_images()) {
            return Err(choice::Devices::refuse());
        }
        devices.choose();
        Ok(())
    }

    /// Lets the command verify the images that it reads.
    fn with_verity(&self, verity: choice::Verity) -> failure::Result<()> {
        let reads = matches!(
            self,
            Self::Ls(_)
                | Self::Cat(_)
                | Self::Stat(_)
                | Self::Tree(_)
                | Self::Find(_)
                | Self::Du(_)
                | Self::Cp(_)
                | Self::Export(_)
        );
        verity.choose(reads)
    }

    /// Lets the command open encrypted images.
    fn with_key(&self, encryption: choice::Encryption) -> failure::Result<()> {
        let opens = self.opens_images() && !matches!(self, Self::Resize(_));
        let makes = matches!(self, Self::Luks(luks::Command::Format(_)));
        encryption.choose(opens, makes)
    }

    /// Whether a script can have the command: it works on files of one image.
    fn is_for_scripts(&self) -> bool {
        matches!(
            self,
            Self::Ls(_)
                | Self::Cat(_)
                | Self::Stat(_)
                | Self::Tree(_)
                | Self::Find(_)
                | Self::Du(_)
                | Self::Cp(_)
                | Self::Untar(_)
                | Self::Rm(_)
                | Self::Mkdir(_)
                | Self::Mv(_)
                | Self::Ln(_)
                | Self::Write(_)
                | Self::Touch(_)
                | Self::Truncate(_)
                | Self::Chmod(_)
                | Self::Chown(_)
                | Self::Xattr(_)
        )
    }

    /// Whether the command works on images that exist.
    fn opens_images(&self) -> bool {
        !matches!(
            self,
            Self::Mkdisk(_)
                | Self::Verity(_)
                | Self::Luks(_)
                | Self::MountOptions(_)
                | Self::MkfsOptions(_)
                | Self::Umount(_)
                | Self::Sync(_)
                | Self::Stats(_)
                | Self::Doctor(_)
                | Self::Undo(_)
                | Self::Generate(_)
                | Self::Complete(_)
                | Self::Help(_)
                | Self::Demo(_)
        )
    }
}

/// Runs the command that the process was started as.
#[must_use]
fn main() -> ExitCode {
    let mut args: Vec<OsString> = std::env::args_os().collect();
    let helper = mount::helper_arguments(&args).or_else(|| umount::helper_arguments(&args));
    if let Some(rewritten) = helper {
        args = match rewritten {
            Ok(args) => args,
            Err(failure) => return ExitCode::from(output::report(&failure)),
        };
    }
    output::start_log();
    limits::become_errors();
    if let Some(code) = dropin::run_by_name(&args) {
        return output::finish(code);
    }
    let parsed = parse(find::with_long_options(args)).and_then(|cli| match &cli.command {
        // Ends with the help, which is an error for the parser.
        Command::Help(args) if !args.all => parse(args.as_option()),
        _ => Ok(cli),
    });
    let mut cli = match parsed {
        Ok(cli) => cli,
        Err(error) => {
            let printed = error.print();
            if error.use_stderr() {
                return ExitCode::from(failure::USAGE);
            }
            let flushed = printed.and_then(|()| std::io::stdout().flush());
            let _ = flushed.map_err(output::failed);
            return output::finish(0);
        }
    };
    let applied = limits::check_memory().and_then(|()| cli.command.apply(cli.range));
    let applied = applied.and_then(|()| cli.command.with_verity(cli.verity));
    let applied = applied.and_then(|()| cli.command.with_key(cli.encryption));
    if let Err(failure) = applied.and_then(|()| cli.command.with_devices(cli.devices)) {
        return ExitCode::from(output::report(&failure));
    }
    if let Command::Mount(args) = cli.command {
        return mount::start(args);
    }
    let result = run(cli.command);
    output::finish(match result {
        Ok(()) => 0,
        Err(failure) => output::report(&failure),
    })
}

fn parse(args: Vec<OsString>) -> Result<Cli, clap::Error> {
    let matches = help::complete(Cli::command()).try_get_matches_from(args)?;
    Cli::from_arg_matches(&matches)
}

/// The command of a line of a script.
fn of_script(
    parser: &mut clap::Command,
    words: Vec<OsString>,
) -> Result<apply::ScriptCommand, String> {
    let name = words.first().map(|word| word.display().to_string());
    let cli = parse_line(parser, words).map_err(|error| reason(&error))?;
    if !cli.command.is_for_scripts() {
        let name = name.unwrap_or_default();
        return Err(format!("{name} is not a command of a script"));
    }
    Ok(apply::ScriptCommand {
        reads_input: matches!(cli.command, Command::Write(_)),
        run: Box::new(|| run(cli.command)),
    })
}

/// The command of a line of a shell. Where a place is missing, it is the current directory.
fn of_shell(parser: &mut clap::Command, mut words: Vec<OsString>) -> Result<shell::Parsed, String> {
    let name = words.first().map(|word| word.display().to_string());
    let name = name.unwrap_or_default();
    if !shell::COMMANDS.contains(&name.as_str()) {
        return Err(format!("{name}: no such command here; help lists all"));
    }
    let parsed = match parse_line(parser, words.clone()) {
        Err(error)
            if error.kind() == clap::error::ErrorKind::MissingRequiredArgument
                && shell::lists_directory(&words) =>
        {
            words.push(":".into());
            parse_line(parser, words)
        }
        parsed => parsed,
    };
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) if !error.use_stderr() => return Ok(shell::Parsed::Help(error.to_string())),
        Err(error) => return Err(reason(&error)),
    };
    if cli.range.is_given() || cli.devices.are_given() {
        return Err("the part and the devices of the image are options of `sapwood shell`".into());
    }
    Ok(shell::Parsed::Command(apply::ScriptCommand {
        reads_input: matches!(cli.command, Command::Write(_)),
        run: Box::new(|| run(cli.command)),
    }))
}

/// Parses the words of a line, which do not have the name of the program.
fn parse_line(parser: &mut clap::Command, words: Vec<OsString>) -> Result<Cli, clap::Error> {
    let words = std::iter::once("sapwood".into()).chain(words).collect();
    let words = find::with_long_options(words).into_iter().skip(1);
    let matches = parser.try_get_matches_from_mut(words)?;
    Cli::from_arg_matches(&matches)
}

/// The first paragraph of an error, in one line.
fn reason(error: &clap::Error) -> String {
    let text = error.to_string();
    let lines = text.lines().take_while(|line| !line.is_empty());
    let lines: Vec<&str> = lines.map(str::trim).collect();
    lines.join(" ").trim_start_matches("error: ").to_owned()
}

/// Runs any command but `mount`, which becomes a daemon.
fn run(command: Command) -> failure::Result<()> {
    match command {
        Command::Mount(_) => Ok(()),
        Command::Mkfs(args) => mkfs::run(&args),
        Command::Mkdisk(args) => mkdisk::run(&args),
        Command::MountOptions(args) => output::line(args.page().trim_end()),
        Command::MkfsOptions(args) => output::line(args.page().trim_end()),
        Command::Umount(args) => umount::run(&args),
        Command::Sync(args) => sync::run(&args),
        Command::Info(args) => info::run(&args),
        Command::Ls(args) => list::ls(&args),
        Command::Cat(args) => content::cat(&args),
        Command::Stat(args) => stat::run(&args),
        Command::Tree(args) => list::tree(&args),
        Command::Find(args) => find::run(&args),
        Command::Du(args) => usage::du(&args),
        Command::Df(args) => usage::df(&args),
        Command::Cp(args) => copy::run(&args),
        Command::Untar(args) => untar::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Rm(args) => change::rm(&args),
        Command::Mkdir(args) => change::mkdir(&args),
        Command::Mv(args) => change::mv(&args),
        Command::Ln(args) => change::ln(&args),
        Command::Write(args) => content::write(&args),
        Command::Edit(args) => content::edit(&args),
        Command::Touch(args) => attributes::touch(&args),
        Command::Truncate(args) => attributes::truncate(&args),
        Command::Chmod(args) => attributes::chmod(&args),
        Command::Chown(args) => attributes::chown(&args),
        Command::Apply(args) => {
            let mut parser = Cli::command().no_binary_name(true);
            apply::run(&args, &mut |words| of_script(&mut parser, words))
        }
        Command::Shell(args) => {
            let parser = help::complete(Cli::command()).no_binary_name(true);
            shell::run(&args, parser, of_shell)
        }
        Command::Xattr(command) => xattr::run(&command),
        Command::Subvolume(command) => subvolume::run(&command),
        Command::Diff(args) => diff::run(&args),
        Command::Send(args) => send::run(&args),
        Command::Receive(args) => receive::run(&args),
        Command::Stats(args) => stats::run(&args),
        Command::Resize(args) => resize::run(args),
        Command::Trim(args) => trim::run(&args),
        Command::Scrub(args) => scrub::run(&args),
        Command::Balance(args) => balance::run(&args),
        Command::Device(command) => device::run(&command),
        Command::Quota(command) => quota::run(&command),
        Command::Verity(command) => verity::run(&command),
        Command::Luks(command) => luks::run(&command),
        Command::Check(args) => check::run(&args),
        Command::Undo(args) => check::undo(&args),
        Command::Rescue(args) => rescue::run(&args),
        Command::Dump(args) => dump::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Generate(args) => generate::run(&args, help::complete(Cli::command())),
        Command::Complete(args) => complete::run(&args),
        Command::Help(_) => output::line(help::all(Cli::command()).trim_end()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
