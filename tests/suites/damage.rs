//! Files with an unreadable part: `cp`, `cat` and `export` copy the rest, name the bytes, and fail.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use libtest_mimic::Trial;
use sapwood::Kind;
use sapwood_tests::mount::{Mounted, SapwoodMount, sapwood};
use sapwood_tests::{Need, Outcome, machine, process, scratch, trial};

const LIMIT: Duration = Duration::from_secs(120);
const BLOCK: usize = 4096;
const SIZE: usize = 20 * BLOCK;
/// The block that cannot be read, and the first byte after it.
const BAD: (usize, usize) = (10 * BLOCK, 11 * BLOCK);
const NAMES: [&str; 2] = ["file: bytes 40960-45055 ", "link: bytes 40960-45055 "];

pub(crate) fn trials() -> Vec<Trial> {
    let served = [
        Need::Program("nbdkit"),
        Need::Other(ddrescue_filter),
        Need::Program("tar"),
    ];
    let mounts = [Need::Fuse];
    vec![
        trial("btrfs::of_a_device", &served, || of_a_device(Kind::Btrfs)),
        trial("ext4::of_a_device", &served, || of_a_device(Kind::Ext4)),
        trial(
            "btrfs::copies_out_of_a_mount",
            &mounts,
            copies_out_of_a_mount,
        ),
        trial("btrfs::copies_into_a_mount", &mounts, || {
            copies_into_a_mount(Kind::Btrfs)
        }),
        trial("ext4::copies_into_a_mount", &mounts, || {
            copies_into_a_mount(Kind::Ext4)
        }),
    ]
}

fn ddrescue_filter() -> Option<String> {
    let mut command = Command::new("nbdkit");
    command.args(["--filter=ddrescue", "null", "--help"]);
    let found = process::finish(&mut command, LIMIT);
    let works = found.is_ok_and(|said| said.status.success());
    machine::no(works, "nbdkit with the filter ddrescue")
}

fn content() -> Vec<u8> {
    let blocks = (0..SIZE / BLOCK).map(|block| vec![b'A' + block as u8; BLOCK]);
    blocks.collect::<Vec<_>>().concat()
}

/// The content of a copy, which ends at the damage or has zeros in its place.
fn expected(keep_going: bool) -> Vec<u8> {
    let mut content = content();
    if keep_going {
        content[BAD.0..BAD.1].fill(0)
    } else {
        content.truncate(BAD.0)
    }
    content
}

/// An image with the directory `d`, and where the block is in it that is to be damaged.
fn image(dir: &Path, kind: Kind) -> Result<(PathBuf, u64), String> {
    let (image, tree) = (dir.join("image"), dir.join("tree"));
    fs::create_dir_all(tree.join("d")).unwrap();
    for (name, content) in [
        ("before", vec![1; 9000]),
        ("file", content()),
        ("z", vec![2; 9000]),
    ] {
        fs::write(tree.join("d").join(name), content).unwrap();
    }
    fs::hard_link(tree.join("d/file"), tree.join("d/link")).unwrap();
    let mut command = Command::new(sapwood());
    command.args(["mkfs", "--quiet", "--size", "128M", "-t", kind.name(), "-r"]);
    process::succeed(command.args([&tree, &image]), LIMIT)?;
    let bytes = fs::read(&image).unwrap();
    let wanted = vec![b'A' + 10; BLOCK];
    // A small ext4 has blocks of 1 KiB.
    let places = (0..bytes.len()).step_by(1024);
    let found: Vec<usize> = places
        .filter(|at| bytes[*at..].starts_with(&wanted))
        .collect();
    match found.as_slice() {
        [at] => Ok((image, *at as u64)),
        other => Err(format!("the block is in the image {} times", other.len())),
    }
}

/// An image with a block whose checksum is wrong.
fn damaged(dir: &Path) -> Result<PathBuf, String> {
    let (image, at) = image(dir, Kind::Btrfs)?;
    let file = fs::File::options().write(true).open(&image).unwrap();
    file.write_all_at(b"damage", at + 100).unwrap();
    Ok(image)
}

/// A server of an image that cannot read a block.
struct Server(Child, PathBuf);

impl Server {
    fn start(dir: &Path, image: &Path, bad: u64) -> Result<Self, String> {
        let (map, socket) = (dir.join("map"), dir.join("socket"));
        let (size, block) = (fs::metadata(image).unwrap().len(), BLOCK as u64);
        let after = bad + block;
        let text = format!(
            "0x0 + 1\n0x0 {bad:#x} +\n{bad:#x} {block:#x} -\n{after:#x} {:#x} +\n",
            size - after
        );
        fs::write(&map, text).unwrap();
        let mut command = Command::new("nbdkit");
        command
            .args(["-f", "-r", "--filter=ddrescue", "-U"])
            .arg(&socket);
        command.arg("file").arg(image);
        command.arg(format!("ddrescue-mapfile={}", map.display()));
        command.stdin(Stdio::null()).stderr(Stdio::null());
        let child = command
            .spawn()
            .map_err(|error| format!("{command:?}: {error}"))?;
        let mut server = Self(child, socket);
        while UnixStream::connect(&server.1).is_err() {
            if let Ok(Some(status)) = server.0.try_wait() {
                return Err(format!("nbdkit: {status}"));
            }
            std::thread::yield_now();
        }
        Ok(server)
    }

