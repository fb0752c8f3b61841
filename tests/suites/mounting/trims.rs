//! `fstrim` of ranges that the kernel refuses.

use std::process::Command;

use libtest_mimic::Trial;
use sapwood_tests::image::{Mkfs, TempImage};
use sapwood_tests::machine::{self, Need};
use sapwood_tests::mount::Driver;
use sapwood_tests::{Outcome, process};

pub(super) fn trials() -> Vec<Trial> {
    let needs = [
        machine::KERNEL,
        machine::KERNEL_EXT4,
        Need::Fuse,
        Need::Program("fstrim"),
    ];
    vec![machine::trial(
        "fstrim_refuses_what_the_kernel_refuses",
        &needs,
        trim,
    )]
}

fn trim() -> Outcome {
    let ranges: &[&[&str]] = &[
        &[],
        &["-o", "1T"],
        &["-o", "1T", "-l", "1M"],
        &["-l", "0"],
        &["-l", "100"],
        &["-l", "1023"],
        &["-l", "1024"],
        &["-l", "4096"],
        &["-o", "1M", "-l", "100"],
        &["-m", "4M"],
        &["-m", "1G"],
        &["-o", "18446744073709551615"],
        &["-o", "4096", "-l", "18446744073709551614"],
        &["-o", "67108863"],
        &["-o", "64M"],
    ];
    let kinds = [
        Mkfs::default().sized(160 << 20),
        Mkfs::ext4("-b 1024").sized(64 << 20),
        Mkfs::ext4("-b 4096").sized(64 << 20),
    ];
    for kind in &kinds {
        let image = TempImage::new(kind)?;
        let mut found = Vec::new();
        for driver in [Driver::Kernel, Driver::Sapwood] {
            let mounted = driver.mount(image.path(), "rw")?;
            let run = |args: &&[&str]| {
                let mut command = Command::new("fstrim");
                let said =
                    process::finish(command.args(*args).arg(mounted.path()), process::ORDINARY)?;
                Ok((
                    said.status.success(),
                    said.stderr.contains("Invalid argument"),
                ))
            };
            let results = ranges.iter().map(run).collect::<Result<Vec<_>, String>>()?;
            mounted.unmount()?;
            found.push(results);
        }
        for (range, (kernel, ours)) in ranges.iter().zip(found[0].iter().zip(&found[1])) {
            if kernel != ours {
                return Err(format!("{kind:?}: fstrim {range:?}: {kernel:?}, {ours:?}").into());
            }
        }
    }
    Ok(())
}
