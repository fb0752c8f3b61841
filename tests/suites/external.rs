//! A Cargo project outside of the workspace that depends on the library by its path.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use libtest_mimic::Trial;
use sapwood::{CheckOptions, ImageBuilder};
use sapwood_tests::mount::workspace;
use sapwood_tests::{Need, Outcome, process, scratch, trial};

/// All dependencies are compiled once more.
const LIMIT: Duration = Duration::from_secs(1800);

/// The example of the design page, as it is written there.
const PROGRAM: &str = r#"
use std::io::{Read, Write};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let reader = std::fs::File::open("root.tar")?;

    let fs = sapwood::open("disk.img")?;
    for entry in fs.read_dir("etc")? { println!("{}", entry?.file_name().display()); }
    let text = fs.read_to_string("etc/fstab")?;
    let mut same = String::new();
    fs.open("etc/fstab")?.read_to_string(&mut same)?;
    assert_eq!(text, same);
    let mut f = fs.create("etc/hostname")?;
    f.write_all(b"box\n")?; f.sync_all()?;
    fs.snapshot("/", "/snapshots/monday")?;
    fs.close()?;
    sapwood::ImageBuilder::ext4().from_tar(reader)?.write_to("root.img")?;

    drop(f);
    let compression = sapwood::internal::btrfs::Compression::Lzo;
    let fs = sapwood::Options::new().read_only(true).compress(compression).open("disk.img")?;
    print!("{}", fs.read_to_string("snapshots/monday/etc/hostname")?);
    assert_eq!(sapwood::open("root.tar").unwrap_err().kind(), sapwood::ErrorKind::NoFileSystem);
    Ok(())
}
"#;

pub(crate) fn trials() -> Vec<Trial> {
    let needs = [Need::Full, Need::Program("cargo"), Need::Program("tar")];
    vec![trial(
        "a_project_outside_compiles_the_example_and_it_does_what_it_says",
        &needs,
        external,
    )]
}

fn external() -> Outcome {
    let dir = scratch::directory();
    let project = dir.path().join("project");
    fs::create_dir_all(project.join("src"))?;
    fs::write(project.join("src/main.rs"), PROGRAM)?;
    let library = workspace().join("crates/sapwood");
    let manifest = format!(
        "[package]\nname = \"outside\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n\
         [dependencies]\nsapwood = {{ path = {:?} }}\n\n[workspace]\n",
        library.display()
    );
    fs::write(project.join("Cargo.toml"), manifest)?;
    // The versions that are on this machine.
    fs::copy(workspace().join("Cargo.lock"), project.join("Cargo.lock"))?;
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("outside");
    let mut build = Command::new("cargo");
    build
        .args(["build", "--offline", "--quiet"])
        .current_dir(&project)
        .env("CARGO_TARGET_DIR", &target);
    process::succeed(&mut build, LIMIT)?;

    let image = dir.path().join("disk.img");
    ImageBuilder::btrfs().size(128 << 20).write_to(&image)?;
    let disk = sapwood::open(&image)?;
    disk.create_dir("etc")?;
    disk.create_dir("snapshots")?;
    disk.write("etc/fstab", "none")?;
    disk.close()?;
    process::shell(
        dir.path(),
        "mkdir root && echo inside >root/file && tar -cf root.tar -C root .",
        LIMIT,
    )?;
    let mut program = Command::new(target.join("debug/outside"));
    let printed = process::succeed(program.current_dir(dir.path()), LIMIT)?;
    if printed != "fstab\nbox\n" {
        return Err(format!("printed {printed:?}").into());
    }
    let root = sapwood::open(dir.path().join("root.img"))?;
    if root.read("file")? != b"inside\n" {
        return Err("root.img lacks the file of the archive".into());
    }
    root.close()?;
    for image in ["disk.img", "root.img"] {
        let path = dir.path().join(image);
        let report = sapwood::check(path, &CheckOptions::default(), &mut |_| {})?;
        if !report.clean {
            return Err(format!("{image}: {:?}", report.findings).into());
        }
    }
    Ok(())
}
