//! Errors of the command line: one clear line, and a meaningful exit code.

mod mounts;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use libtest_mimic::Trial;
use sapwood_tests::image::{Mkfs, TempImage};
use sapwood_tests::mount::sapwood;
use sapwood_tests::process::Said;
use sapwood_tests::random::Random;
use sapwood_tests::{Need, Outcome, machine, process, scratch, trial};

const FAILED: i32 = 1;
const USAGE: i32 = 2;
const IMAGE: i32 = 3;
const MOUNT: i32 = 32;
/// An ordinary user with a name: `fusermount3` refuses other ids.
const USER: u32 = 65534;

pub(crate) fn trials() -> Vec<Trial> {
    let tools = [Need::Program("mkfs.btrfs")];
    let mounts = [machine::KERNEL, Need::Fuse];
    vec![
        trial("missing_image", &[], missing),
        trial("no_file_system", &[], no_file_system),
        trial("damaged_superblocks", &tools, damaged),
        trial("shrunk_image", &tools, shrunk),
        trial("several_devices", &tools, several_devices),
        trial("unknown_features", &tools, unknown_features),
        trial("missing_paths_inside", &tools, missing_inside),
        trial(
            "dry_run_over_an_interrupted_repair",
            &[Need::Program("mkfs.ext4"), Need::Program("debugfs")],
            interrupted_repair,
        ),
        trial("usage", &[], usage),
        trial("errors_say_what_to_do_next", &[], next_steps),
        trial("read_only_image", &mounts, mounts::read_only),
        trial("mounted_by_us", &mounts, mounts::mounted_by_us),
        trial("mounted_by_the_kernel", &mounts, mounts::mounted_by_kernel),
        trial("bad_mount_points", &mounts, mounts::bad_mount_points),
        trial(
            "umount_of_nothing_and_of_a_busy_mount",
            &mounts,
            mounts::umounts,
        ),
        trial("stats_of_a_mount_and_of_no_mount", &mounts, mounts::stats),
        trial("subvolumes_of_a_mount", &mounts, || {
            mounts::subvolumes_of_a_mount(0)
        }),
        trial("subvolumes_of_a_users_mount", &mounts, || {
            mounts::subvolumes_of_a_mount(USER)
        })
        .with_ignored_flag(!mounts::users_may_mount()),
        trial("demo_where_a_name_has_a_space", &[Need::Fuse], || demo(&[])),
        trial("demo_with_ext4", &[Need::Fuse], || demo(&["-t", "ext4"])),
    ]
}

fn said(args: &[&str]) -> Result<Said, String> {
    let mut command = Command::new(sapwood());
    // A panic prints a backtrace, and the tests search the output for one.
    command.args(args).env("RUST_BACKTRACE", "1");
    process::finish(&mut command, Duration::from_secs(60))
}

/// The command fails with this code and one line that contains `hint`. The portable build refuses
/// commands of mounts instead.
fn fails(args: &[&str], code: i32, hint: &str) -> Result<(), String> {
    let refused = matches!(args, ["mount" | "umount", rest @ ..] if !rest.contains(&"--device"));
    let of_mounts = machine::PORTABLE && refused;
    let (code, hint) = if of_mounts {
        (FAILED, "this build has no mounts")
    } else {
        (code, hint)
    };
    let said = said(args)?;
    let (lines, err) = (said.stderr.lines().count(), said.stderr.trim_end());
    let shown = format!(
        "sapwood {args:?}: {}\nstdout: {}\nstderr: {err}",
        said.status, said.stdout
    );
    if said.status.code() != Some(code) {
        return Err(format!("expected exit code {code}: {shown}"));
    }
    if code != USAGE && lines != 1 {
        return Err(format!("expected one line: {shown}"));
    }
    if !err.to_lowercase().contains(&hint.to_lowercase()) {
        return Err(format!("expected it to say {hint:?}: {shown}"));
    }
    let words: Vec<&str> = err.split_whitespace().collect();
    if let Some(word) = words.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(format!("{:?} stands there twice: {shown}", word[0]));
    }
    let traces = ["panicked", "backtrace", "Error {", "Err(", "::"];
    if let Some(trace) = traces.iter().find(|trace| err.contains(**trace)) {
        return Err(format!("{trace:?} is no word for people: {shown}"));
    }
    Ok(())
}

/// Every command fails on this image, with the code for images (or mounts).
fn all_fail(image: &Path, hint: &str) -> Result<(), String> {
    fails(&["check", image.to_str().unwrap()], IMAGE, hint)?;
    none_opens(image, hint)
}

