//! Disasters: images that the kernel filled are damaged, and `sapwood rescue copy` has to get at
//! least as many files out of them, byte for byte, as the tools of the format.
//!
//! A test prints its row of the table: files that are the same under their path, and files whose
//! content is anywhere in the output, by Sapwood and by the tools. `make disasters` prints all.

mod damage;
mod outcome;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use libtest_mimic::Trial;
use sapwood::Kind;
use sapwood_testing::FileContent;
use sapwood_testing::oracle::KernelMount;
use sapwood_tests::image::{Mkfs, TempImage};
use sapwood_tests::mount::sapwood;
use sapwood_tests::random::Random;
use sapwood_tests::{Need, Outcome, process, scratch, trial};

use outcome::{Files, recovered_by_tools, undeleted_by_tool};

const LIMIT: Duration = Duration::from_secs(300);

/// A kind of damage.
pub(crate) struct Disaster {
    name: &'static str,
    kind: Kind,
    damage: fn(&TempImage),
    /// The least percentage of files that is recovered with its path.
    paths: u64,
    /// The least percentage of files whose content is recovered.
    contents: u64,
    /// Runs without `SAPWOOD_FULL`.
    short: bool,
}

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials: Vec<Trial> = damage::ALL.iter().map(disaster).collect();
    for kind in Kind::ALL {
        let needs = [kernel(kind)];
        let name = |what| format!("{kind}::{what}");
        trials.push(trial(
            name("a_report_names_the_damage"),
            &needs,
            move || a_report_names_the_damage(kind),
        ));
        trials.push(trial(name("deleted_files_are_found"), &needs, move || {
            deleted_files(kind)
        }));
    }
    trials.push(trial(
        "btrfs::older_generations",
        &[kernel(Kind::Btrfs)],
        older_generations,
    ));
    trials
}

fn kernel(kind: Kind) -> Need {
    Need::Kernel(match kind {
        Kind::Btrfs => sapwood_testing::oracle::Kind::Btrfs,
        Kind::Ext4 => sapwood_testing::oracle::Kind::Ext4,
    })
}

fn disaster(disaster: &'static Disaster) -> Trial {
    let mut needs = vec![kernel(disaster.kind)];
    if !disaster.short {
        needs.push(Need::Full);
    }
    let name = format!("{}::{}", disaster.kind, disaster.name);
    trial(&name, &needs, move || run(disaster))
}

/// Fills a directory with files of different sizes, in several commits.
fn fill(mount: &KernelMount, kind: Kind) {
    let top = mount.path();
    let mut random = Random::new(7);
    for round in 0..3 {
        for dir in 0..5 {
            let dir = top.join(format!("dir{dir}/sub{round}"));
            fs::create_dir_all(&dir).unwrap();
            for file in 0..30 {
                let sizes = [10, 300, 3000, 9000, 40_000];
                let len = sizes[random.below(5) as usize];
                fs::write(dir.join(format!("file{file}")), random.bytes(len)).unwrap();
            }
        }
        fs::create_dir_all(top.join("big")).unwrap();
        fs::write(top.join(format!("big/{round}")), random.bytes(2 << 20)).unwrap();
        symlink("../dir0", top.join(format!("big/link{round}"))).unwrap();
        let from = top.join(format!("dir0/sub{round}/file2"));
        fs::hard_link(from, top.join(format!("big/hard{round}"))).unwrap();
        if kind == Kind::Btrfs && round == 1 {
            mount.shell("btrfs subvolume create vol; head -c 50000 /dev/urandom >vol/in");
            mount
                .shell("sync; btrfs subvolume snapshot vol snap; head -c 9000 /dev/urandom >vol/b");
        }
        mount.shell("sync");
    }
    fs::create_dir(top.join("many")).unwrap();
    for file in 0..1500 {
        fs::write(
            top.join(format!("many/name-{file:05}")),
            format!("content {file}"),
        )
        .unwrap();
    }
    mount.shell("sync");
}

