//! `mkfs`, `info`, `dump` and `resize` of ext4 images on the command line.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use libtest_mimic::Trial;
use sapwood_testing::oracle::{KernelMount, Loop};
use sapwood_testing::tree::{Facts, Tree};
use sapwood_tests::image::{Mkfs, TempImage};
use sapwood_tests::mount::{Driver, Mounted, SapwoodMount, sapwood};
use sapwood_tests::{Need, Outcome, machine, process, scratch, trial, volume};

const LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn trials() -> Vec<Trial> {
    let check = [Need::Program("e2fsck")];
    vec![
        trial("made_and_shown", &check, made_and_shown),
        trial("filled_from_a_directory", &check, filled),
        trial("refused", &check, refused),
        trial("quotas_of_an_image", &QUOTAS, quotas),
        trial(
            "grown_past_the_blocks_for_descriptors",
            &GROWTH,
            grown_past_the_blocks_for_descriptors,
        ),
        trial(
            "an_image_that_others_grew_past_them",
            &GROWTH,
            an_image_that_others_grew_past_them,
        ),
    ]
}

/// Runs a `sapwood` command that succeeds. Returns its output.
fn said(args: &[&str]) -> Result<String, String> {
    process::succeed(Command::new(sapwood()).args(args), LIMIT)
}

fn sound(image: &Path) -> Result<(), String> {
    process::run("e2fsck", &["-fn", image.to_str().unwrap()]).map(drop)
}

fn holds(text: &str, part: &str) -> Result<(), String> {
    if text.contains(part) {
        Ok(())
    } else {
        Err(format!("no {part:?} in:\n{text}"))
    }
}

fn made_and_shown() -> Outcome {
    let dir = scratch::directory();
    let path = dir.path().join("image");
    let image = path.to_str().unwrap();
    let uuid = "0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d";
    let made = said(&[
        "mkfs",
        "-t",
        "ext4",
        "--size",
        "64M",
        "-b",
        "2k",
        "-I",
        "512",
        "-N",
        "1000",
        "-m",
        "2",
        "-L",
        "name",
        "-U",
        uuid,
        "-O",
        "^resize_inode,orphan_file",
        "-E",
        "root_owner=7:8",
        image,
    ])?;
    holds(&made, uuid)?;
    sound(&path)?;
    let info = said(&["info", image])?;
    for part in ["ext4", "name", uuid, "orphan_file", "2048", "512"] {
        holds(&info, part)?;
    }
    let json = said(&["info", "--json", image])?;
    holds(&json, "\"journal\": false")?;
    let shown = said(&["dump", image])?;
    holds(&shown, "Reserved block count:     655")?;
    holds(&shown, "Group 1: ")?;
    holds(
        &said(&["dump", image, "inode:2"])?,
        "User:     7   Group:     8",
    )?;
    holds(&said(&["dump", image, "dir:/"])?, "lost+found")?;
    holds(
        &said(&["dump", image, "map:8"])?,
        "node in the inode: depth 0",
    )?;
    holds(&said(&["dump", image, "journal"])?, "The log is empty")?;
    Ok(())
}

fn filled() -> Outcome {
    let dir = scratch::directory();
    let (source, path) = (dir.path().join("source"), dir.path().join("image"));
    fs::create_dir_all(source.join("sub/deep"))?;
    let big: Vec<u8> = (0..3_000_000_u32).map(|n| (n / 251) as u8).collect();
    fs::write(source.join("sub/big"), &big)?;
    fs::write(source.join("first"), b"some text\n")?;
    fs::hard_link(source.join("first"), source.join("second"))?;
    std::os::unix::fs::symlink("first", source.join("link"))?;
    let (image, from) = (path.to_str().unwrap(), source.to_str().unwrap());
    said(&[
        "mkfs", "-t", "ext4", "--size", "64M", "-q", "-r", from, image,
    ])?;
    sound(&path)?;
    let inode = said(&["dump", image, "inode:/first"])?;
    holds(&inode, "Links: 2")?;
    holds(&said(&["dump", image, "inode:/link"])?, "Target: first")?;
    let back = Command::new(sapwood())
        .args(["cat", &format!("{image}:sub/big")])
        .output()?;
    if back.stdout != big {
        return Err("sub/big reads back wrong".into());
    }
    Ok(())
}

