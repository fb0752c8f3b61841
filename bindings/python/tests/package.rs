//! The Python package: its unit tests, its example programs, and the first example of each page
//! about it.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use sapwood_testing::machine::{Need, left_out};

/// An interpreter that the package supports.
const PYTHON: Need = Need::Other(|| {
    let new = "import sys; sys.exit(sys.version_info < (3, 10))";
    let ran = Command::new("python3").args(["-c", new]).status();
    let there = ran.is_ok_and(|status| status.success());
    (!there).then(|| "no python3 of version 3.10 or newer".to_owned())
});

/// fsspec, installed or where `scripts/test-programs` puts it.
const FSSPEC: Need = Need::Other(|| {
    let imported = python(OsStr::new("-c")).arg("import fsspec").output();
    let there = imported.is_ok_and(|output| output.status.success());
    (!there).then(|| "no fsspec".to_owned())
});

fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Runs a program that must succeed, and returns its output.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (printed, errors) = (shown(&output.stdout), shown(&output.stderr));
    let status = output.status;
    assert!(status.success(), "{command:?}: {status}\n{printed}{errors}");
    printed + &errors
}

/// A directory with the package, made once from its Python sources and the library next to this
/// test. `cargo test` does not build that library: it is built here if it is missing, and is as old
/// as the last `cargo build` otherwise.
fn package() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let test = std::env::current_exe().unwrap();
        let library = test.ancestors().nth(2).unwrap();
        let library = library.join("libsapwood_python.so");
        if !library.exists() {
            let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
            let release = (!cfg!(debug_assertions)).then_some("--release");
            let mut build = Command::new(cargo);
            build.args(["build", "--quiet", "--package", "sapwood-python"]);
            run(build.args(release).current_dir(source("../..")));
        }
        // A temporary directory would stay, because a static is never dropped.
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python");
        let package = dir.join("sapwood");
        if package.exists() {
            fs::remove_dir_all(&package).unwrap();
        }
        fs::create_dir_all(&package).unwrap();
        fs::copy(library, package.join("_sapwood.abi3.so")).unwrap();
        for entry in fs::read_dir(source("python/sapwood")).unwrap() {
            let file = entry.unwrap().path();
            if file.is_file() {
                fs::copy(&file, package.join(file.file_name().unwrap())).unwrap();
            }
        }
        dir
    })
}

/// The interpreter with the package. Warnings are errors. It caches no bytecode, because that would
/// be in the sources.
fn python(argument: impl AsRef<OsStr>) -> Command {
    let cache = std::env::var_os("SAPWOOD_CACHE")
        .map_or_else(|| source("../../target/test-cache"), PathBuf::from);
    let path = [package().to_owned(), cache.join("python")];
    let mut command = Command::new("python3");
    command.args(["-B", "-W", "error"]).arg(argument);
    command.env("PYTHONPATH", std::env::join_paths(path).unwrap());
    command
}

/// Runs the unit tests of a Python file. Fails if there are none.
fn passes(file: &str) {
    let ran = run(python("-m")
        .args(["unittest", file])
        .current_dir(source("tests")));
    assert!(
        ran.contains("\nOK") && !ran.contains("Ran 0 tests"),
        "{ran}"
    );
}

#[test]
fn files_names_and_metadata_of_an_image() {
    if !left_out(&[PYTHON]) {
        passes("test_image");
    }
}

#[test]
fn new_images_and_checks() {
    if !left_out(&[PYTHON]) {
        passes("test_builder");
    }
}

#[test]
fn archives_streams_and_interruption() {
    if !left_out(&[PYTHON]) {
        passes("test_streams");
    }
}

#[test]
fn the_file_system_for_fsspec() {
    if !left_out(&[PYTHON, FSSPEC]) {
        passes("test_filesystem");
    }
}

/// The first Python example of a Markdown page.
fn first_example(text: &str) -> &str {
    let (_, rest) = text.split_once("```python\n").unwrap();
    rest.split_once("```").unwrap().0
}

#[test]
fn the_examples_of_the_readme_and_of_the_docs_run() {
    if left_out(&[PYTHON]) {
        return;
    }
    for page in ["README.md", "../../docs/python.md"] {
        let text = fs::read_to_string(source(page)).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let example = dir.path().join("example.py");
        fs::write(&example, first_example(&text)).unwrap();
        let printed = run(python(&example).current_dir(dir.path()));
        assert_eq!(printed, "etc/hostname of 4 bytes\nTrue\n", "{page}");
    }
}

#[test]
fn the_examples_put_a_file_into_an_image_and_scan_it() {
    if left_out(&[PYTHON]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let agent = dir.path().join("agent");
    fs::write(&agent, "agent").unwrap();
    for kind in ["btrfs", "ext4"] {
        let tree = dir.path().join(format!("{kind}.tree"));
        fs::create_dir_all(tree.join("etc")).unwrap();
        fs::create_dir_all(tree.join("var/lib/dpkg")).unwrap();
        let release = "NAME=x\nPRETTY_NAME=\"Some System 1\"\n";
        fs::write(tree.join("etc/os-release"), release).unwrap();
        let status = "Package: a\nVersion: 1\n\nPackage: b\n";
        fs::write(tree.join("var/lib/dpkg/status"), status).unwrap();
        let image = dir.path().join(kind);
        run(python(source("examples/build.py"))
            .arg(kind)
            .args([&tree, &image]));
        let inject = source("examples/inject.py");
        run(python(inject).args([&image, &agent]).arg("usr/bin"));

        let options = sapwood::CheckOptions::default();
        let report = sapwood::check(&image, &options, &mut |_| {}).unwrap();
        assert!(report.clean && report.findings.is_empty(), "{report:?}");
        let fs = sapwood::open(&image).unwrap();
        assert_eq!(fs.read_to_string("usr/bin/agent").unwrap(), "agent");
        assert_eq!(fs.metadata("usr/bin/agent").unwrap().uid(), 0);
        fs.set_permissions("usr/bin/agent", 0o4755).unwrap();
        fs.close().unwrap();

        let printed = run(python(source("examples/scan.py")).arg(&image));
        let expected = "system: Some System 1\npackages: 2\n\
                        set-id: -rwsr-xr-x /usr/bin/agent (owner 0)\n";
        assert_eq!(printed, expected);
    }
    let missing = python(source("examples/scan.py")).arg(&agent).output();
    let missing = missing.unwrap();
    let said = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert_eq!(missing.status.code(), Some(1), "{said}");
    assert!(
        said.contains("agent") && !said.contains("Traceback"),
        "{said}"
    );
}
