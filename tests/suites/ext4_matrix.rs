//! Both directions with the kernel, over many variants of ext4: Sapwood reads the kernel's files
//! byte for byte and changes them, and the kernel reads Sapwood's files, reports no error, and
//! changes them.

use std::fs;
use std::path::Path;
use std::time::Duration;

use libtest_mimic::Trial;
use sapwood_testing::FileContent;
use sapwood_testing::tree::{Detail, Facts, Tree};
use sapwood_tests::compare::{Compare, compare};
use sapwood_tests::ext4::{Variant, variants};
use sapwood_tests::fill::{self, Limits};
use sapwood_tests::image::{Mkfs, TempImage};
use sapwood_tests::mount::Driver;
use sapwood_tests::random::Random;
use sapwood_tests::volume::{check, list, list_by_library, ours};
use sapwood_tests::{Need, Outcome, machine, process, scratch, trial};

/// The changes of a tree that the other driver made.
const GO_ON: &str = "
    rm -rf deep xattrs/many links/many
    cp -a data data-again
    echo more >> data/grown
    truncate -s 100 data/rewritten
    fallocate -p -o 4096 -l 8192 sparse/islands
    setfattr -n user.later -v was-here names
    mv kinds kinds-moved
    for i in $(seq 300); do echo $i > links/elsewhere/$i; done
    rm -rf big
    mkdir -p new/tree/below; ln -s tree new/link; cp -a data/text-* new/tree/below/
    sync -f .
";

/// Fills an image through mounts by `driver`; a listing of it as it was before the last unmount.
fn filled(image: &TempImage, driver: Driver, variant: &Variant) -> Result<Tree, String> {
    let mount = driver.mount(image.path(), variant.options)?;
    fill::fill(mount.path(), variant.limits())?;
    let before = Tree::of_mount(mount.path(), Detail::Sums)?;
    mount.unmount()?;
    // Nothing may change by itself over an unmount.
    let mount = driver.mount(image.path(), variant.options)?;
    let after = Tree::of_mount(mount.path(), Detail::Sums)?;
    mount.unmount()?;
    // The kernel finds data and holes by the pages in its cache, and by blocks only afterwards.
    if driver == Driver::Sapwood {
        compare(&before, &after, Compare::Live)
            .map_err(|why| format!("before and after an unmount: {why}"))?;
    }
    Ok(after)
}

/// Changes the files of an image. Returns the tree after that.
fn go_on(image: &TempImage, driver: Driver, variant: &Variant) -> Result<Tree, String> {
    let mount = driver.mount(image.path(), variant.options)?;
    process::shell(mount.path(), GO_ON, Duration::from_secs(300))?;
    mount.unmount()?;
    check(image)?;
    list(image, driver)
}

fn same(expected: &Tree, found: &Tree, what: &str) -> Result<(), String> {
    compare(expected, found, Compare::SameImage).map_err(|why| format!("{what}: {why}"))
}

/// The kernel fills, we read and continue.
fn kernel_to_us(variant: &Variant, ours: Driver) -> Outcome {
    let image = TempImage::new(&variant.mkfs)?;
    filled(&image, Driver::Kernel, variant)?;
    let expected = list(&image, Driver::Kernel)?;
    if ours == Driver::Sapwood {
        same(&expected, &list_by_library(&image)?, "through the library")?;
    }
    same(&expected, &list(&image, ours)?, "through a mount")?;
    // Reading changed nothing.
    image.check_by_kernel()?;
    if variant.read_only {
        return Ok(());
    }
    let expected = go_on(&image, ours, variant)?;
    let found = list(&image, Driver::Kernel)?;
    same(&expected, &found, "the kernel reads what we went on with")?;
    Ok(())
}

/// We fill, the kernel reads and continues.
fn us_to_kernel(variant: &Variant, ours: Driver) -> Outcome {
    let image = TempImage::new(&variant.mkfs)?;
    let expected = filled(&image, ours, variant)?;
    check(&image)?;
    let found = list(&image, Driver::Kernel)?;
    same(&expected, &found, "the kernel reads")?;
    let reference = TempImage::by_kernel(&variant.mkfs)?;
    let reference = filled(&reference, Driver::Kernel, variant)?;
    compare(&reference, &found, Compare::AlikeTree)
        .map_err(|why| format!("the kernel's tree and ours: {why}"))?;
    let expected = go_on(&image, Driver::Kernel, variant)?;
    let found = match ours {
        Driver::Kernel => list(&image, ours)?,
        Driver::Sapwood => list_by_library(&image)?,
    };
    same(&expected, &found, "after the kernel went on")?;
    Ok(())
}

/// Blocks that are larger than a page, which not every kernel mounts: mke2fs fills, we read.
fn large_blocks(size: usize) -> Outcome {
    let source = scratch::directory();
    let limits = Limits {
        large: 1 << 20,
        ..Limits::ext4(7, 4096, true)
    };
    fill_plainly(source.path(), limits)?;
    let args = format!("-b {size} -d {}", source.path().display());
    let image = TempImage::by_kernel(&Mkfs::ext4(&args))?;
    let (expected, found) = (
        Tree::of_mount(source.path(), Detail::Sums)?,
        list_by_library(&image)?,
    );
    let new = |line: &String| line.ends_with("missing in the first");
    // The layout is mke2fs's choice. Of a directory only the mode must agree.
    let all = expected.differences(&found, |path, node, _| match (path, node.is_dir()) {
        (".", _) => Facts::empty(),
        (_, true) => Facts::KIND | Facts::PERM,
        _ => Facts::MODE | Facts::SIZE | Facts::CONTENT | Facts::XATTRS,
    });
    if let Some(difference) = all.iter().find(|line| !new(line)) {
        return Err(difference.clone().into());
    }
    // New files in the image are the ones that mke2fs makes.
    if all != ["lost+found: missing in the first"] {
        return Err(format!("not just lost+found is new: {all:?}").into());
    }
    Ok(())
}

