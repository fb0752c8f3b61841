//! File systems in a part of a disk image: `IMAGE#N`, `IMAGE#LABEL`, `--offset`, and mounts of
//! them.

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use libtest_mimic::Trial;
use sapwood_testing::FileContent;
use sapwood_testing::oracle::Loop;
use sapwood_tests::mount::sapwood;
use sapwood_tests::{Need, Outcome, machine, process, scratch, trial};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 640 * MIB;
/// Filler around the partitions, which must stay as it is.
const FILLER: u8 = 0xa5;

const TABLES: [(&str, &str); 2] = [
    (
        "gpt",
        "label: gpt\nstart=4MiB, size=300MiB, name=\"root\"\nsize=200MiB, name=\"the data\"\n",
    ),
    (
        "dos",
        "label: dos\nd1 : start=4MiB, size=300MiB, type=83\nd2 : size=220MiB, type=5\n\
         d5 : size=200MiB, type=83\n",
    ),
];

pub(crate) fn trials() -> Vec<Trial> {
    let tools = [Need::Program("sfdisk"), Need::Program("e2fsck")];
    let qemu = [Need::Program("qemu-img"), Need::Program("e2fsck")];
    let qemu_mounts = [Need::Program("qemu-img"), Need::Fuse];
    let mounts = [Need::Program("sfdisk"), machine::KERNEL, Need::Fuse];
    vec![
        trial("parts_of_a_disk_in_every_command", &tools, commands),
        trial("no_byte_outside_of_a_partition_changes", &tools, outside),
        trial("offset_and_length_on_every_command", &tools, ranges),
        trial("partitions_are_mounted", &mounts, mounted),
        trial(
            "the_kernel_mounts_what_is_made_in_partitions",
            &mounts,
            kernel,
        ),
        trial("partitions_that_cannot_be_opened", &tools, refused),
        trial("qcow2_files_in_every_command", &qemu, qcow2),
        trial("qcow2_files_are_mounted", &qemu_mounts, qcow2_mounted),
    ]
}

/// A disk image with a partition table.
struct Disk {
    dir: TempDir,
    path: PathBuf,
    /// The second partition in Sapwood's notation: `#2`, or `#5` where the second one is extended.
    second: &'static str,
}

impl Disk {
    fn new(table: &str) -> Result<Self, String> {
        let dir = scratch::directory();
        let path = dir.path().join("disk.img");
        let file = fs::File::create(&path).map_err(|error| error.to_string())?;
        file.set_len(SIZE).map_err(|error| error.to_string())?;
        let (name, script) = TABLES.into_iter().find(|(name, _)| *name == table).unwrap();
        let mut sfdisk = Command::new("sfdisk")
            .args(["--quiet", "--no-tell-kernel", "--no-reread"])
            .arg(&path)
            .stdin(Stdio::piped())
            .spawn()
            .map_err(|error| error.to_string())?;
        let mut input = sfdisk.stdin.take().unwrap();
        input.write_all(script.as_bytes()).unwrap();
        drop(input);
        if !sfdisk.wait().is_ok_and(|status| status.success()) {
            return Err("sfdisk failed".to_owned());
        }
        let second = if name == "gpt" { "the data" } else { "5" };
        Ok(Self { dir, path, second })
    }

    fn part(&self, part: &str) -> String {
        format!("{}#{part}", self.path.display())
    }

    fn inside(&self, part: &str, path: &str) -> String {
        format!("{}:{path}", self.part(part))
    }
}

/// Runs `sapwood`. Returns its output.
fn run(args: &[&str]) -> Result<String, String> {
    let mut command = Command::new(sapwood());
    process::succeed(command.args(args), process::ORDINARY)
}

/// It fails with a message that contains `hint`.
fn fails(args: &[&str], hint: &str) -> Result<(), String> {
    let mut command = Command::new(sapwood());
    let said = process::finish(command.args(args), process::ORDINARY)?;
    if !said.status.success() && said.stderr.contains(hint) {
        Ok(())
    } else {
        Err(format!("{args:?}: expected {hint:?}: {}", said.all()))
    }
}

fn same<T: PartialEq + std::fmt::Debug>(found: T, wanted: T) -> Result<(), String> {
    if found == wanted {
        Ok(())
    } else {
        Err(format!("{found:?} instead of {wanted:?}"))
    }
}