/// Existing files are kept, and bad requests are refused, each with a reason.
fn refused() -> Outcome {
    let dir = scratch::directory();
    let path = dir.path().join("image");
    let image = path.to_str().unwrap();
    let fails = |args: &[&str], why: &str| -> Result<(), String> {
        let said = process::finish(Command::new(sapwood()).args(args), LIMIT)?;
        if said.status.success() {
            return Err(format!("{args:?} succeeded"));
        }
        holds(&said.all(), why)
    };
    let make = ["mkfs", "-t", "ext4", image];
    said(&["mkfs", "-t", "btrfs", "--size", "128M", "-q", image])?;
    fails(&make, "contains a btrfs file system")?;
    said(&[&make[..], &["-q", "--force"]].concat())?;
    sound(&path)?;
    holds(&said(&["info", image])?, "ext4")?;
    fails(&make, "contains an ext2, ext3 or ext4")?;
    for (option, value, why) in [
        ("-O", "turbo", "unknown feature turbo"),
        ("-O", "bigalloc", "bigalloc is not supported"),
        ("-O", "meta_bg", "exclude each other"),
        ("-b", "64k", "block size 65536"),
        ("-I", "100", "inode size 100"),
        ("-J", "size=4000", "journal of"),
        ("-L", "more_than_16_bytes", "label of 18 bytes"),
    ] {
        fails(&[&make[..], &["--force", option, value]].concat(), why)?;
    }
    fails(&["dump", image, "inode:/nothing"], "there is no /nothing")?;
    fails(&["dump", image, "turbo"], "turbo")?;
    // Whatever was refused left it as it was.
    sound(&path)?;
    Ok(())
}

const QUOTAS: [Need; 4] = [
    machine::KERNEL_EXT4,
    Need::Fuse,
    Need::Program("e2fsck"),
    Need::Program("debugfs"),
];

/// Mounts, changes of size, a check and a repair of an image with quotas.
fn quotas() -> Outcome {
    let dir = scratch::directory();
    let path = dir.path().join("image");
    let image = path.to_str().unwrap();
    let plain = dir.path().join("plain");
    let make = ["mkfs", "-q", "-t", "ext4", "--size", "64M"];
    said(&[&make[..], &[plain.to_str().unwrap()]].concat())?;
    let refused = SapwoodMount::new(&plain, "usrquota").err();
    holds(&refused.unwrap_or_default(), "keeps no user quotas")?;
    said(&[&make[..], &["-O", "quota,project", image]].concat())?;
    let mount = SapwoodMount::new(&path, "usrquota,grpquota,prjquota")?;
    let file = mount.path().join("file");
    fs::write(&file, vec![1; 500_000])?;
    std::os::unix::fs::chown(&file, Some(1234), Some(5678))?;
    Box::new(mount).unmount()?;
    for size in ["+64M", "-80M", "min", "+20M"] {
        said(&["resize", "-q", image, size])?;
        sound(&path)?;
        said(&["check", "-q", image])?;
        let kernel = Driver::Kernel.mount(&path, "ro")?;
        let found = fs::read(kernel.path().join("file"))?;
        kernel.unmount()?;
        if found != vec![1; 500_000] {
            return Err(format!("{size}: other content").into());
        }
    }
    process::run("debugfs", &["-w", "-R", "sif file uid 4321", image])?;
    let found = process::finish(Command::new(sapwood()).args(["check", image]), LIMIT)?;
    holds(&found.all(), "user quota of 4321: no entry")?;
    holds(&found.all(), "user quota of 1234")?;
    said(&["check", "--repair", image])?;
    said(&["check", "-q", image])?;
    sound(&path)?;
    Ok(())
}

const GROWTH: [Need; 4] = [
    machine::KERNEL_EXT4,
    Need::Program("e2fsck"),
    Need::Program("debugfs"),
    Need::Program("resize2fs"),
];

/// A kind of ext4 whose descriptor table is full soon, with blocks of 1 KiB in small groups.
struct Form {
    args: &'static str,
    /// Sizes in MiB: at first, and past the reserved blocks.
    first: u64,
    grown: u64,
    /// Blocks of the classic table after that.
    table: u32,
}