/// Every command that opens the file system in an image fails so.
fn none_opens(image: &Path, hint: &str) -> Result<(), String> {
    let dir = scratch::directory();
    let (image, mount) = (image.to_str().unwrap(), dir.path().to_str().unwrap());
    let inside = format!("{image}:file");
    for command in [
        &["info", image][..],
        &["ls", image],
        &["cat", &inside],
        &["stat", &inside],
        &["tree", image],
        &["dump", image],
        &["subvolume", "list", image],
        &["rm", &inside],
        &["mkdir", &inside],
        &["mv", &inside, "other"],
    ] {
        fails(command, IMAGE, hint)?;
    }
    // With an option that a bind mount of a living mount cannot have.
    fails(&["mount", "-o", "commit=7", image, mount], MOUNT, hint)?;
    fails(
        &["mount", "--foreground", "-o", "commit=7", image, mount],
        MOUNT,
        hint,
    )
}

fn missing() -> Outcome {
    let image = TempImage::blank(4096);
    let gone = image.beside("gone");
    let (gone, dir) = (gone.to_str().unwrap(), scratch::directory());
    for command in [
        &["info", gone][..],
        &["check", gone],
        &["dump", gone],
        &["subvolume", "list", gone],
    ] {
        fails(command, IMAGE, "no such file")?;
    }
    fails(
        &["mount", gone, dir.path().to_str().unwrap()],
        MOUNT,
        "no such file",
    )?;
    fails(&["mkfs", gone], IMAGE, gone).or_else(|_| fails(&["mkfs", gone], FAILED, gone))?;
    Ok(())
}

fn no_file_system() -> Outcome {
    for size in [0, 10, 4096, 65_536, 69_632, 1 << 20, 300 << 20] {
        let image = TempImage::blank(size);
        all_fail(image.path(), "btrfs").map_err(|why| format!("{size} zeros: {why}"))?;
    }
    let image = TempImage::blank(0);
    fs::write(image.path(), Random::new(5).bytes(1 << 20))?;
    all_fail(image.path(), "btrfs").map_err(|why| format!("random bytes: {why}"))?;
    // A directory is no image.
    let dir = scratch::directory();
    let dir = dir.path().to_str().unwrap();
    fails(&["info", dir], IMAGE, dir)?;
    Ok(())
}

fn file(image: &TempImage) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).open(image.path())
}

const SUPER: u64 = 65_536;
const MIRROR: u64 = 64 << 20;

fn damaged() -> Outcome {
    let image = TempImage::by_kernel(&Mkfs::default().sized(300 << 20))?;
    // One bad copy is no reason to give up.
    file(&image)?.write_all_at(&[0; 4096], SUPER)?;
    let path = image.path().to_str().unwrap();
    let info = said(&["info", path])?;
    if !info.status.success() {
        println!("with the first superblock gone: {}", info.all());
    }
    file(&image)?.write_all_at(&[0; 4096], MIRROR)?;
    all_fail(image.path(), "btrfs")?;
    Ok(())
}

fn shrunk() -> Outcome {
    let image = TempImage::by_kernel(&Mkfs::default().sized(300 << 20))?;
    file(&image)?.set_len(100 << 20)?;
    let path = image.path().to_str().unwrap();
    none_opens(image.path(), path)?;
    // A check reports the defects.
    let found = said(&["check", path])?;
    if found.status.code() != Some(FAILED) || !found.stdout.contains("device 1") {
        return Err(format!("check: {}: {}", found.status, found.all()).into());
    }
    Ok(())
}

/// An image with one page as before the repair: the dry run says that the repair is to be completed,
/// and ends as one that would change something.
fn interrupted_repair() -> Outcome {
    const PAGE: usize = 4096;

    let image = TempImage::blank(32 << 20);
    let path = image.path().to_str().unwrap();
    process::run("mkfs.ext4", &["-q", "-b", "1024", path])?;
    process::run(
        "debugfs",
        &["-w", "-R", "set_bg 1 free_inodes_count 1", path],
    )?;
    let damaged = fs::read(path)?;
    let undo = format!("{path}.undo");
    let repaired = said(&["check", "--repair", path]);
    let after = fs::read(path)?;
    let pages = damaged.chunks(PAGE).zip(after.chunks(PAGE)).enumerate();
    let mut changed = pages.filter(|(_, (old, new))| old != new);
    let (number, (old, _)) = changed.next_back().ok_or("no page was changed")?;
    file(&image)?.write_all_at(old, (number * PAGE) as u64)?;
    let dry = said(&["check", "--repair", "--dry-run", path]);
    let unchanged = fs::read(path)? != after;
    let again = said(&["check", "--repair", path]);
    fs::remove_file(undo)?;
    let (repaired, dry, again) = (repaired?, dry?, again?);
    assert!(repaired.status.success(), "{}", repaired.all());
    assert_eq!(dry.status.code(), Some(FAILED), "{}", dry.all());
    assert!(dry.stdout.contains("would be completed"), "{}", dry.all());
    assert!(unchanged);
    assert!(again.status.success(), "{}", again.all());
    assert!(fs::read(path)? == after);
    Ok(())
}