/// ext4 in the first partition, btrfs in the second.
fn fill(disk: &Disk) -> Result<(), String> {
    let (first, second) = (disk.part("1"), disk.part(disk.second));
    run(&["mkfs", "-q", "-t", "ext4", &first])?;
    run(&["mkfs", "-q", "-t", "btrfs", &second])?;
    let text = disk.dir.path().join("text");
    fs::write(&text, vec![b'x'; 3_000_000]).map_err(|error| error.to_string())?;
    for part in ["1", disk.second] {
        run(&["mkdir", &disk.inside(part, "a")])?;
        run(&[
            "cp",
            "-q",
            text.to_str().unwrap(),
            &disk.inside(part, "a/text"),
        ])?;
        run(&["mv", &disk.inside(part, "a/text"), "a/moved"])?;
    }
    Ok(())
}

fn commands() -> Outcome {
    for (table, _) in TABLES {
        let disk = Disk::new(table)?;
        fill(&disk)?;
        for part in ["1", disk.second] {
            let operand = disk.part(part);
            same(run(&["ls", &disk.inside(part, "a")])?.trim(), "moved")?;
            same(
                run(&["cat", &disk.inside(part, "a/moved")])?.len(),
                3_000_000,
            )?;
            run(&["check", &operand])?;
            run(&["info", &operand])?;
            run(&["dump", &operand])?;
            run(&["stat", &disk.inside(part, "a/moved")])?;
            run(&["tree", &operand])?;
        }
        // The lock is one on the whole disk image.
        let (from, to) = (
            disk.inside("1", "a/moved"),
            disk.inside(disk.second, "copy"),
        );
        fails(&["cp", "-q", &from, &to], "in use")?;
        run(&["rm", &disk.inside("1", "a/moved")])?;
        run(&["subvolume", "create", &disk.inside(disk.second, "sub")])?;
        run(&["check", &disk.part("1")])?;
        run(&["check", "--check-data-csum", &disk.part(disk.second)])?;
        let info = run(&["info", disk.path.to_str().unwrap()])?;
        for word in ["ext4", "btrfs", "at 4194304"] {
            if !info.contains(word) {
                return Err(format!("{word} is not in {info}").into());
            }
        }
        if table == "gpt" {
            same(run(&["ls", &disk.inside("root", "")])?.contains('a'), true)?;
            same(info.contains("name the data"), true)?;
        }
    }
    Ok(())
}

/// First byte and bytes of both partitions, from `sapwood info --json`.
fn places(disk: &Disk) -> Result<Vec<(u64, u64)>, String> {
    let info = run(&["info", "--json", disk.path.to_str().unwrap()])?;
    let numbers = |name: &str| -> Vec<u64> {
        let mut found = Vec::new();
        for piece in info.split(&format!("\"{name}\":")).skip(1) {
            let digits = piece
                .trim_start()
                .split(|char: char| !char.is_ascii_digit());
            found.extend(
                digits
                    .take(1)
                    .filter_map(|digits| digits.parse::<u64>().ok()),
            );
        }
        found
    };
    let all: Vec<_> = numbers("offset")
        .into_iter()
        .zip(numbers("length"))
        .collect();
    // The extended partition is no place for a file system.
    Ok(all
        .into_iter()
        .filter(|(_, len)| *len != 220 * MIB)
        .collect())
}

fn outside() -> Outcome {
    for (table, _) in TABLES {
        let disk = Disk::new(table)?;
        let places = places(&disk)?;
        same(places.len(), 2)?;
        // Bytes between the partitions that are not part of a table get a filler.
        let gaps = [MIB..4 * MIB, 560 * MIB..600 * MIB];
        let file = fs::File::options().write(true).open(&disk.path)?;
        for gap in &gaps {
            file.write_all_at(&vec![FILLER; (gap.end - gap.start) as usize], gap.start)?;
        }
        let before = FileContent::of(&disk.path)?;
        fill(&disk)?;
        run(&["rm", &disk.inside("1", "a/moved")])?;
        let after = FileContent::of(&disk.path)?;
        same(after.len(), before.len())?;
        let inside = |at: u64| {
            places
                .iter()
                .any(|(start, len)| (*start..start + len).contains(&at))
        };
        same(after.first_difference(&before, |at| !inside(at)), None)?;
    }
    Ok(())
}

fn ranges() -> Outcome {
    let dir = scratch::directory();
    let path = dir.path().join("raw.img");
    fs::File::create(&path)?.set_len(400 * MIB)?;
    let image = path.to_str().unwrap();
    let inside = format!("{image}:dir");
    for kind in ["ext4", "btrfs"] {
        let range = ["--offset", "3M", "--length", "260M"];
        let with = |args: &[&str]| run(&[args, &range].concat());
        with(&["mkfs", "-q", "-f", "-t", kind, image])?;
        with(&["mkdir", &inside])?;
        same(with(&["ls", image])?.contains("dir"), true)?;
        with(&["stat", &inside])?;
        with(&["tree", image])?;
        with(&["info", image])?;
        with(&["dump", image])?;
        with(&["check", image])?;
        with(&["check", image])?;
        with(&["rm", "-r", &inside])?;
        let length = run(&["info", "--json", "--offset", "3M", image])?;
        same(length.contains(kind), true)?;
    }
    fails(&["ls", "--offset", "400M", image], "not on the device")?;
    fails(
        &["ls", "--offset", "399M", "--length", "2M", image],
        "past the end",
    )?;
    fails(&["umount", "--offset", "1", image], "work on an image")?;
    Ok(())
}

