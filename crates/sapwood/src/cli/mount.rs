//! `sapwood mount`, and being mount(8)'s helper.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use sapwood_fuse::daemon::{self, ReadyNotifier};
use sapwood_fuse::signals;

use super::failure::{Failure, MOUNT, Result, USAGE};
use super::mount_options::{self, Parsed};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Image file or block device
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// Directory to mount it on
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Options, separated by commas: ro, norecovery, commit=SECONDS, discard, noatime,
    /// cache_size=BYTES, dirty_size=BYTES, threads=N, allow_other, allow_root, nosuid, nodev, noexec,
    /// sync, [no_]default_permissions, writeback_cache; of btrfs: subvol=PATH, subvolid=ID,
    /// compress[=zstd[:LEVEL]|zlib|lzo], compress-force, nodatacow, nodatasum, max_inline=BYTES,
    /// nologreplay; of ext4: data=ordered|writeback|journal, noload
    #[arg(short = 'o', long = "options", value_name = "LIST")]
    options: Vec<String>,
    /// Stay in the foreground
    #[arg(short, long)]
    foreground: bool,
}

/// If the process was started as `mount.sapwood` or `mount.fuse.sapwood`, the arguments that
/// mount(8) gave, as those of `sapwood mount`: `SOURCE DIR [-sfnv] [-N NS] [-o LIST] [-t TYPE]`.
pub(super) fn helper_arguments(args: &[OsString]) -> Option<Result<Vec<OsString>>> {
    let called = Path::new(args.first()?).file_name()?;
    if called != OsStr::new("mount.sapwood") && called != OsStr::new("mount.fuse.sapwood") {
        return None;
    }
    Some(translate(args.get(1..).unwrap_or_default()))
}

fn translate(args: &[OsString]) -> Result<Vec<OsString>> {
    let mut out: Vec<OsString> = vec!["sapwood".into(), "mount".into()];
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
            // Sloppy, fake, no mtab, verbose: nothing that changes what a mount is.
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

pub(super) fn run(args: Args) -> ExitCode {
    match start(args) {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}

fn start(args: Args) -> Result<ExitCode> {
    let image = args
        .image
        .canonicalize()
        .map_err(|error| Failure::local(&args.image, error).with_code(MOUNT))?;
    let dir = args
        .dir
        .canonicalize()
        .map_err(|error| Failure::local(&args.dir, error).with_code(MOUNT))?;
    let parsed = mount_options::parse(&args.options, &image.to_string_lossy())?;
    let work = move |ready: ReadyNotifier| match serve(&image, &dir, parsed, ready) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.with_code(MOUNT).report(),
    };
    daemon::daemonize(args.foreground, work)
        .map_err(|error| Failure::on("mount", error).with_code(MOUNT))
}

/// Mounts, reports, and serves until somebody unmounts; then makes the image complete.
fn serve(image: &Path, dir: &Path, parsed: Parsed, ready: ReadyNotifier) -> Result<()> {
    let mut fuse = parsed.fuse;
    let fs = sapwood::image::open(image, &parsed.engine)?;
    if fs.read_only() {
        fuse.read_only = true;
    }
    let mounted = sapwood_fuse::mount(fs.shared(), dir, &fuse);
    let session = match mounted {
        Ok(session) => Arc::new(session),
        Err(error) => {
            // Nothing was changed yet; what failed is the mount.
            let _ = fs.unmount();
            return Err(Failure::new(MOUNT, error));
        }
    };
    let ended = Arc::clone(&session);
    let watch = signals::on_termination(move |_| {
        if let Err(error) = ended.unmount() {
            log::warn!("cannot unmount: {error}");
        }
    })
    .map_err(|error| Failure::on("signals", error))?;
    ready.ready();
    let served = session.wait().map_err(|error| Failure::local(dir, error));
    drop(watch);
    fs.unmount().map_err(|error| Failure::local(image, error))?;
    served
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
            ["sapwood", "mount", "a.img", "/mnt", "-o", "rw,subvol=x"]
        );
    }
}
