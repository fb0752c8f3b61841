//! No error is lost: of standard output, of writing an image, of a device that cannot be written.

use std::fs::{self, File};
use std::io;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use libtest_mimic::Trial;
use rustix::fs::StatVfsMountFlags;
use sapwood::Kind;
use sapwood_testing::FileContent;
use sapwood_testing::oracle::Loop;
use sapwood_tests::image::{Mkfs, TempImage};
use sapwood_tests::machine::PORTABLE;
use sapwood_tests::mount::sapwood;
use sapwood_tests::process::Said;
use sapwood_tests::scratch::SmallHost;
use sapwood_tests::{Need, Outcome, process, scratch, trial};
use tempfile::TempDir;

const KINDS: [Kind; 2] = [Kind::Btrfs, Kind::Ext4];
const FAILED: i32 = 1;
const USAGE: i32 = 2;
const IMAGE: i32 = 3;

pub(crate) fn trials() -> Vec<Trial> {
    let loops = [Need::Fuse, Need::Program("losetup")];
    vec![
        trial("a_full_standard_output_fails_every_command", &[], full),
        trial("a_closed_pipe_ends_every_command_quietly", &[], closed),
        trial("a_full_standard_error_changes_nothing", &[], mute),
        trial("btrfs::lost_writes_are_reported", &[Need::Fuse], || {
            lost_writes(Kind::Btrfs, "space_wait=1")
        }),
        trial("ext4::lost_writes_are_reported", &[Need::Fuse], || {
            lost_writes(Kind::Ext4, "space_wait=1,fuseblk=off")
        }),
        trial("a_write_protected_device", &loops, write_protected),
    ]
}

/// An image by `sapwood mkfs` with a few files.
fn filled(kind: Kind) -> Result<TempImage, String> {
    let image = TempImage::new(&Mkfs {
        kind,
        ..Mkfs::ours("").sized(256 << 20)
    })?;
    let files = scratch::directory();
    let content: Vec<u8> = (0..3 << 20).map(|nth: u32| (nth >> 8) as u8).collect();
    fs::write(files.path().join("big"), content).map_err(|error| error.to_string())?;
    fs::create_dir(files.path().join("dir")).map_err(|error| error.to_string())?;
    let mut copy = Command::new(sapwood());
    copy.args(["cp", "--quiet", "-r"])
        .args([files.path().join("big"), files.path().join("dir")])
        .arg(inside(&image, ""));
    process::succeed(&mut copy, process::ORDINARY)?;
    if kind == Kind::Btrfs {
        let place = inside(&image, "subvolume");
        process::run(
            sapwood().to_str().unwrap(),
            &["subvolume", "create", &place],
        )?;
    }
    Ok(image)
}

fn inside(image: &TempImage, path: &str) -> String {
    format!("{}:{path}", image.path().display())
}

/// Every command that prints, without those that need a mount.
fn printing(kind: Kind, image: &TempImage, new: &Path) -> Vec<Vec<String>> {
    let (whole, big) = (inside(image, ""), inside(image, "big"));
    let image = image.path().to_str().unwrap();
    let new = new.to_str().unwrap();
    let mut all = vec![
        vec!["--help"],
        vec!["--version"],
        vec!["mount", "--help"],
        vec!["mkfs", "--force", "-t", kind.name(), "--size=128M", new],
        vec![
            "mkfs",
            "--force",
            "-t",
            kind.name(),
            "--size=128M",
            "--json",
            new,
        ],
        vec!["info", image],
        vec!["info", "--json", image],
        vec!["ls", &whole],
        vec!["ls", "-l", &whole],
        vec!["ls", "--json", &whole],
        vec!["cat", &big],
        vec!["cat", "-"],
        vec!["cp", "--quiet", &big, "-"],
        vec!["cp", "--quiet", &big, "/dev/stdout"],
        vec!["cp", "--quiet", "-", "-"],
        vec!["stat", &big],
        vec!["stat", "--json", &big],
        vec!["tree", &whole],
        vec!["tree", "--json", &whole],
        vec!["check", image],
        vec!["check", "--json", image],
        vec!["dump", image],
    ];
    if kind == Kind::Btrfs {
        all.extend([
            vec!["subvolume", "list", image],
            vec!["subvolume", "list", "--json", image],
            vec!["subvolume", "get-default", image],
        ]);
    }
    all.iter()
        .map(|words| words.iter().map(|word| (*word).to_owned()).collect())
        .collect()
}

