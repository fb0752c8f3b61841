//! Every command refuses an image in use and names its user; QEMU's programs and the commands
//! exclude each other.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use libtest_mimic::Trial;
use sapwood_block::{NbdDevice, NbdOptions};
use sapwood_testing::FileContent;
use sapwood_tests::machine::HOLDERS;
use sapwood_tests::mount::{DETACH_COPIES, Mounted, SapwoodMount, sapwood};
use sapwood_tests::{Need, Outcome, process, scratch, trial};
use tempfile::TempDir;

const KINDS: [&str; 2] = ["ext4", "btrfs"];
const FORMATS: [&str; 2] = ["raw", "qcow2"];

/// Exit code of a command whose image cannot be opened.
const IMAGE: i32 = 3;

pub(crate) fn trials() -> Vec<Trial> {
    let qemu = ["qemu-img", "qemu-io", "qemu-nbd"].map(Need::Program);
    let locks = [&[Need::Linux("QEMU's locks")], &qemu[..]].concat();
    let mounted: Vec<Need> = qemu.into_iter().chain([Need::Fuse]).collect();
    let namespace = [Need::Fuse, Need::Program("unshare")];
    let programs = ["setpriv", "flock"].map(Need::Program);
    let user = [&[HOLDERS, Need::Root], &programs[..]].concat();
    vec![
        trial("no_command_opens_what_qemu_serves", &locks, served),
        trial("qemu_opens_nothing_that_is_mounted", &mounted, mounted_here),
        trial("a_mount_is_named", &[Need::Fuse], mount_named),
        trial(
            "a_mount_in_another_namespace_is_named",
            &namespace,
            elsewhere,
        ),
        trial("what_a_user_may_not_examine_is_not_named", &user, hidden),
    ]
}

/// A directory with an image `disk`.
struct Disk(TempDir);

impl Disk {
    fn new(format: &str, kind: &str) -> Result<Self, String> {
        let disk = Self(scratch::directory());
        let path = disk.text();
        match format {
            "raw" => run(&["mkfs", "-q", "-t", kind, "--size", "128M", &path])?,
            _ => {
                qemu("qemu-img", &["create", "-q", "-f", format, &path, "128M"])?;
                run(&["mkfs", "-q", "-t", kind, &path])?
            }
        };
        Ok(disk)
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("disk")
    }

    fn text(&self) -> String {
        self.path().to_str().unwrap().to_owned()
    }
}

fn run(args: &[&str]) -> Result<String, String> {
    let mut command = Command::new(sapwood());
    process::succeed(command.args(args), process::ORDINARY)
}

/// The command fails because its image cannot be opened, for the reason `why`.
fn refused(command: &mut Command, why: &str) -> Result<(), String> {
    let said = process::finish(command, process::ORDINARY)?;
    let as_wanted = said.status.code() == Some(IMAGE) && said.stderr.contains(why);
    if as_wanted {
        return Ok(());
    }
    Err(format!("{command:?}: expected {why:?}: {}", said.all()))
}

/// Runs a program of QEMU. The exit status of `qemu-io` does not show whether a command in it
/// failed.
fn qemu(program: &str, args: &[&str]) -> Result<(), String> {
    let said = process::run(program, args)?;
    if said.contains("failed") {
        return Err(said);
    }
    Ok(())
}

/// A program that uses an image until this ends.
struct Program(Child);

impl Program {
    /// `qemu-nbd`, once it answers, which is after it has opened the image.
    fn serving(disk: &Disk, format: &str, args: &[&str]) -> Result<Self, String> {
        let socket = disk.0.path().join("socket");
        let _ = fs::remove_file(&socket);
        let mut command = Command::new("qemu-nbd");
        command
            .args(["-t", "-f", format, "-k"])
            .arg(&socket)
            .args(args);
        let server = command.arg(disk.path()).stdin(Stdio::null()).spawn();
        let mut server = Self(server.map_err(|error| error.to_string())?);
        let uri = format!("nbd+unix:///?socket={}", socket.display());
        let options = NbdOptions {
            read_only: true,
            ..NbdOptions::default()
        };
        while NbdDevice::open(&uri, options.clone()).is_err() {
            if let Ok(Some(status)) = server.0.try_wait() {
                return Err(format!("qemu-nbd: {status}"));
            }
            std::thread::yield_now();
        }
        Ok(server)
    }

    /// A program that prints `ready` once it uses the image, and ends when its input does.
    fn ready(command: &mut Command) -> Result<Self, String> {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut program = Self(child.map_err(|error| error.to_string())?);
        let output = program.0.stdout.take().ok_or("no output")?;
        let line = BufReader::new(output).lines().next();
        match line {
            Some(Ok(line)) if line == "ready" => Ok(program),
            other => Err(format!("{command:?}: {other:?}")),
        }
    }

    fn named(&self, name: &str) -> String {
        format!("{name} (process {})", self.0.id())
    }

