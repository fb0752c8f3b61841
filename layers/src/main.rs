//! Checks the order of modules inside the crates that `layers/order` lists, and prints what the
//! module graph looks like.
//!
//! ```text
//! sapwood-layers [--stats] [--circles] [--arrows] [--order] [--root DIR]
//! ```
//!
//! `--stats` prints a line of figures for every crate, `--circles` the files that use each other,
//! `--arrows` the violations of crates that are not listed too, `--order` an order with few of them
//! for each such crate. `--root` is the workspace's folder (default: the current one). The exit
//! code is 1 if a crate that `layers/order` lists has a violation.

mod crate_source;
mod graph;
mod order;
mod resolve;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::crate_source::CrateSource;
use crate::graph::Graph;

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("layers: {error}");
            ExitCode::from(2)
        }
    }
}

/// Whether no listed crate has a violation.
fn run() -> Result<bool, String> {
    let mut root = PathBuf::from(".");
    let (mut stats, mut circles, mut arrows, mut order) = (false, false, false, false);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--stats" => stats = true,
            "--circles" => circles = true,
            "--arrows" => arrows = true,
            "--order" => order = true,
            "--root" => root = arguments.next().ok_or("--root needs a folder")?.into(),
            other => return Err(format!("unknown argument {other}")),
        }
    }
    let listed = crate::order::read(&root.join("layers/order"))?;
    let mut good = true;
    for crate_name in product_crates(&root)? {
        let source = CrateSource::read(&root.join("crates").join(&crate_name))?;
        let graph = Graph::new(&source);
        let declared = listed.get(&crate_name);
        let found = match declared {
            Some(modules) => graph.violations(modules),
            None => graph.violations(&graph.best_order()),
        };
        if stats {
            println!("{}", graph.figures(&crate_name, &source, found.len()));
        }
        if circles {
            for circle in graph.circles() {
                let files: Vec<_> = circle.iter().map(|f| f.display().to_string()).collect();
                println!(
                    "{crate_name}: circle of {}: {}",
                    files.len(),
                    files.join(" ")
                );
            }
        }
        if order && declared.is_none() {
            println!("{crate_name}: {}", graph.best_order().join(" "));
        }
        if declared.is_some() || arrows {
            for violation in &found {
                eprintln!("crates/{crate_name}: {violation}");
            }
        }
        good &= declared.is_none() || found.is_empty();
    }
    Ok(good)
}

/// The folders in `crates/` that are products: not the tests' support.
fn product_crates(root: &Path) -> Result<Vec<String>, String> {
    let folder = root.join("crates");
    let entries = std::fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|e| format!("{}: {e}", folder.display()))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_crate = entry.path().join("Cargo.toml").is_file();
        if is_crate && name != "testing" {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}