const FORMS: [Form; 10] = [
    form("-b 1024 -g 256 -O ^resize_inode,^64bit -J size=1", 6, 30, 1),
    form("-b 1024 -g 256 -O ^resize_inode -J size=1", 6, 30, 2),
    form("-b 4096 -g 256 -O ^resize_inode", 40, 150, 1),
    form("-b 1024 -g 1024 -E resize=40M -J size=1", 12, 80, 3),
    form(
        "-b 1024 -g 512 -O ^resize_inode,^sparse_super,^64bit",
        12,
        40,
        1,
    ),
    form("-b 1024 -g 512 -O ^resize_inode,sparse_super2", 12, 40, 2),
    form("-b 1024 -g 512 -O ^resize_inode,^flex_bg,^64bit", 12, 40, 1),
    form(
        "-b 1024 -g 1024 -O ^64bit,^metadata_csum,uninit_bg -E resize=40M",
        12,
        90,
        2,
    ),
    form("-t ext2 -b 1024 -g 2048 -E resize=100M", 12, 160, 2),
    form("-t ext3 -b 1024 -g 512 -O ^resize_inode", 12, 40, 1),
];

const fn form(args: &'static str, first: u64, grown: u64, table: u32) -> Form {
    Form {
        args,
        first,
        grown,
        table,
    }
}

const MIB: u64 = 1 << 20;

/// Files that the kernel writes into a mounted form: some, or with `full` as many as fit.
fn write(image: &TempImage, dir: &str, full: bool) -> Result<(), String> {
    let mount = Driver::Kernel.mount(image.path(), "rw")?;
    fill(&mount.path().join(dir), if full { 400 } else { 20 }).map_err(|e| e.to_string())?;
    rustix::fs::sync();
    mount.unmount()
}

/// Files of different lengths and directories in a new directory, up to `many` or until it is full.
fn fill(dir: &Path, many: usize) -> std::io::Result<()> {
    fs::create_dir_all(dir.join("sub"))?;
    for n in 1..=many {
        let mut content = vec![0; n % 7 * 30000 + n];
        fastrand::fill(&mut content);
        let mut made = fs::write(dir.join(format!("f{n}")), content);
        if made.is_ok() && n % 5 == 0 {
            made = fs::create_dir(dir.join(format!("sub/d{n}")));
        }
        match made {
            Err(error) if error.kind() == std::io::ErrorKind::StorageFull => break,
            made => made?,
        }
    }
    for n in (1..=many).filter(|n| n.to_string().starts_with('9')) {
        match fs::remove_file(dir.join(format!("f{n}"))) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            removed => removed?,
        }
    }
    std::os::unix::fs::symlink("target", dir.join("link"))?;
    fs::hard_link(dir.join("f1"), dir.join("sub/other"))
}

/// The same tree, but for inode numbers and maps, which a shrink changes.
fn same(before: &Tree, after: &Tree) -> Result<(), String> {
    let facts = Facts::PLAIN | Facts::DATA | Facts::FLAGS | (Facts::TIMES - Facts::ATIME);
    before.compare(after, |_, _, _| facts)
}

/// Gives an image another size. Both checks find nothing, and the kernel finds the same files.
fn resized(image: &TempImage, size: &str) -> Result<(), String> {
    let failed = |why: String| format!("resize {size}: {why}");
    let before = volume::list(image, Driver::Kernel)?;
    said(&["resize", "-q", image.path().to_str().unwrap(), size]).map_err(failed)?;
    image.check().map_err(failed)?;
    let after = volume::list(image, Driver::Kernel).map_err(failed)?;
    same(&before, &after).map_err(failed)
}

/// The value of a field in the output of `dumpe2fs -h`.
fn header(image: &TempImage, name: &str) -> Result<String, String> {
    let args = ["-h", image.path().to_str().unwrap()];
    let text = process::run("dumpe2fs", &args)?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    Ok(line.unwrap_or_default().trim().to_owned())
}

fn has(image: &TempImage, feature: &str) -> Result<bool, String> {
    let features = header(image, "Filesystem features:")?;
    Ok(features.split_whitespace().any(|word| word == feature))
}

