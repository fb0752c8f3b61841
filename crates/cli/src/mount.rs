//! `sapwood mount`, and being mount(8)'s helper.

mod broker;
mod notify;
mod remount;

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use crate::host::mount::daemon::{self, ReadyNotifier};
use crate::host::mount::{MountError, Session, signals};
use log::LevelFilter;
use sapwood::Options;
use sapwood::internal::image::OpenError;
use sapwood::internal::options::{Choice, table};

use super::failure::{FAILED, Failure, MOUNT, Result, USAGE};
use super::output::SystemLog;
use super::{choice, output};
use notify::Notifier;

// Names of mount options do not fit next to names of the command's options.
#[derive(Debug, clap::Args)]
#[command(next_line_help = true)]
pub(super) struct Args {
    /// Image file or block device; IMAGE#N is its partition N, nbd://HOST/EXPORT an export of an
    /// NBD server
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// Directory to mount it on; with `-o remount` the image can be left out
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
    #[arg(short = 'o', long = "options", value_name = "LIST", help = table::summary())]
    options: Vec<String>,
    /// Stay in the foreground
    #[arg(short, long)]
    foreground: bool,
    /// Do not warn of calls that do not wait
    #[arg(short, long)]
    quiet: bool,
    /// Log more: steps, and with -vv details; same as `-o log=info` and `-o log=debug`
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Be the process that mounts and unmounts for a daemon; the sockets are the standard streams
    #[arg(long, hide = true)]
    broker: bool,
}

impl Args {
    /// The image.
    pub(super) fn image(&mut self) -> &mut PathBuf {
        &mut self.image
    }
}

/// If the process was started as mount(8)'s helper (`mount.sapwood`, `mount.fuse.sapwood`,
/// `mount.fuseblk.sapwood`), translates the arguments of mount(8) to arguments of `sapwood mount`:
/// `SOURCE DIR [-sfnv] [-N NS] [-o LIST] [-t TYPE]`.
pub(super) fn helper_arguments(args: &[OsString]) -> Option<Result<Vec<OsString>>> {
    let called = Path::new(args.first()?).file_name()?;
    let ours = [
        "mount.sapwood",
        "mount.fuse.sapwood",
        "mount.fuseblk.sapwood",
    ];
    if !ours.iter().any(|name| called == OsStr::new(name)) {
        return None;
    }
    Some(translate(args.get(1..).unwrap_or_default()))
}

fn translate(args: &[OsString]) -> Result<Vec<OsString>> {
    let mut out: Vec<OsString> = vec!["sapwood".into(), "mount".into(), "--quiet".into()];
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("-o" | "-t" | "-N") => {
                let value = args
                    .next()
                    .ok_or_else(|| Failure::new(USAGE, "an option lacks its value"))?;
                if arg == "-o" {
                    out.extend(["-o".into(), value.clone()]);
                }
            }
            // Sloppy, fake, no mtab, verbose: they do not change the mount.
            Some(flags) if flags.len() > 1 && flags.starts_with('-') => {
                if flags.contains('f') {
                    return Ok(vec!["sapwood".into(), "--version".into()]);
                }
            }
            _ => out.push(arg.clone()),
        }
    }
    Ok(out)
}

pub(super) fn start(args: Args) -> ExitCode {
    match mounted(args) {
        Ok(code) => code,
        Err(failure) => ExitCode::from(output::report(&failure)),
    }
}

fn mounted(args: Args) -> Result<ExitCode> {
    let real = |path: &Path| {
        path.canonicalize().map_err(|error| {
            let failure = Failure::local(path, &error).with_code(MOUNT);
            match error.kind() {
                ErrorKind::NotFound => failure.advise("`mkdir` makes a directory to mount on"),
                _ => failure,
            }
        })
    };
    if remount::is_wanted(&args.options) {
        let place = match &args.dir {
            Some(dir) => real(dir)?,
            // A directory, or an image with the rest of an operand.
            None => real(&args.image).or_else(|failure| {
                sapwood::block::Operand::canonical(&args.image).map_err(|_| failure)
            })?,
        };
        remount::run(&place, &args.options)?;
        return Ok(ExitCode::SUCCESS);
    }
    let dir = args
        .dir
        .as_ref()
        .ok_or_else(|| Failure::new(USAGE, "a directory to mount on is missing"))?;
    let options = parse(&args.options)?;
    if args.broker {
        return broker::serve(&args.image, dir, &options).map(|()| ExitCode::SUCCESS);
    }
    let located = sapwood::internal::image::located(&args.image, &options);
    let (image, options) = located.map_err(|error| match error {
        OpenError::Operand(error) => Failure::new(USAGE, error),
        error => Failure::new(MOUNT, error),
    })?;
    let dir = real(dir)?;
    if let Some(done) = remount::again(&image, &dir, &options, &args.options) {
        return done.map(|()| ExitCode::SUCCESS);
    }
    // Not before: the image may be named by such a descriptor (`/dev/fd/9`).
    daemon::close_inherited().map_err(|error| Failure::on("mount", error).with_code(MOUNT))?;
    let foreground = args.foreground;
    start_log(&args, &options);
    let work = move |ready: ReadyNotifier| match serve(&image, &dir, &options, &args, ready) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => ExitCode::from(output::report(&failure.with_code(MOUNT))),
    };
    daemon::daemonize(foreground, work)
        .map_err(|error| Failure::on("mount", error).with_code(MOUNT))
}

