//! The library as programs in C, Python and Go see it.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use sapwood_testing::machine::{Need, left_out};
use tempfile::TempDir;

const GCC: Need = Need::Program("cc");

fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Runs a program that must succeed, and returns its output.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        shown(&output.stdout),
        shown(&output.stderr)
    );
    shown(&output.stdout)
}

/// A directory with the library, made once from the archive that `cargo build` puts next to this
/// test; `cargo test` makes none.
fn library() -> &'static Path {
    static MADE: OnceLock<TempDir> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        let test = std::env::current_exe().unwrap();
        let archive = test.ancestors().nth(2).unwrap().join("libsapwood_capi.a");
        if !archive.exists() {
            let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
            let release = (!cfg!(debug_assertions)).then_some("--release");
            let mut build = Command::new(cargo);
            build.args(["build", "--quiet", "--package", "sapwood-capi"]);
            run(build.args(release).current_dir(source("../..")));
        }
        let dir = tempfile::tempdir().unwrap();
        let script = source("../../scripts/libsapwood");
        run(Command::new(script).arg(archive).arg(dir.path()));
        dir
    });
    made.path()
}

/// Compiles the example for C.
fn compiled(dir: &Path, link: &[&OsStr]) -> PathBuf {
    let program = dir.join("image");
    let strict = [
        "-std=c11",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-pedantic",
        "-g",
        "-D_GNU_SOURCE",
    ];
    let mut command = Command::new("cc");
    command.args(strict).arg("-I").arg(library());
    command
        .arg("-o")
        .arg(&program)
        .arg(source("examples/image.c"));
    run(command.args(link));
    program
}

fn dynamic(dir: &Path) -> PathBuf {
    let at = library().as_os_str();
    let found = [
        OsStr::new("-Wl,-rpath"),
        OsStr::new("-Xlinker"),
        at,
        OsStr::new("-L"),
        at,
    ];
    let link: Vec<&OsStr> = found.into_iter().chain([OsStr::new("-lsapwood")]).collect();
    compiled(dir, &link)
}

fn works_on_both_formats(mut program: impl FnMut() -> Command) {
    for kind in ["btrfs", "ext4"] {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        let said = run(program().arg(kind).arg(&image));
        assert!(
            said.starts_with("sapwood ") && said.contains(kind),
            "{said}"
        );
        let report = sapwood::check(&image, &sapwood::CheckOptions::default(), &mut |_| {});
        let report = report.unwrap();
        assert!(report.clean && report.findings.is_empty(), "{report:?}");
        let label = sapwood::info(&image).unwrap().label;
        assert!(label.starts_with("from "), "{label}");
    }
}