/// A filled image, made once for all tests, and its files.
fn filled(kind: Kind) -> &'static (TempImage, Files) {
    static IMAGES: [OnceLock<(TempImage, Files)>; 2] = [const { OnceLock::new() }; 2];
    IMAGES[usize::from(kind == Kind::Ext4)].get_or_init(|| {
        let how = Mkfs {
            size: 400 << 20,
            ..match kind {
                Kind::Btrfs => Mkfs::with(""),
                Kind::Ext4 => Mkfs::ext4("-b 4096"),
            }
        };
        let image = TempImage::by_kernel(&how).unwrap();
        let mount = KernelMount::new(image.path(), "rw").unwrap();
        fill(&mount, kind);
        let files = Files::of(mount.path());
        mount.unmount().unwrap();
        (image, files)
    })
}

fn rescue(image: &Path, to: &Path, more: &[&str]) -> Result<process::Said, String> {
    let mut command = Command::new(sapwood());
    command.args(["rescue", "copy", "--quiet"]).args(more);
    process::finish(command.arg(image).arg(to), LIMIT)
}

fn run(disaster: &Disaster) -> Outcome {
    let (image, files) = filled(disaster.kind);
    let image = image.copy()?;
    (disaster.damage)(&image);
    let before = FileContent::of(image.path()).unwrap();
    let to = scratch::directory();
    // An image with another format over it has to be told.
    let kind = disaster.kind.to_string();
    let said = rescue(image.path(), &to.path().join("out"), &["--kind", &kind])?;
    if !matches!(said.status.code(), Some(0 | 1 | 3)) {
        return Err(format!("{}\n{}", said.status, process::tail(&said.all())).into());
    }
    if FileContent::of(image.path()).unwrap() != before {
        return Err("the image was changed".into());
    }
    let output = Files::of(&to.path().join("out"));
    let ours = files.found_in(&output);
    let all = files.count();
    let mut row = format!("| {} | {} | {ours} |", disaster.kind, disaster.name);
    let mut ahead = Vec::new();
    for (tool, recovered) in recovered_by_tools(&image, to.path()) {
        let theirs = files.found_in(&recovered);
        row += &format!(" {tool}: {theirs} |");
        if ours.contents < theirs.contents || ours.paths < theirs.paths {
            let some = files.better_in(&recovered, &output);
            ahead.push(format!("{tool} recovers {theirs}, not {ours}: {some:?}"));
        }
    }
    println!("{row} {all} |");
    let least = |percent: u64| (all * percent).div_ceil(100);
    if !ahead.is_empty() {
        return Err(ahead.join(", ").into());
    }
    if ours.paths < least(disaster.paths) || ours.contents < least(disaster.contents) {
        let tail = process::tail(&said.all());
        return Err(format!("only {ours} of {all} files are recovered\n{tail}").into());
    }
    Ok(())
}

/// A report has the path and the range of a damaged file, and the file has a hole there.
fn a_report_names_the_damage(kind: Kind) -> Outcome {
    let (image, _) = filled(kind);
    let image = image.copy()?;
    let to = scratch::directory();
    let out = to.path().join("out");
    let whole = rescue(image.path(), &out, &[])?;
    if !whole.status.success() {
        return Err(format!("of an intact image: {}", whole.all()).into());
    }
    let report = to.path().join("report");
    let copied = fs::read(out.join("big/1")).unwrap();
    damage::destroy_for_good(&image, &copied[1 << 20..(1 << 20) + 4096]);
    let args = ["--report", report.to_str().unwrap()];
    let said = rescue(image.path(), &to.path().join("again"), &args)?;
    if said.status.code() != Some(1) {
        return Err(format!("{}: {}", said.status, said.all()).into());
    }
    let report: serde_json::Value =
        serde_json::from_slice(&fs::read(&report).unwrap()).map_err(|error| error.to_string())?;
    let lost = report["lost"].as_array().map_or(0, Vec::len);
    let partial = report["partial"].as_array().map_or(0, Vec::len);
    if lost + partial == 0 {
        return Err(format!("the report is empty: {report}").into());
    }
    Ok(())
}