/// Runs a command whose standard output is `stdout`. Returns its standard error.
fn run(args: &[String], stdout: impl Into<Stdio>) -> Result<Said, String> {
    let failed = |error: io::Error| format!("{args:?}: {error}");
    let stderr = tempfile::NamedTempFile::new().map_err(failed)?;
    let input = File::open("/proc/self/exe").map_err(failed)?;
    let status = Command::new(sapwood())
        .args(args)
        .stdin(input)
        .stdout(stdout)
        .stderr(stderr.reopen().map_err(failed)?)
        .status()
        .map_err(failed)?;
    Ok(Said {
        status,
        stdout: String::new(),
        stderr: fs::read_to_string(stderr.path()).map_err(failed)?,
    })
}

fn full() -> Outcome {
    let dir = scratch::directory();
    for kind in KINDS {
        let image = filled(kind)?;
        for args in printing(kind, &image, &dir.path().join("new")) {
            let full = File::options().write(true).open("/dev/full")?;
            let said = run(&args, full)?;
            let named = said.stderr.contains("standard output: No space left")
                || said.stderr.contains("/dev/stdout: No space left");
            if said.status.code() != Some(FAILED) || !named {
                return Err(format!("{args:?}: {}: {}", said.status, said.stderr).into());
            }
            // No message is printed twice.
            if said.stderr.lines().count() != 1 {
                return Err(format!("{args:?}: {}", said.stderr).into());
            }
            // A descriptor that cannot be written to is no success either. `/dev/stdout` opens
            // the file anew, and clap prints its own texts.
            let other = ["--help", "--version", "/dev/stdout"];
            let other = args.iter().any(|arg| other.contains(&&**arg));
            if !other && run(&args, File::open("/dev/null")?)?.status.success() {
                return Err(format!("{args:?}: succeeds where nothing can be written").into());
            }
        }
        image.check_by_us()?;
    }
    Ok(())
}

fn closed() -> Outcome {
    let dir = scratch::directory();
    for kind in KINDS {
        let image = filled(kind)?;
        let mut all = printing(kind, &image, &dir.path().join("new"));
        // These would fail for another reason too.
        let gone = inside(&image, "gone");
        all.push(vec!["cat".into(), inside(&image, "big"), gone.clone()]);
        all.push(vec![
            "ls".into(),
            inside(&image, "dir"),
            inside(&image, "big"),
            gone,
        ]);
        for args in all {
            let (reader, writer) = io::pipe()?;
            drop(reader);
            let said = run(&args, writer)?;
            let quiet = said.stderr.is_empty() || args.last().unwrap().ends_with("gone");
            if said.status.signal() != Some(libc::SIGPIPE) || !quiet {
                return Err(format!("{args:?}: {}: {}", said.status, said.stderr).into());
            }
        }
        image.check_by_us()?;
    }
    Ok(())
}

fn mute() -> Outcome {
    let image = filled(Kind::Ext4)?;
    let gone = inside(&image, "gone");
    let path = image.path().to_str().unwrap();
    let bad_mount = if PORTABLE { FAILED } else { USAGE };
    for (args, code) in [
        (&["cat", &gone][..], FAILED),
        (&["ls", "no-such-image"], IMAGE),
        (&["mount", "-o", "nosuchoption", path, "/"], bad_mount),
        (&["no-such-command"], USAGE),
        (&["ls", path], 0),
    ] {
        for stderr in ["/dev/full", "closed"] {
            let stderr = match stderr {
                "closed" => Stdio::from(io::pipe()?.1),
                path => Stdio::from(File::options().write(true).open(path)?),
            };
            let mut command = Command::new(sapwood());
            command.args(args).stdout(Stdio::null()).stderr(stderr);
            let status = command.status()?;
            if status.code() != Some(code) {
                return Err(format!("{args:?}: {status}").into());
            }
        }
    }
    Ok(())
}

/// A directory to mount on, unmounted when this value is dropped.
struct Point(TempDir);