/// The functions that the header declares.
fn declared() -> BTreeSet<String> {
    let header = std::fs::read_to_string(source("include/sapwood.h")).unwrap();
    let words =
        header.split(|char: char| !char.is_ascii_alphanumeric() && char != '_' && char != '(');
    let calls = words.filter_map(|word| word.split_once('(').map(|(name, _)| name));
    calls
        .filter(|name| name.starts_with("sapwood_"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_example_in_c_works_with_the_shared_library() {
    if left_out(&[GCC]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = dynamic(dir.path());
    works_on_both_formats(|| Command::new(&program));
}

#[test]
fn the_example_in_c_works_with_the_archive() {
    if left_out(&[GCC]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let archive = library().join("libsapwood.a");
    let system = ["-lgcc_s", "-lpthread", "-lm", "-ldl"].map(OsStr::new);
    let link: Vec<&OsStr> = [archive.as_os_str()].into_iter().chain(system).collect();
    let program = compiled(dir.path(), &link);
    works_on_both_formats(|| Command::new(&program));
}

#[test]
fn the_example_in_c_has_no_error_and_no_leak_under_valgrind() {
    if left_out(&[GCC, Need::Program("valgrind")]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = dynamic(dir.path());
    works_on_both_formats(|| {
        let mut command = Command::new("valgrind");
        command.args(["--quiet", "--error-exitcode=9", "--leak-check=full"]);
        command.args([
            "--errors-for-leak-kinds=definite",
            "--show-leak-kinds=definite",
        ]);
        command.arg("--fair-sched=yes");
        let known = source("tests/valgrind.supp");
        command.arg(format!("--suppressions={}", known.display()));
        command.arg(&program);
        command
    });
}

#[test]
fn the_example_in_python_works() {
    if left_out(&[GCC, Need::Program("python3")]) {
        return;
    }
    works_on_both_formats(|| {
        let mut command = Command::new("python3");
        command.arg(source("examples/image.py"));
        command.env("SAPWOOD_LIBRARY", library().join("libsapwood.so.0"));
        command
    });
}

/// A command of Go in its module. No network is used.
fn go(arguments: &[&str]) -> Command {
    let at = library().display();
    let mut command = Command::new("go");
    command
        .args(arguments)
        .current_dir(source("../../bindings/go"));
    command.env("CGO_CFLAGS", format!("-I{at}"));
    command.env("CGO_LDFLAGS", format!("-L{at} -Wl,-rpath,{at}"));
    command.env("CGO_ENABLED", "1").env("GOTOOLCHAIN", "local");
    command.env("GOPROXY", "off").env("GOFLAGS", "-mod=mod");
    if std::env::var_os("HOME").is_none() {
        command.env("GOCACHE", library().join("go"));
    }
    command
}

#[test]
fn the_go_module_passes_its_tests() {
    if left_out(&[GCC, Need::Program("go")]) {
        return;
    }
    assert_eq!(
        run(Command::new("gofmt")
            .arg("-l")
            .arg(source("../../bindings/go"))),
        ""
    );
    run(&mut go(&["vet", "./..."]));
    run(&mut go(&["test", "-count=1", "./..."]));
}

#[test]
fn the_examples_in_go_put_a_file_into_an_image_and_scan_it() {
    if left_out(&[GCC, Need::Program("go")]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let output = format!("-o={}/", dir.path().display());
    run(&mut go(&["build", &output, "./examples/..."]));
    let file = dir.path().join("agent");
    std::fs::write(&file, "agent").unwrap();
    for kind in ["btrfs", "ext4"] {
        let image = dir.path().join(kind);
        let builder = sapwood::ImageBuilder::new(kind.parse().unwrap()).size(128 << 20);
        builder.write_to(&image).unwrap();
        let fs = sapwood::open(&image).unwrap();
        fs.create_dir_all("etc").unwrap();
        fs.write("etc/os-release", "NAME=x\nPRETTY_NAME=\"Some System 1\"\n")
            .unwrap();
        fs.create_dir_all("var/lib/dpkg").unwrap();
        fs.write(
            "var/lib/dpkg/status",
            "Package: a\nVersion: 1\n\nPackage: b\n",
        )
        .unwrap();
        fs.close().unwrap();

        let inject = dir.path().join("inject");
        run(Command::new(inject).arg(&image).arg(&file).arg("usr/bin"));
        let fs = sapwood::open(&image).unwrap();
        assert_eq!(fs.read_to_string("usr/bin/agent").unwrap(), "agent");
        fs.set_permissions("usr/bin/agent", 0o4755).unwrap();
        fs.close().unwrap();

        let said = run(Command::new(dir.path().join("scan")).arg(&image));
        let expected = "system: Some System 1\npackages: 2\n\
                        set-id: urwxr-xr-x usr/bin/agent (owner 0)\n";
        assert_eq!(said, expected);
        let missing = Command::new(dir.path().join("scan"))
            .arg(&file)
            .output()
            .unwrap();
        assert_eq!(missing.status.code(), Some(1));
    }
}

#[test]
fn the_shared_library_exports_what_the_header_declares_and_nothing_else() {
    if left_out(&[GCC, Need::Program("nm"), Need::Program("objdump")]) {
        return;
    }
    let shared = library().join("libsapwood.so");
    let symbols = run(Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(&shared));
    let symbols = symbols
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2));
    let exported: BTreeSet<String> = symbols
        .filter(|symbol| !symbol.starts_with("LIBSAPWOOD_"))
        .map(|symbol| {
            let versioned = symbol.strip_suffix("@@LIBSAPWOOD_0.1");
            versioned
                .unwrap_or_else(|| panic!("{symbol} has no version"))
                .to_owned()
        })
        .collect();
    assert!(exported.len() > 40, "{exported:?}");
    assert_eq!(exported, declared());
    let dynamic = run(Command::new("objdump").arg("-p").arg(&shared));
    let soname = dynamic
        .lines()
        .find_map(|line| line.trim().strip_prefix("SONAME"));
    assert_eq!(soname.map(str::trim), Some("libsapwood.so.0"));
}

#[test]
fn the_header_is_valid_in_cpp() {
    if left_out(&[Need::Program("c++")]) {
        return;
    }
    let strict = [
        "-std=c++11",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-pedantic",
        "-fsyntax-only",
    ];
    let header = source("include/sapwood.h");
    run(Command::new("c++")
        .args(strict)
        .args(["-x", "c++"])
        .arg(header));
}
