//! Prints the allocated space of each directory below the root: `cargo run --example disk_usage --
//! disk.img`.

use std::collections::BTreeMap;
use std::path::{Component, PathBuf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let image = std::env::args_os()
        .nth(1)
        .ok_or("usage: disk_usage IMAGE")?;
    let fs = sapwood::Options::new().read_only(true).open(image)?;
    let mut sums = BTreeMap::<PathBuf, u64>::new();
    for entry in fs.walk("/")? {
        let entry = entry?;
        let mut parts = entry
            .path()
            .components()
            .skip_while(|part| *part == Component::RootDir);
        let top = parts
            .next()
            .map_or_else(PathBuf::new, |part| PathBuf::from(part.as_os_str()));
        *sums.entry(top).or_default() += entry.metadata().allocated();
    }
    for (path, bytes) in sums {
        println!("{bytes:>12} {}", path.display());
    }
    Ok(())
}