fn mounted() -> Outcome {
    for (table, _) in TABLES {
        let disk = Disk::new(table)?;
        fill(&disk)?;
        let dir = scratch::directory();
        let (point, image) = (dir.path().to_str().unwrap(), disk.path.to_str().unwrap());
        let place = places(&disk)?[0];
        let part = disk.part(disk.second);
        let partition = format!("partition={}", disk.second);
        let range = format!("offset={},length={}", place.0, place.1);
        let before = FileContent::of(&disk.path)?;
        for args in [
            &["mount", &part, point][..],
            &["mount", "-o", &partition, image, point],
            &["mount", "-o", "partition=1", image, point],
            &["mount", "-o", &range, image, point],
        ] {
            run(args)?;
            let written = fs::write(dir.path().join("a/new"), args.len().to_string());
            let listed = dir.path().join("a/moved").exists();
            run(&["umount", point])?;
            written?;
            same(listed, true)?;
        }
        run(&["check", &disk.part("1")])?;
        run(&["check", "--check-data-csum", &part])?;
        let after = FileContent::of(&disk.path)?;
        same(after.first_difference(&before, |at| at < 4 * MIB), None)?;
        let twice = ["mount", "-o", "partition=1", &part, point];
        fails(&twice, "names a part of the image already")?;
    }
    Ok(())
}

/// Runs `qemu-img`.
fn qemu_img(args: &[&str]) -> Result<String, String> {
    let mut command = process::command("qemu-img", args);
    process::succeed(&mut command, process::ORDINARY)
}

fn qcow2() -> Outcome {
    let dir = scratch::directory();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (disk, text) = (at("disk"), at("text"));
    fs::write(&text, vec![b'x'; 3_000_000])?;
    for kind in ["ext4", "btrfs"] {
        qemu_img(&["create", "-q", "-f", "qcow2", &disk, "1G"])?;
        run(&["mkfs", "-q", "-t", kind, &disk])?;
        run(&["mkdir", &format!("{disk}:a")])?;
        run(&["cp", "-q", &text, &format!("{disk}:a/text")])?;
        same(run(&["cat", &format!("{disk}:a/text")])?.len(), 3_000_000)?;
        same(
            run(&["info", &disk])?.starts_with("format      qcow2"),
            true,
        )?;
        run(&["trim", &disk])?;
        run(&["resize", &disk, "min"])?;
        run(&["resize", &disk, "1G"])?;
        fails(&["resize", &disk, "2G"], "fewer than")?;
        run(&["check", &disk])?;
        qemu_img(&["check", "-q", &disk])?;
        let raw = at("raw");
        qemu_img(&["convert", "-O", "raw", &disk, &raw])?;
        if kind == "ext4" {
            let mut check = process::command("e2fsck", &["-f", "-n", &raw]);
            process::succeed(&mut check, process::ORDINARY)?;
        }
        fails(&["info", "--image-format", "raw", &disk], "no file system")?;
        fails(&["info", "--image-format", "qcow2", &raw], "no qcow2 file")?;
        // Another file below, on demand only.
        let top = at("top");
        qemu_img(&[
            "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", &disk, &top,
        ])?;
        fails(&["ls", &format!("{top}:a")], "backing file")?;
        let listed = run(&["ls", "--backing-files", &format!("{top}:a")])?;
        same(listed.trim(), "text")?;
        run(&["rm", "--backing-files", &format!("{top}:a/text")])?;
        same(run(&["ls", &format!("{disk}:a")])?.trim(), "text")?;
        // A whole disk in one.
        let part = format!("part:{kind}:size=200M");
        run(&[
            "mkdisk",
            "-qf",
            &top,
            "--part",
            &part,
            "--output-format",
            "qcow2",
        ])?;
        run(&["cp", "-q", &text, &format!("{top}#part:text")])?;
        same(run(&["info", &top])?.contains("qcow2"), true)?;
        run(&["check", &format!("{top}#1")])?;
        let anew = ["mkfs", "-qt", kind, "--force", "--size", "300M", &top];
        fails(&anew, "is a qcow2 file")?;
        qemu_img(&["check", "-q", &top])?;
    }
    let new = at("new");
    let vhd = [
        "mkfs",
        "-q",
        "-t",
        "ext4",
        "--size",
        "64M",
        "--output-format",
        "vhd",
        &new,
    ];
    run(&vhd)?;
    fails(&vhd, "exists")?;
    run(&["check", &new])?;
    fails(
        &[
            "mkfs",
            "--output-format",
            "qcow2",
            dir.path().to_str().unwrap(),
        ],
        "a new file",
    )?;
    // Nothing of the conversions is left.
    let left = fs::read_dir(dir.path())?.flatten();
    let hidden = left.filter(|entry| entry.file_name().to_string_lossy().starts_with('.'));
    same(hidden.count(), 0)?;
    Ok(())
}