fn several_devices() -> Outcome {
    let (one, two) = (TempImage::blank(300 << 20), TempImage::blank(300 << 20));
    let args = [
        "-q".as_ref(),
        "-f".as_ref(),
        "-draid1".as_ref(),
        "-mraid1".as_ref(),
        one.path().as_os_str(),
        two.path().as_os_str(),
    ];
    process::run("mkfs.btrfs", &args)?;
    let advice = "--device FILE names each of the others";
    all_fail(one.path(), advice)?;
    let (one, two) = (one.path().to_str().unwrap(), two.path().to_str().unwrap());
    let inside = format!("{one}:/");
    for command in [
        &["info"][..],
        &["ls"],
        &["stat"],
        &["tree"],
        &["find"],
        &["du"],
        &["df"],
        &["dump"],
        &["check", "--check-data-csum"],
        &["subvolume", "list"],
        &["subvolume", "get-default"],
        &["xattr", "list"],
    ] {
        let place = match command {
            ["info" | "dump" | "check" | "df", ..] => one,
            ["subvolume", ..] => one,
            _ => &inside,
        };
        let done = said(&[command, &["--device", two, place]].concat())?;
        if !done.status.success() {
            return Err(format!("{command:?} of two devices: {}", done.all()).into());
        }
    }
    let dir = scratch::directory();
    let out = dir.path().join("out.tar");
    let tar = [
        "export",
        "-q",
        "--device",
        two,
        "--tar",
        out.to_str().unwrap(),
        one,
    ];
    if !said(&tar)?.status.success() || !out.exists() {
        return Err(format!("{tar:?}").into());
    }
    // A btrfs of one device has no other; an ext4 never has.
    let ext4 = TempImage::blank(64 << 20);
    let ext4 = ext4.path().to_str().unwrap();
    said(&["mkfs", "-qf", "-t", "ext4", ext4])?;
    for command in ["ls", "check", "info", "dump"] {
        fails(&[command, "--device", two, ext4], IMAGE, "btrfs")?;
    }
    Ok(())
}

/// Sets bits in the superblock's feature word at `offset`, in both copies that a small image has.
fn with_features(offset: usize, bits: u64) -> Result<TempImage, String> {
    let image = TempImage::by_kernel(&Mkfs::default().sized(300 << 20))?;
    let edit = || -> std::io::Result<()> {
        let file = file(&image)?;
        for at in [SUPER, MIRROR] {
            let mut block = vec![0; 4096];
            file.read_exact_at(&mut block, at)?;
            let mut word = [0; 8];
            word.copy_from_slice(&block[offset..offset + 8]);
            let word = u64::from_le_bytes(word) | bits;
            block[offset..offset + 8].copy_from_slice(&word.to_le_bytes());
            let sum = crc32c::crc32c(&block[32..]);
            block[..4].copy_from_slice(&sum.to_le_bytes());
            file.write_all_at(&block, at)?;
        }
        Ok(())
    };
    edit().map_err(|error| error.to_string())?;
    Ok(image)
}

const COMPAT_RO: usize = 0xb4;
const INCOMPAT: usize = 0xbc;

fn unknown_features() -> Outcome {
    let image = with_features(INCOMPAT, 1 << 50)?;
    all_fail(image.path(), "feature")?;
    let zoned = with_features(INCOMPAT, 1 << 12)?;
    all_fail(zoned.path(), "zoned")?;
    // An unknown read-only-compatible feature allows reading only.
    let image = with_features(COMPAT_RO, 1 << 50)?;
    let path = image.path().to_str().unwrap();
    let listed = said(&["ls", path])?;
    if !listed.status.success() {
        return Err(format!("ls: {}", listed.all()).into());
    }
    fails(&["mkdir", &format!("{path}:dir")], IMAGE, "feature")?;
    Ok(())
}

fn missing_inside() -> Outcome {
    let image = TempImage::by_kernel(&Mkfs::default().sized(300 << 20))?;
    let path = image.path().to_str().unwrap();
    let inside = format!("{path}:no/such");
    for command in [
        &["ls", &inside][..],
        &["cat", &inside],
        &["stat", &inside],
        &["rm", &inside],
        &["mkdir", &inside],
    ] {
        fails(command, FAILED, "no such file")?;
    }
    fails(&["cat", &format!("{path}:/")], FAILED, "directory")?;
    fails(
        &["cp", &inside, "/tmp/nowhere/at/all"],
        FAILED,
        "no such file",
    )?;
    let dir = scratch::directory();
    let mount = dir.path().to_str().unwrap();
    fails(
        &["mount", "-o", "subvol=no/such", path, mount],
        MOUNT,
        "no/such",
    )?;
    fails(&["mount", "-o", "subvolid=999", path, mount], MOUNT, "999")?;
    Ok(())
}