/// Directories that were removed come back under their paths, and no file with the content of
/// another one.
fn deleted_files(kind: Kind) -> Outcome {
    let (image, files) = filled(kind);
    let image = image.copy()?;
    let mount = KernelMount::new(image.path(), "rw")?;
    // The journal has what a transaction after the mount wrote.
    mount.shell("for file in dir*/sub*/* big/* many/*; do touch -ch $file; done; sync");
    mount.shell("rm -r dir1 big many/name-0*; sync");
    let removed = files.without(&Files::of(mount.path()));
    mount.unmount()?;
    let to = scratch::directory();
    let out = to.path().join("out");
    let said = rescue(image.path(), &out, &["--deleted"])?;
    if !matches!(said.status.code(), Some(0 | 1)) {
        return Err(format!("{}: {}", said.status, said.all()).into());
    }
    let found = removed.found_in(&Files::of(&out));
    let all = removed.count();
    let tool = undeleted_by_tool(&image, to.path()).map(|files| removed.found_in(&files));
    let theirs = tool.map_or(String::new(), |tool| format!("extundelete: {tool}"));
    println!("| {kind} | rm -r | {found} | {theirs} | {all} |");
    if tool.is_some_and(|tool| tool.contents > found.contents) {
        return Err(format!("{theirs}, not {found}").into());
    }
    let least = match kind {
        // A second removal may overwrite blocks of the state before the first one.
        Kind::Btrfs => all * 9 / 10,
        // The inodes of three hard links have other names, so these were not deleted.
        Kind::Ext4 => all - 3,
    };
    if all < 1000 || found.paths < least {
        return Err(format!("{found} of {all} files: {}", process::tail(&said.all())).into());
    }
    if kind == Kind::Btrfs {
        return Ok(());
    }
    let mount = KernelMount::new(image.path(), "rw")?;
    mount.shell("cat /dev/urandom > new || true; sync");
    mount.unmount()?;
    let again = to.path().join("again");
    let report = to.path().join("report");
    let args = ["--deleted", "--report", report.to_str().unwrap()];
    let said = rescue(image.path(), &again, &args)?;
    if said.status.code() != Some(1) {
        return Err(format!("{}: {}", said.status, said.all()).into());
    }
    let report: serde_json::Value =
        serde_json::from_slice(&fs::read(&report).unwrap()).map_err(|error| error.to_string())?;
    let partial = report["partial"].as_array().map_or(0, Vec::len) as u64;
    let (output, whole) = (Files::of(&again), removed.found_in(&Files::of(&again)));
    if partial == 0 || output.count() > whole.paths + partial {
        let text = format!("{} files, {whole}, {partial} in part", output.count());
        return Err(text.into());
    }
    Ok(())
}

/// A file that was removed is in an older generation.
fn older_generations() -> Outcome {
    let (image, _) = filled(Kind::Btrfs);
    let image = image.copy()?;
    let generation = damage::generation(&image);
    let mount = KernelMount::new(image.path(), "rw")?;
    let wanted = fs::read(mount.join("big/1")).unwrap();
    fs::remove_dir_all(mount.join("big")).unwrap();
    mount.shell("sync");
    mount.unmount()?;
    let to = scratch::directory();
    let place = format!("{}@{generation}:big/1", image.path().display());
    let said = rescue(Path::new(&place), to.path(), &[])?;
    if !said.status.success() {
        return Err(said.all().into());
    }
    if fs::read(to.path().join("1")).unwrap() == wanted {
        Ok(())
    } else {
        Err("the content differs".into())
    }
}
