//! A Rust build without dependencies.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::Result;
use crate::contestant::Standing;
use crate::error::{on, run_program};
use crate::figures::Seen;

/// Number of crates of the workspace; each except the first depends on the one before.
const CRATES: u32 = 4;
/// Number of functions of each crate.
const FUNCTIONS: u32 = 60;

pub(super) fn run(dir: &Path, standing: &mut Standing) -> Result<Seen> {
    let root = dir.join("program");
    make(&root)?;
    standing.begin()?;
    let mut command = Command::new("cargo");
    command.args(["build", "--quiet", "--offline"]);
    command.arg("--manifest-path").arg(root.join("Cargo.toml"));
    // In the mount, independent of the environment of this process.
    command.arg("--target-dir").arg(root.join("target"));
    command.env_remove("RUSTFLAGS");
    let began = Instant::now();
    run_program(&mut command)?;
    let seconds = began.elapsed().as_secs_f64();
    Ok(Seen::rate(1.0 / seconds).with("s", seconds))
}

fn make(root: &Path) -> Result<()> {
    let write = |path: &Path, text: &str| -> Result<()> {
        let parent = path.parent().unwrap_or(root);
        fs::create_dir_all(parent).map_err(on(parent))?;
        fs::write(path, text).map_err(on(path))
    };
    let members: Vec<_> = (0..CRATES).map(|number| format!("\"c{number}\"")).collect();
    let text = format!(
        "[workspace]\nresolver = \"2\"\nmembers = [{}]\n",
        members.join(", ")
    );
    write(&root.join("Cargo.toml"), &text)?;
    for number in 0..CRATES {
        let dir = root.join(format!("c{number}"));
        let before = number.checked_sub(1);
        let needs = before.map_or_else(String::new, |before| {
            format!("c{before} = {{ path = \"../c{before}\" }}\n")
        });
        let manifest = format!(
            "[package]\nname = \"c{number}\"\nversion = \"0.1.0\"\nedition = \"2021\"\n\
             [dependencies]\n{needs}"
        );
        write(&dir.join("Cargo.toml"), &manifest)?;
        let mut text = String::new();
        for function in 0..FUNCTIONS {
            let inner = match before {
                Some(before) => format!("c{before}::f{function}(x)"),
                None => "x".to_owned(),
            };
            text += &format!(
                "pub fn f{function}(x: u64) -> u64 {{ (0..x).map(|y| y ^ {function}).sum::<u64>() \
                 + {inner} }}\n"
            );
        }
        write(&dir.join("src/lib.rs"), &text)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_crate_needs_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        make(dir.path()).unwrap();
        let read = |path: &str| fs::read_to_string(dir.path().join(path)).unwrap();
        assert!(read("Cargo.toml").contains("\"c0\", \"c1\""));
        assert!(!read("c0/Cargo.toml").contains("path"));
        assert!(read("c3/Cargo.toml").contains("../c2"));
        assert!(read("c3/src/lib.rs").contains("c2::f59(x)"));
    }
}