/// Gives the log of the daemon its level, and in the foreground its bound.
fn start_log(args: &Args, options: &Options) {
    let asked = match args.verbose {
        0 => LevelFilter::Warn,
        1 => LevelFilter::Info,
        _ => LevelFilter::Debug,
    };
    log::set_max_level(options.mounting().log.unwrap_or(asked));
    if args.foreground {
        output::limit_log();
    }
}

fn parse(lists: &[String]) -> Result<Options> {
    let mut options = choice::opening(false);
    for list in lists {
        options.set_list(list)?;
    }
    Ok(options)
}

/// Mounts, reports, and serves until the image is unmounted; then completes it.
fn serve(
    image: &Path,
    dir: &Path,
    options: &Options,
    args: &Args,
    ready: ReadyNotifier,
) -> Result<()> {
    let mounting = options.mounting();
    // First, so that no mount is ever without it.
    let broker = (mounting.auto_unmount || mounting.sandbox != Choice::Off)
        .then(|| broker::start(image, dir, &args.options))
        .transpose()
        .map_err(|error| Failure::on("the process that mounts", error))?;
    let system = SystemLog::new(image, dir, broker.clone());
    let manager = Arc::new(if args.foreground {
        Notifier::from_environment()
    } else {
        Notifier::default()
    });
    let mount = match &broker {
        Some(broker) => crate::host::mount::mount_confined(image, dir, options, broker),
        None => sapwood::mount(image, dir, options),
    };
    let mount = mount.map_err(failure)?;
    if mount.is_write_protected() {
        output::message(format_args!(
            "{}: write-protected, mounted read-only",
            image.display()
        ));
    }
    let stop = Stop {
        session: Arc::clone(mount.session()),
        manager: Arc::clone(&manager),
    };
    let watch = signals::on_termination(move |_| stop.run())
        .map_err(|error| Failure::on("signals", error))?;
    if !args.quiet && !mount.is_read_only() && !mount.session().waits() {
        tell(dir, mount.session().receives_sync());
    }
    if !args.foreground {
        system.begin();
    }
    ready.ready();
    manager.ready();
    log::info!(
        "{}",
        if mount.is_read_only() {
            "mounted read-only"
        } else {
            "mounted"
        }
    );
    let ended = mount.wait_with(|| drop(watch)).map_err(failure);
    if ended.is_ok() {
        log::info!("unmounted: the image is complete");
    }
    log::logger().flush();
    ended
}

/// The handler of a signal that ends the daemon.
struct Stop {
    session: Arc<Session>,
    manager: Arc<Notifier>,
}

impl Stop {
    /// Unmounts; [`Session::unmount`] detaches a mount that is in use. If that fails, the daemon
    /// makes all earlier writes durable and continues.
    fn run(&self) {
        self.manager.stopping();
        let Err(error) = self.session.unmount() else {
            return;
        };
        let synced = match self.session.sync() {
            Ok(()) => "everything written until now is durable".to_owned(),
            Err(error) => format!("not everything was written: {error}"),
        };
        output::message(format_args!("{error}: the mount stays; {synced}"));
    }
}

fn failure(error: sapwood::Error) -> Failure {
    match error.downcast() {
        Ok(MountError::Open(error)) => error.into(),
        Ok(MountError::Mount(error)) => Failure::new(MOUNT, error),
        Ok(error) => Failure::new(FAILED, error),
        Err(error) => error.into(),
    }
}

/// Prints the calls that this mount does not serve, and their replacements.
fn tell(dir: &Path, receives_sync: bool) {
    let dir = dir.display();
    if receives_sync {
        output::message(format_args!(
            "{dir}: umount(8) does not wait for the image: use `sapwood umount`"
        ))
    } else {
        output::message(format_args!(
            "{dir}: sync(1) and umount(8) do not wait for the image: use `sapwood sync` and \
         `sapwood umount`"
        ))
    }
}

#[derive(Debug, clap::Args)]
pub(super) struct OptionsArgs {
    /// Print the page docs/mount-options.md
    #[arg(long)]
    markdown: bool,
}

impl OptionsArgs {
    pub(super) fn page(&self) -> String {
        if self.markdown {
            sapwood::internal::options::table::as_markdown()
        } else {
            sapwood::internal::options::table::as_text()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn helper(args: &[&str]) -> Option<Vec<String>> {
        let args: Vec<OsString> = args.iter().map(OsString::from).collect();
        let out = helper_arguments(&args)?.unwrap();
        Some(
            out.into_iter()
                .map(|arg| arg.into_string().unwrap())
                .collect(),
        )
    }

    #[test]
    fn several_lists_are_one() {
        let lists = [
            "ro,subvol=a/b,commit=5",
            "compress=zstd:7,x-systemd.automount,nofail",
        ];
        let options = parse(&lists.map(str::to_owned)).unwrap();
        let btrfs = options.for_btrfs().unwrap();
        assert!(btrfs.read_only && options.mounting().read_only);
        assert_eq!(btrfs.compress, "zstd:7".parse().ok());
        assert!(options.for_ext4().is_err());
        assert!(parse(&["ro".to_owned(), "io_uring=maybe".to_owned()]).is_err());
    }

    #[test]
    fn mount_helper_arguments_are_understood() {
        assert_eq!(helper(&["/usr/bin/sapwood", "mount"]), None);
        let args = helper(&[
            "/sbin/mount.fuse.sapwood",
            "a.img",
            "/mnt",
            "-s",
            "-v",
            "-o",
            "rw,subvol=x",
            "-t",
            "y",
        ]);
        assert_eq!(
            args.unwrap(),
            [
                "sapwood",
                "mount",
                "--quiet",
                "a.img",
                "/mnt",
                "-o",
                "rw,subvol=x"
            ]
        );
    }
}