impl Point {
    fn new() -> Self {
        Self(scratch::directory())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Point {
    fn drop(&mut self) {
        if sapwood_fuse::mounted_on(self.path()).is_some() {
            let _ = sapwood_fuse::unmount(self.path(), true);
        }
    }
}

fn ours(args: &[&str], paths: &[&Path]) -> Result<Said, String> {
    let mut command = Command::new(sapwood());
    command.args(args).args(paths);
    process::finish(&mut command, process::ORDINARY)
}

/// The bytes that end the log.
const END: &[u8] = b"end";

/// The log, `stats` and `umount` report data that a daemon in the background cannot write to its
/// image.
fn lost_writes(kind: Kind, options: &str) -> Outcome {
    let host = SmallHost::new(40)?;
    let image = host.path().join("image");
    File::create(&image)?.set_len(512 << 20)?;
    let made = ours(&["mkfs", "--quiet", "-t", kind.name()], &[&image])?;
    if !made.status.success() {
        return Err(made.all().into());
    }
    let dir = scratch::directory();
    let socket: PathBuf = dir.path().join("log");
    let log = UnixDatagram::bind(&socket)?;
    // The queue of a socket is short.
    let reader = std::thread::spawn(move || {
        let (mut all, mut datagram) = (String::new(), [0; 2048]);
        while let Ok(len) = log.recv(&mut datagram) {
            if &datagram[..len] == END {
                break;
            }
            all.push_str(&String::from_utf8_lossy(&datagram[..len]));
            all.push('\n');
        }
        all
    });
    let point = Point::new();
    let mut mount = Command::new(sapwood());
    mount.args(["mount", "--quiet", "-o", options]);
    mount
        .args([&image, point.path()])
        .env("SAPWOOD_SYSLOG", &socket);
    process::succeed(&mut mount, process::ORDINARY)?;
    fs::write(point.path().join("lost"), vec![7; 64 << 20]).or_else(|error| {
        match error.raw_os_error() {
            Some(libc::ENOSPC | libc::EIO | libc::EROFS) => Ok(()),
            _ => Err(error),
        }
    })?;
    // The caller that gets the error is not the one that unmounts.
    let _ = File::open(point.path())?.sync_all();
    let _ = ours(&["sync"], &[point.path()])?;
    let stats = ours(&["stats"], &[point.path()])?;
    let unmounted = ours(&["umount"], &[point.path()])?;
    if unmounted.status.code() != Some(FAILED)
        || !unmounted.stderr.contains("not everything was written")
    {
        return Err(format!("umount: {}: {}", unmounted.status, unmounted.stderr).into());
    }
    let hint = "first error: ";
    if !stats.stdout.contains(hint) {
        return Err(format!("stats: {}", stats.all()).into());
    }
    UnixDatagram::unbound()?.send_to(END, &socket)?;
    let logged = reader
        .join()
        .map_err(|_| "the reader of the log panicked")?;
    let about = format!("{} on {}: ", image.display(), point.path().display());
    let first = stats
        .stdout
        .lines()
        .find_map(|line| line.strip_prefix(hint));
    if !logged.contains(&about) || !logged.contains(first.unwrap_or("no first error")) {
        return Err(format!("the log: {logged}\nthe first error: {first:?}").into());
    }
    Ok(())
}

/// A block device that is write-protected is mounted read-only and changed by no command.
fn write_protected() -> Outcome {
    for kind in KINDS {
        let image = filled(kind)?;
        let before = FileContent::of(image.path())?;
        let device = Loop::new(image.path(), &["--read-only"])?;
        let device = device.path();
        let point = Point::new();
        let mounted = ours(&["mount"], &[device, point.path()])?;
        if !mounted.status.success() || !mounted.stderr.contains("mounted read-only") {
            return Err(format!("{kind}: {}: {}", mounted.status, mounted.stderr).into());
        }
        let flags = rustix::fs::statvfs(point.path())?.f_flag;
        let written = File::create(point.path().join("new"));
        let read = fs::read(point.path().join("big"))?.len();
        let unmounted = ours(&["umount"], &[point.path()])?;
        let refused = written.err().and_then(|error| error.raw_os_error());
        if !flags.contains(StatVfsMountFlags::RDONLY) || refused != Some(libc::EROFS) {
            return Err(format!("{kind}: {flags:?}, {refused:?}").into());
        }
        if !unmounted.status.success() || read != 3 << 20 {
            return Err(format!("{kind}: {read} bytes, {}", unmounted.all()).into());
        }
        let place = PathBuf::from(format!("{}:made", device.display()));
        for (args, path) in [
            (&["mkdir"][..], &*place),
            (&["mkfs", "--force", "-t", kind.name()], device),
        ] {
            let said = ours(args, &[path])?;
            if said.status.success() || !said.stderr.to_lowercase().contains("read-only") {
                return Err(format!("{kind}: {args:?}: {}", said.all()).into());
            }
        }
        if FileContent::of(image.path())? != before {
            return Err(format!("{kind}: the image was changed").into());
        }
    }
    Ok(())
}