    /// A path in the image.
    fn at(&self, path: &str) -> String {
        format!("nbd+unix:///?socket={}:{path}", self.1.display())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Fails, and names the file and the bytes once. Returns the output.
fn fails(command: &mut Command) -> Result<String, String> {
    let said = process::finish(command, LIMIT)?;
    let named = said
        .stderr
        .matches("bytes 40960-45055 cannot be read: ")
        .count();
    // The file has two names.
    let right = NAMES.iter().any(|name| said.stderr.contains(name));
    if said.status.code() == Some(1) && named == 1 && right {
        Ok(said.stdout)
    } else {
        Err(format!("{command:?}: {}\n{}", said.status, said.all()))
    }
}

fn same(what: &str, found: &[u8], expected: &[u8]) -> Result<(), String> {
    let differs = found
        .iter()
        .zip(expected)
        .position(|(one, other)| one != other);
    if found == expected {
        Ok(())
    } else {
        Err(format!(
            "{what}: {} bytes, first other one {differs:?}",
            found.len()
        ))
    }
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_default()
}

fn of_a_device(kind: Kind) -> Outcome {
    let dir = scratch::directory();
    let (image, bad) = image(dir.path(), kind)?;
    let server = Server::start(dir.path(), &image, bad)?;
    let out = dir.path().join("out");
    for keep_going in [false, true] {
        let options: &[&str] = if keep_going { &["--keep-going"] } else { &[] };
        let command = |name: &str| {
            let mut command = Command::new(sapwood());
            command.arg(name).args(options);
            command
        };
        let expected = expected(keep_going);
        let mut cat = command("cat");
        let printed = fails(cat.arg(server.at("/d/file")))?;
        same("cat", printed.as_bytes(), &expected)?;
        let mut copy = command("cp");
        fails(copy.arg(server.at("/d/file")).arg(&out))?;
        same("cp", &read(&out), &expected)?;
        let mut standard = command("cp");
        let printed = fails(standard.arg(server.at("/d/file")).arg("-"))?;
        same("cp to standard output", printed.as_bytes(), &expected)?;
        fs::remove_file(&out)?;
        let mut tree = command("cp");
        fails(tree.arg("-a").arg(server.at("/d")).arg(&out))?;
        same("cp -a", &read(&out.join("file")), &expected)?;
        same("the next file", &read(&out.join("z")), &[2; 9000])?;
        fs::remove_dir_all(&out)?;
        let mut whole = expected.clone();
        whole.resize(SIZE, 0);
        for form in ["--tar", "--oci-layer"] {
            let archive = dir.path().join("archive");
            let mut export = command("export");
            fails(
                export
                    .arg("--force")
                    .arg(server.at("/d"))
                    .arg(form)
                    .arg(&archive),
            )?;
            fs::create_dir(&out)?;
            let mut tar = Command::new("tar");
            process::succeed(tar.arg("-xf").arg(&archive).arg("-C").arg(&out), LIMIT)?;
            same(form, &read(&out.join("file")), &whole)?;
            same(form, &read(&out.join("z")), &[2; 9000])?;
            fs::remove_dir_all(&out)?;
        }
    }
    Ok(())
}

fn copies(from: &Path, to: &Path, keep_going: bool) -> Result<(), String> {
    let mut copy = Command::new(sapwood());
    copy.args(["cp", "-a"])
        .args(keep_going.then_some("--keep-going"));
    fails(copy.arg(from).arg(to))?;
    same("the file", &read(&to.join("file")), &expected(keep_going))?;
    same("the next file", &read(&to.join("z")), &[2; 9000])?;
    let inode = |name| fs::metadata(to.join(name)).map(|found| found.ino());
    match (inode("file"), inode("link")) {
        (Ok(one), Ok(other)) if one == other => Ok(()),
        other => Err(format!("the link: {other:?}")),
    }
}

fn copies_out_of_a_mount() -> Outcome {
    let dir = scratch::directory();
    let from = SapwoodMount::new(&damaged(dir.path())?, "ro")?;
    for keep_going in [false, true] {
        let to = dir.path().join(format!("{keep_going}"));
        copies(&from.path().join("d"), &to, keep_going)?;
    }
    Box::new(from).unmount()?;
    Ok(())
}

/// The daemon makes the copy.
fn copies_into_a_mount(kind: Kind) -> Outcome {
    let (dir, other) = (scratch::directory(), scratch::directory());
    let from = SapwoodMount::new(&damaged(dir.path())?, "ro")?;
    let to = SapwoodMount::new(&image(other.path(), kind)?.0, "rw")?;
    for keep_going in [false, true] {
        let to = to.path().join(format!("{keep_going}"));
        copies(&from.path().join("d"), &to, keep_going)?;
    }
    Box::new(to).unmount()?;
    Box::new(from).unmount()?;
    Ok(())
}