fn qcow2_mounted() -> Outcome {
    let dir = scratch::directory();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (disk, top, point) = (at("disk"), at("top"), at("point"));
    fs::create_dir(&point)?;
    for kind in ["ext4", "btrfs"] {
        qemu_img(&["create", "-q", "-f", "qcow2", &disk, "1G"])?;
        run(&["mkfs", "-q", "-t", kind, &disk])?;
        qemu_img(&[
            "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", &disk, &top,
        ])?;
        let below = ["mount", "-o", "backing_files", &top, &point];
        for args in [&["mount", &disk, &point][..], &below] {
            run(args)?;
            // The file grows below the confined daemon.
            let written = fs::write(format!("{point}/new"), vec![b'y'; 40_000_000]);
            let synced = fs::File::open(format!("{point}/new")).and_then(|file| file.sync_all());
            // A daemon locks its image, and the file below it.
            let busy = fails(&["mkdir", &format!("{disk}:dir")], "in use");
            run(&["umount", &point])?;
            written?;
            synced?;
            busy?;
        }
        for (image, option) in [(&disk, None), (&top, Some("--backing-files"))] {
            let words = ["cat"].into_iter().chain(option).map(str::to_owned);
            let words: Vec<String> = words.chain([format!("{image}:new")]).collect();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            same(run(&words)?.len(), 40_000_000)?;
            qemu_img(&["check", "-q", image])?;
        }
        run(&["check", &disk])?;
    }
    Ok(())
}

fn kernel() -> Outcome {
    for (table, _) in TABLES {
        let disk = Disk::new(table)?;
        fill(&disk)?;
        for ((start, len), kind) in places(&disk)?.into_iter().zip(["ext4", "btrfs"]) {
            let (start, len) = (start.to_string(), len.to_string());
            let attached = Loop::new(&disk.path, &["--offset", &start, "--sizelimit", &len])?;
            let check: &[&str] = match kind {
                "ext4" => &["e2fsck", "-f", "-n"],
                _ => &["btrfs", "check", "--readonly"],
            };
            let mut command = process::command(check[0], &check[1..]);
            process::succeed(command.arg(attached.path()), process::ORDINARY)?;
            let dir = scratch::directory();
            let mut mount = process::command("mount", &["-t", kind]);
            process::succeed(
                mount.arg(attached.path()).arg(dir.path()),
                process::ORDINARY,
            )?;
            let size = fs::metadata(dir.path().join("a/moved")).map(|meta| meta.len());
            let written = fs::write(dir.path().join("by-the-kernel"), b"hello");
            sapwood_testing::unmount(dir.path())?;
            written?;
            same(size?, 3_000_000)?;
            drop(attached);
            let part = if kind == "ext4" { "1" } else { disk.second };
            same(
                run(&["cat", &disk.inside(part, "by-the-kernel")])?.as_str(),
                "hello",
            )?;
        }
    }
    Ok(())
}

fn refused() -> Outcome {
    let disk = Disk::new("gpt")?;
    let there = "no partition 7; there are: 1 (root), 2 (the data)";
    fails(&["ls", &disk.part("7")], there)?;
    fails(&["ls", &disk.part("1")], "no file system that we know")?;
    fails(&["ls", &disk.part("offset=x")], "is no range")?;
    let plain = disk.dir.path().join("plain#1");
    fs::File::create(&plain)?.set_len(64 * MIB)?;
    let plain = plain.to_str().unwrap();
    run(&["mkfs", "-q", "-f", "-t", "ext4", plain])?;
    run(&["check", plain])?;
    fails(&["ls", &format!("{plain}#1")], "no partition table")?;
    // A disk that is shorter than its table.
    fs::File::options()
        .write(true)
        .open(&disk.path)?
        .set_len(200 * MIB)?;
    fails(&["ls", &disk.part("1")], "GPT")?;
    let disk = Disk::new("dos")?;
    fs::File::options()
        .write(true)
        .open(&disk.path)?
        .set_len(200 * MIB)?;
    fails(&["ls", &disk.part("1")], "past the end of the device")?;
    fails(
        &["ls", &disk.part("5")],
        "outside of the extended partition",
    )?;
    Ok(())
}