fn usage() -> Outcome {
    let image = TempImage::blank(4096);
    let path = image.path().to_str().unwrap();
    fails(&["bogus"], USAGE, "bogus")?;
    fails(&["mount"], USAGE, "image")?;
    fails(&["ls", "--bogus", path], USAGE, "bogus")?;
    fails(&["mkfs", "--nodesize", "5000x", path], USAGE, "5000x")?;
    fails(&["mkfs", "--checksum", "md5", path], USAGE, "md5")?;
    let dir = scratch::directory();
    fails(
        &["mount", "-o", "bogus", path, dir.path().to_str().unwrap()],
        USAGE,
        "bogus",
    )?;
    Ok(())
}

/// Errors that a first-time user meets.
fn next_steps() -> Outcome {
    let image = TempImage::blank(128 << 20);
    let path = image.path().to_str().unwrap();
    fails(&["ls", path], IMAGE, "`sapwood info")?;
    let told = said(&["info", "/etc/passwd"])?;
    fails(&["info", "/etc/passwd"], IMAGE, "no file system")?;
    if told.stderr.contains("`sapwood info") {
        return Err(format!("info recommends itself: {}", told.stderr).into());
    }
    said(&["mkfs", "-qf", "-t", "ext4", path])?;
    let (dir, gone) = (scratch::directory(), image.beside("gone"));
    let (dir, gone) = (dir.path().to_str().unwrap(), gone.to_str().unwrap());
    let inside = |name: &str| format!("{path}:{name}");
    for (args, code, hint) in [
        (&["ls", gone][..], IMAGE, "`sapwood mkfs --size 10G"),
        (&["ls", &format!("{gone}:/etc")], IMAGE, "no such image"),
        (&["mkfs", gone], FAILED, "--size creates it"),
        (&["mount", path, gone], MOUNT, "`mkdir`"),
        (
            &["mount", "-o", "bogus", path, dir],
            USAGE,
            "`sapwood mount-options`",
        ),
        (&["umount", dir], FAILED, "`findmnt`"),
        (&["df", dir], FAILED, "name an image or a mount"),
        (&["cat", path], FAILED, "IMAGE:/PATH"),
        (&["rm", "-r", path], FAILED, "IMAGE:/PATH"),
        (&["mkdir", &inside("a/b")], FAILED, "-p makes"),
        (&["rm", &inside("lost+found")], FAILED, "-r removes it"),
        (&["cp", &inside("lost+found"), dir], FAILED, "-r copies it"),
        (
            &["mv", &inside("a"), &format!("{gone}:b")],
            IMAGE,
            "no such image",
        ),
        (
            &["chown", "ann", &inside("lost+found")],
            FAILED,
            "give a number",
        ),
        (&["write", path], USAGE, ":/PATH"),
        (&["subvolume", "list", path], IMAGE, "needs btrfs"),
        (&["exprot", path], USAGE, "a similar subcommand"),
        (&["cp", "--recursiv", path, dir], USAGE, "--recursive"),
        (
            &["cp", "/etc/passwd", path],
            USAGE,
            &format!("{path}:/ is its root directory"),
        ),
        (
            &["mkdisk", "--offset", "1M", "-p", "a", dir],
            USAGE,
            "work on an image",
        ),
        (
            &["umount", "--device", path, dir],
            USAGE,
            "--journal-device are for",
        ),
        (
            &["resize", "--device", path, path, "min"],
            USAGE,
            "--journal-device are for",
        ),
        (&["find", path, "-size", "big"], USAGE, "as 10k"),
        (&["chmod", "rwx", path], USAGE, "as 644"),
    ] {
        fails(args, code, hint)?;
    }
    let big = image.beside("big");
    fs::write(&big, vec![7; 160 << 20])?;
    let copy = ["cp", "-q", big.to_str().unwrap(), &inside("big")];
    fails(&copy, FAILED, "`sapwood df`")?;
    Ok(())
}

/// The demo finds its own mount in the mount table, which escapes the space in its name.
fn demo(arguments: &[&str]) -> Outcome {
    let dir = scratch::directory();
    let spaced = dir.path().join("two words");
    fs::create_dir(&spaced)?;
    let mut command = Command::new(sapwood());
    command.arg("demo").args(arguments).env("TMPDIR", &spaced);
    process::succeed(&mut command, Duration::from_secs(120))?;
    if fs::read_dir(&spaced)?.next().is_some() {
        return Err("the demo left something behind".into());
    }
    Ok(())
}
