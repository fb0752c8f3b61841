//! Both directions with the kernel, over many variants of btrfs: Sapwood reads the kernel's files
//! byte for byte, and the kernel reads Sapwood's files, reports no error, and changes them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use libtest_mimic::Trial;
use sapwood_testing::tree::{Detail, Tree};
use sapwood_tests::compare::{Compare, compare};
use sapwood_tests::fill::{self, Limits};
use sapwood_tests::image::{Mkfs, TempImage};
use sapwood_tests::matrix::{Variant, variants};
use sapwood_tests::mount::Driver;
use sapwood_tests::volume::{check, list, list_by_library, ours};
use sapwood_tests::{Need, Outcome, machine, process, trial};

/// Fills an image through mounts by `driver`; a listing of it as it was before the last unmount.
fn filled(image: &TempImage, driver: Driver, variant: &Variant) -> Result<Tree, String> {
    let (limits, options) = (variant.limits(), variant.options_for(driver));
    let mount = driver.mount(image.path(), options)?;
    fill::fill(mount.path(), limits)?;
    let before = Tree::of_mount(mount.path(), Detail::Sums)?;
    mount.unmount()?;
    // Nothing may change by itself over an unmount.
    let mount = driver.mount(image.path(), options)?;
    let after = Tree::of_mount(mount.path(), Detail::Sums)?;
    mount.unmount()?;
    compare(&before, &after, Compare::Live)
        .map_err(|why| format!("before and after an unmount: {why}"))?;
    fill::subvolumes::fill(image, driver, options, limits.seed)?;
    let mount = driver.mount(image.path(), options)?;
    let listing = Tree::of_mount(mount.path(), Detail::Sums)?;
    mount.unmount()?;
    Ok(listing)
}

/// The kernel's tree for this variant, filled in the same way.
fn reference(variant: &Variant) -> Result<Arc<Tree>, String> {
    type Cell = Arc<OnceLock<Result<Arc<Tree>, String>>>;
    static KNOWN: Mutex<Option<HashMap<(Limits, &str), Cell>>> = Mutex::new(None);
    let outcome = variant.outcome();
    let cell = {
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(known.get_or_insert_default().entry(outcome).or_default())
    };
    let make = || {
        // Ours may be one that only `sapwood mkfs` makes.
        let alike = variants().into_iter().filter(|other| !other.by_us());
        let fitting = alike.into_iter().find(|other| other.outcome() == outcome);
        let variant = fitting.ok_or("no variant of the kernel's has these limits")?;
        let image = TempImage::by_kernel(&Mkfs {
            size: 2 << 30,
            ..variant.mkfs.clone()
        })?;
        Ok(Arc::new(filled(&image, Driver::Kernel, &variant)?))
    };
    cell.get_or_init(make).clone()
}

/// The kernel fills, we read.
fn kernel_to_us(variant: &Variant, ours: Driver) -> Outcome {
    let image = TempImage::new(&variant.mkfs)?;
    filled(&image, Driver::Kernel, variant)?;
    let expected = list(&image, Driver::Kernel)?;
    if ours == Driver::Sapwood {
        let found = list_by_library(&image)?;
        compare(&expected, &found, Compare::SameImage)
            .map_err(|why| format!("through the library: {why}"))?;
    }
    let found = list(&image, ours)?;
    compare(&expected, &found, Compare::SameImage)
        .map_err(|why| format!("through a mount: {why}"))?;
    Ok(())
}

/// We fill, the kernel reads and continues.
fn us_to_kernel(variant: &Variant, ours: Driver) -> Outcome {
    let image = TempImage::new(&variant.mkfs)?;
    let expected = filled(&image, ours, variant)?;
    check(&image)?;
    let found = list(&image, Driver::Kernel)?;
    compare(&expected, &found, Compare::SameImage)
        .map_err(|why| format!("the kernel reads: {why}"))?;
    compare(&*reference(variant)?, &found, Compare::AlikeFill)
        .map_err(|why| format!("the kernel's tree and ours: {why}"))?;
    let mount = Driver::Kernel.mount(image.path(), variant.options)?;
    process::shell(mount.path(), GO_ON, Duration::from_secs(300))?;
    let expected = Tree::of_mount(mount.path(), Detail::Sums)?;
    mount.unmount()?;
    check(&image)?;
    let found = match ours {
        Driver::Kernel => list(&image, ours)?,
        Driver::Sapwood => list_by_library(&image)?,
    };
    compare(&expected, &found, Compare::SameImage)
        .map_err(|why| format!("after the kernel went on: {why}"))?;
    Ok(())
}

/// The kernel's changes of Sapwood's tree.
const GO_ON: &str = "
    rm -rf deep xattrs/many links/many
    cp -a --reflink=always shared shared-again
    cp -a --reflink=never data data-again
    echo more >> data/grown
    truncate -s 100 data/rewritten
    fallocate -p -o 4096 -l 8192 sparse/islands
    setfattr -n user.kernel -v was-here names
    mv kinds kinds-moved
    for i in $(seq 300); do echo $i > links/elsewhere/$i; done
    btrfs -q subvolume snapshot sub/branch sub/later
    btrfs -q subvolume delete --commit-after sub/twig
    btrfs filesystem sync .
";

fn both_ways(variant: &Variant, ours: Driver, label: &str, needs: &[Need]) -> [Trial; 2] {
    let (read, write) = (variant.clone(), variant.clone());
    let name = format!("kernel_to_{label}::{}", variant.name);
    let read = trial(name, needs, move || kernel_to_us(&read, ours));
    let name = format!("{label}_to_kernel::{}", variant.name);
    let write = trial(name, needs, move || us_to_kernel(&write, ours));
    [read, write]
}

pub(crate) fn trials() -> Vec<Trial> {
    let tools = [machine::KERNEL, Need::Program("setfattr")];
    let mut mounts = tools.to_vec();
    mounts.push(Need::Fuse);
    let mut trials = Vec::new();
    for variant in variants() {
        let long = (!variant.always()).then_some(Need::Full);
        let tools: Vec<_> = tools.iter().copied().chain(long).collect();
        let mounts: Vec<_> = mounts.iter().copied().chain(long).collect();
        // With the kernel on both sides the tests prove themselves.
        if !variant.by_us() && (variant.name == "old" || ours() == Driver::Kernel) {
            trials.extend(both_ways(&variant, Driver::Kernel, "itself", &tools));
        }
        if ours() == Driver::Sapwood {
            trials.extend(both_ways(&variant, Driver::Sapwood, "us", &mounts));
        }
    }
    trials
}