    /// Ends its input and waits for it.
    fn end(mut self) -> Result<(), String> {
        drop(self.0.stdin.take());
        let status = process::wait(&mut self.0, process::ORDINARY);
        status.map(drop).ok_or("the program did not end".to_owned())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn served() -> Outcome {
    for (format, kind) in FORMATS.into_iter().zip(KINDS) {
        let disk = Disk::new(format, kind)?;
        let image = disk.text();
        let (file, inside) = (disk.0.path().join("file"), format!("{image}:/file"));
        fs::write(&file, "content")?;
        let file = file.to_str().unwrap();
        let writers: [&[&str]; 6] = [
            &["cp", file, &inside],
            &["mkdir", &inside],
            &["rm", &inside],
            &["resize", &image, "120M"],
            &["trim", &image],
            &["mkfs", "-f", "-t", kind, &image],
        ];
        let root = format!("{image}:/");
        let readers: [&[&str]; 2] = [&["ls", &root], &["check", &image]];
        let before = FileContent::of(&image)?;
        for (args, reads) in [(&[][..], false), (&["-r"][..], true)] {
            let server = Program::serving(&disk, format, args)?;
            let why = format!("{image}: in use by {}", server.named("qemu-nbd"));
            for args in writers {
                refused(Command::new(sapwood()).args(args), &why)?;
            }
            for args in readers {
                if reads {
                    run(args)?;
                } else {
                    refused(Command::new(sapwood()).args(args), &why)?;
                }
            }
        }
        if FileContent::of(&image)? != before {
            return Err(format!("{format}: a refused command wrote").into());
        }
        run(&["cp", "-q", file, &inside])?;
    }
    Ok(())
}

fn mounted_here() -> Outcome {
    for (format, kind) in FORMATS.into_iter().zip(KINDS) {
        let disk = Disk::new(format, kind)?;
        let image = disk.text();
        let write = ["-f", format, "-c", "write 0 64k", &image];
        let read = ["-r", "-f", format, "-c", "read 0 64k", &image];
        let resize = ["resize", "-q", "-f", format, &image, "+1M"];
        let copy = format!("{image}.copy");
        let convert = ["convert", "-f", format, "-O", "raw", &image, &copy];
        let uses: [(&str, &[&str], bool); 4] = [
            ("qemu-io", &write, true),
            ("qemu-img", &resize, true),
            ("qemu-io", &read, false),
            ("qemu-img", &convert, false),
        ];
        for options in ["rw", "ro"] {
            let mount = SapwoodMount::new(&disk.path(), options)?;
            for (program, args, writes) in uses {
                let done = qemu(program, args);
                match (writes || options == "rw", done) {
                    (true, Err(why)) if why.contains("Is another process using") => {}
                    (false, Ok(())) => {}
                    (_, done) => return Err(format!("{options}: {args:?}: {done:?}").into()),
                }
            }
            Box::new(mount).unmount()?;
        }
        // The confined daemon has given up its locks.
        run(&["check", &image])?;
        for (program, args, _) in uses {
            qemu(program, args)?;
        }
    }
    Ok(())
}

fn mount_named() -> Outcome {
    for options in ["rw", "fuseblk=off"] {
        let disk = Disk::new("raw", "ext4")?;
        let mount = SapwoodMount::new(&disk.path(), options)?;
        let (point, daemon) = (
            mount.path().display().to_string(),
            mount.daemon().ok_or("none")?,
        );
        let why = format!("in use by the mount on {point} (sapwood, process {daemon})");
        let advice = format!("`sapwood umount {point}` releases it");
        for args in [
            ["check", &disk.text()],
            ["ls", &format!("{}:/", disk.text())],
        ] {
            for said in [&why, &advice] {
                refused(Command::new(sapwood()).args(args), said)?;
            }
        }
        Box::new(mount).unmount()?;
        run(&["check", &disk.text()])?;
    }
    Ok(())
}

fn elsewhere() -> Outcome {
    let disk = Disk::new("raw", "btrfs")?;
    let point = scratch::directory();
    let mounts = "\"$1\" mount \"$2\" \"$3\" && echo ready && read end; exec \"$1\" umount \"$3\"";
    let script = format!("{DETACH_COPIES} {mounts}");
    let mut command = Command::new("unshare");
    command.args([
        "--mount",
        "--propagation=private",
        "sh",
        "-c",
        &script,
        "sh",
    ]);
    command.arg(sapwood()).arg(disk.path()).arg(point.path());
    let other = Program::ready(&mut command)?;
    let point = point.path().display();
    let why = format!("in use by the mount on {point} (sapwood, process ");
    let list = format!("{}:/", disk.text());
    for said in [
        &*why,
        "in the mount namespace of ",
        "`nsenter --mount --target ",
    ] {
        refused(Command::new(sapwood()).args(["ls", &list]), said)?;
    }
    other.end()?;
    run(&["ls", &list])?;
    Ok(())
}

/// A copy of the command that every user may execute.
fn for_all_users(dir: &Path) -> std::io::Result<PathBuf> {
    let copy = dir.join("sapwood");
    fs::copy(sapwood(), &copy)?;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
    Ok(copy)
}

fn hidden() -> Outcome {
    let disk = Disk::new("raw", "ext4")?;
    fs::set_permissions(disk.path(), fs::Permissions::from_mode(0o666))?;
    let copy = for_all_users(disk.0.path())?;
    let lock = |ids: &[&str]| {
        let script = "exec 9<\"$1\"; flock 9; echo ready; read end";
        let mut command = Command::new(ids.first().copied().unwrap_or("sh"));
        command.args(ids.iter().skip(1)).args(["-c", script, "sh"]);
        Program::ready(command.arg(disk.path()))
    };
    let user = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
    ];
    let list = || {
        let mut command = Command::new(user[0]);
        command.args(&user[1..]).arg(&copy).arg("ls");
        command.arg(format!("{}:/", disk.text()));
        command
    };
    let root = lock(&[])?;
    refused(
        &mut list(),
        "in use by another process, which only root can name",
    )?;
    root.end()?;
    // A process of the same user is named.
    let same = lock(&[&user[..], &["sh"]].concat())?;
    refused(&mut list(), &format!("in use by {}", same.named("sh")))?;
    same.end()?;
    process::succeed(&mut list(), process::ORDINARY)?;
    Ok(())
}