/// Uses the new space, shrinks to each size in MiB, and grows again.
fn up_and_down(image: &TempImage, sizes: &[u64], grown: u64) -> Result<(), String> {
    write(image, "second", true)?;
    image.check()?;
    let mount = Driver::Kernel.mount(image.path(), "rw")?;
    process::shell(mount.path(), "rm -r second/f?* second/sub/d?*", LIMIT)?;
    mount.unmount()?;
    for size in sizes {
        resized(image, &format!("{size}M"))?;
    }
    resized(image, &format!("{grown}M"))?;
    write(image, "third", true)?;
    image.check()?;
    resized(image, "min")
}

fn grow_form(form: &Form) -> Result<(), String> {
    let image = TempImage::by_kernel(&Mkfs::ext4(form.args).sized(form.first * MIB))?;
    write(&image, "first", false)?;
    resized(&image, &format!("{}M", form.grown))?;
    let table = header(&image, "First meta block group:")?;
    if table != form.table.to_string() || !has(&image, "meta_bg")? {
        return Err(format!("the first meta group is {table:?}"));
    }
    if has(&image, "resize_inode")? || !header(&image, "Reserved GDT blocks:")?.is_empty() {
        return Err("blocks are reserved for descriptors".into());
    }
    up_and_down(&image, &[form.grown * 3 / 4, form.first], form.grown + 7)
}

/// Growth past the reserved blocks puts descriptors into meta groups. Without `SAPWOOD_FULL=1` every
/// third form is grown.
fn grown_past_the_blocks_for_descriptors() -> Outcome {
    for form in FORMS.iter().step_by(machine::step(3)) {
        grow_form(form).map_err(|why| format!("{}: {why}", form.args))?;
    }
    Ok(())
}

/// The kernel grows a mounted image past its reserved blocks. False: it does not let this process.
fn grown_by_the_kernel(image: &TempImage, size: u64) -> Result<bool, String> {
    let file = fs::File::options().write(true).open(image.path());
    let longer = file.and_then(|file| file.set_len(size));
    longer.map_err(|error| error.to_string())?;
    let device = Loop::new(image.path(), &[])?;
    let at = scratch::directory();
    let mount = KernelMount::of_device(device.path(), "ext4", "rw", at.path())?;
    let path = device.path().to_str().unwrap();
    let grown = process::run("resize2fs", &[path]);
    mount.unmount()?;
    match grown {
        Ok(_) => Ok(true),
        Err(why) if why.contains("Permission denied") => Ok(false),
        Err(why) => Err(why),
    }
}

/// `resize2fs` grows an image whose table ends at its first block: not past blocks that are
/// reserved, but to the same form.
fn grown_by_the_tool(image: &TempImage) -> Result<(), String> {
    let path = image.path().to_str().unwrap();
    for command in ["feature meta_bg", "set_super_value first_meta_bg 1"] {
        process::run("debugfs", &["-w", "-R", command, path])?;
    }
    process::run("e2fsck", &["-fn", path])?;
    process::run("resize2fs", &["-f", path]).map(drop)
}

/// Groups past the first meta group have copies of the superblock and none of the classic table:
/// 49, 81, and all with a copy beyond.
fn an_image_that_others_grew_past_them() -> Outcome {
    for (args, table) in [
        ("-b 1024 -g 256 -O ^resize_inode,^64bit -J size=1", "1"),
        ("-b 1024 -g 256 -O ^64bit -E resize=14M -J size=1", "2"),
    ] {
        let image = TempImage::by_kernel(&Mkfs::ext4(args).sized(6 * MIB))?;
        write(&image, "first", false)?;
        if !grown_by_the_kernel(&image, 30 * MIB)? {
            machine::note(Some(args), "the kernel does not let this process resize");
            if table != "1" {
                continue;
            }
            grown_by_the_tool(&image)?;
        }
        let found = header(&image, "First meta block group:")?;
        if found != table {
            return Err(format!("{args}: the first meta group is {found:?}").into());
        }
        image.check()?;
        write(&image, "more", true)?;
        image.check()?;
        resized(&image, "40M").map_err(|why| format!("{args}: {why}"))?;
        let mount = Driver::Kernel.mount(image.path(), "rw")?;
        process::shell(mount.path(), "rm -r more", LIMIT)?;
        mount.unmount()?;
        up_and_down(&image, &[26, 7], 33).map_err(|why| format!("{args}: {why}"))?;
    }
    Ok(())
}
