//! The recipes of docs/recipes: the script of each page, run as it stands in a fresh directory with
//! the built command.
//!
//! The first line of a page may name what its script needs: `<!-- needs: fuse qemu-img -->`. A
//! word is `fuse` (root and `/dev/fuse`), `received-directories` (streams into directories of the
//! host, which only the build for Linux receives), `debian-vm` (see `scripts/debian-vm`),
//! `python-package` or `libsapwood` (as `cargo build` makes them), or the name of a program.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use libtest_mimic::Trial;
use sapwood_tests::mount::sapwood;
use sapwood_tests::{Need, Outcome, machine, process, scratch, trial};

const LIMIT: Duration = Duration::from_secs(300);

/// Sources of the package for Python.
const PYTHON: &str = "bindings/python/python/sapwood";

/// A page with its script.
struct Recipe {
    name: String,
    needs: Vec<Need>,
    script: String,
}

pub(crate) fn trials() -> Vec<Trial> {
    let pages = pages();
    let mut trials = vec![trial("every_recipe_has_one_script", &[], well_formed)];
    for page in pages {
        // A malformed page is found by the test above.
        let Ok(recipe) = read(&page) else { continue };
        let name = format!("recipe_{}", recipe.name.replace('-', "_"));
        trials.push(trial(name, &recipe.needs.clone(), move || run(&recipe)));
    }
    trials
}

fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// All pages, sorted.
fn pages() -> Vec<PathBuf> {
    let entries = fs::read_dir(source("docs/recipes")).into_iter().flatten();
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut pages: Vec<_> = paths
        .filter(|path| path.extension() == Some(OsStr::new("md")))
        .collect();
    pages.sort();
    pages
}

/// Parses a page, or names what is wrong with it.
fn read(page: &Path) -> Result<Recipe, String> {
    let text = fs::read_to_string(page).map_err(|error| format!("{}: {error}", page.display()))?;
    let wrong = |why: &str| format!("{}: {why}", page.display());
    let needs = text
        .lines()
        .next()
        .and_then(|line| line.strip_prefix("<!-- needs: ")?.strip_suffix(" -->"));
    let needs = needs.unwrap_or_default().split_whitespace().map(need);
    let mut blocks = text.split("\n```sh\n").skip(1);
    let block = blocks.next().ok_or_else(|| wrong("no script"))?;
    if blocks.next().is_some() {
        return Err(wrong("more than one script"));
    }
    let (script, after) = block
        .split_once("\n```\n")
        .ok_or_else(|| wrong("the script has no end"))?;
    if !after.contains("\n- ") {
        return Err(wrong("it does not say what may go wrong"));
    }
    if !text.lines().any(|line| line.starts_with("# ")) {
        return Err(wrong("no title"));
    }
    Ok(Recipe {
        name: page
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into(),
        needs: needs.collect(),
        script: script.to_owned(),
    })
}

fn need(word: &str) -> Need {
    match word {
        "fuse" => Need::Fuse,
        "received-directories" => machine::RECEIVED_DIRECTORIES,
        "python-package" => Need::Other(|| missing("libsapwood_python.so")),
        "libsapwood" => Need::Other(|| missing("libsapwood_capi.a")),
        "debian-vm" => machine::DEBIAN_VM,
        program => Need::Program(String::leak(program.to_owned())),
    }
}

/// A library that `cargo build` puts next to this test's directory.
fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).unwrap().join(name)
}

fn missing(name: &str) -> Option<String> {
    (!built(name).exists()).then(|| format!("{name} is not built"))
}

fn well_formed() -> Outcome {
    let pages = pages();
    if pages.len() < 20 {
        return Err(format!("only {} recipes", pages.len()).into());
    }
    for page in pages {
        read(&page)?;
    }
    Ok(())
}

fn run(recipe: &Recipe) -> Outcome {
    let (dir, tools) = (scratch::directory(), scratch::directory());
    symlink(sapwood(), tools.path().join("sapwood"))?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(
        std::iter::once(tools.path().to_owned()).chain(std::env::split_paths(&path)),
    )?;
    let mut command = Command::new("bash");
    command
        .args(["-euo", "pipefail", "-c", &recipe.script])
        .current_dir(dir.path())
        .env("PATH", path)
        .env("SAPWOOD_SOURCE", fs::canonicalize(source("."))?);
    if recipe.script.contains("python3") {
        command.env("PYTHONPATH", python_package(tools.path())?);
    }
    if recipe.script.contains("go run") {
        command.envs(c_library(tools.path())?);
    }
    process::succeed(&mut command, LIMIT)?;
    Ok(())
}

/// The package as a wheel installs it.
fn python_package(tools: &Path) -> std::io::Result<PathBuf> {
    let package = tools.join("python/sapwood");
    fs::create_dir_all(&package)?;
    for entry in fs::read_dir(source(PYTHON))? {
        let file = entry?.path();
        if file.is_file() {
            fs::copy(&file, package.join(file.file_name().unwrap()))?;
        }
    }
    fs::copy(
        built("libsapwood_python.so"),
        package.join("_sapwood.abi3.so"),
    )?;
    Ok(tools.join("python"))
}

/// The C library as `make install-lib` installs it, for cgo.
fn c_library(tools: &Path) -> Result<Vec<(&'static str, OsString)>, String> {
    let at = tools.join("lib");
    let mut link = Command::new(source("scripts/libsapwood"));
    process::succeed(link.arg(built("libsapwood_capi.a")).arg(&at), LIMIT)?;
    let at = at.display();
    Ok(vec![
        ("CGO_ENABLED", "1".into()),
        ("CGO_CFLAGS", format!("-I{at}").into()),
        ("CGO_LDFLAGS", format!("-L{at} -Wl,-rpath,{at}").into()),
        ("GOPROXY", "off".into()),
        ("GOTOOLCHAIN", "local".into()),
    ])
}