/// Files of all sizes around block sizes, directories of many names, links, attributes.
fn fill_plainly(root: &Path, limits: Limits) -> Result<(), String> {
    let mut random = Random::new(limits.seed);
    let mut fill = || -> std::io::Result<()> {
        for size in [0, 1, 60, 4096, 65_535, 65_536, 65_537, limits.large] {
            fs::write(root.join(format!("bytes-{size}")), random.bytes(size))?;
        }
        for at in 0..limits.names {
            let dir = root.join(format!("dir-{}", at % 3));
            fs::create_dir_all(&dir)?;
            fs::write(dir.join(format!("name-{at}-{}", "n".repeat(at % 200))), [])?;
        }
        std::os::unix::fs::symlink("bytes-60", root.join("link"))?;
        std::os::unix::fs::symlink("x".repeat(1000), root.join("long-link"))?;
        let with = root.join("bytes-1");
        let none = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&with, "user.small", b"value", none)?;
        rustix::fs::setxattr(&with, "user.large", &random.bytes(2000), none)?;
        Ok(())
    };
    fill().map_err(|error| error.to_string())
}

/// An image with a feature that Sapwood does not support is refused with its name, and nothing is
/// changed. With any other feature, writing to the image keeps it valid.
fn refused_or_right(args: &str, feature: &str) -> Outcome {
    let image = TempImage::by_kernel(&Mkfs::ext4(args))?;
    let before = FileContent::of(image.path())?;
    match Driver::Sapwood.mount(image.path(), "rw") {
        Ok(mount) => {
            let limits = Limits::ext4(3, 4096, true);
            fill::fill(mount.path(), limits)?;
            mount.unmount()?;
            check(&image)?;
            Ok(())
        }
        Err(why) if !why.contains(feature) => Err(format!("not for {feature}: {why}").into()),
        Err(_) if before != FileContent::of(image.path())? => Err("the image changed".into()),
        Err(_) => Ok(()),
    }
}

/// Images with a file system that may be refused, each with the word for the reason.
const REFUSALS: &[(&str, &str, &str)] = &[
    ("quota", "-O quota", "quota"),
    ("project-quota", "-O project,quota", "quota"),
    ("bigalloc", "-O bigalloc", "bigalloc"),
    ("encrypt", "-O encrypt", "encrypt"),
    ("verity", "-O verity", "verity"),
    ("casefold", "-O casefold", "casefold"),
    ("mmp", "-O mmp", "mmp"),
    ("stable-inodes", "-O stable_inodes", "stable_inodes"),
];

pub(crate) fn trials() -> Vec<Trial> {
    let tools = [machine::KERNEL_EXT4, Need::Program("setfattr")];
    let mounts = [&tools[..], &[Need::Fuse]].concat();
    let (label, needs) = match ours() {
        Driver::Kernel => ("itself", &tools[..]),
        Driver::Sapwood => ("us", &mounts[..]),
    };
    let mut trials = Vec::new();
    for variant in variants() {
        let long = (!variant.always()).then_some(Need::Full);
        let needs: Vec<_> = needs.iter().copied().chain(long).collect();
        let both = both_ways(&variant, ours(), label, &needs);
        trials.extend(both);
        // With the kernel on both sides the tests prove themselves.
        if variant.name == "default" && ours() == Driver::Sapwood {
            trials.extend(both_ways(&variant, Driver::Kernel, "itself", &tools));
        }
    }
    if ours() == Driver::Kernel {
        return trials;
    }
    for size in [8192, 16384, 32768, 65536] {
        let name = format!("read::blocks-{}k", size >> 10);
        trials.push(trial(name, &mounts, move || large_blocks(size)));
    }
    for (name, args, feature) in REFUSALS {
        let name = format!("refused_or_right::{name}");
        trials.push(trial(name, &mounts, || refused_or_right(args, feature)));
    }
    trials
}

fn both_ways(variant: &Variant, ours: Driver, label: &str, needs: &[Need]) -> Vec<Trial> {
    let impossible = machine::missing(needs)
        .is_none()
        .then(|| variant.impossible());
    let impossible = impossible.flatten();
    let one = |name: String, run: fn(&Variant, Driver) -> Outcome| {
        if let Some(why) = &impossible {
            eprintln!("{name} is left out: {why}");
            return Trial::test(name, || Ok(())).with_ignored_flag(true);
        }
        let variant = variant.clone();
        trial(name, needs, move || run(&variant, ours))
    };
    let mut trials = vec![one(
        format!("kernel_to_{label}::{}", variant.name),
        kernel_to_us,
    )];
    if !variant.read_only {
        let name = format!("{label}_to_kernel::{}", variant.name);
        trials.push(one(name, us_to_kernel));
    }
    trials
}
