//! A typical source tree, from a fixed seed.

use std::fs;
use std::io::Write;
use std::path::Path;

use crate::Result;
use crate::error::on;

/// Number of directories, and of files in each.
const DIRS: u32 = 60;
const FILES: u32 = 40;
const WORDS: [&str; 12] = [
    "inode", "extent", "block", "group", "journal", "commit", "tree", "leaf", "write", "flush",
    "return", "static",
];

/// Makes [`DIRS`] directories of [`FILES`] text files each, of 0.2 to 16 KiB.
pub(super) fn make(dir: &Path) -> Result<()> {
    let mut random = fastrand::Rng::with_seed(5);
    for number in 0..DIRS {
        let path = dir.join(format!("part-{number:02}"));
        fs::create_dir_all(&path).map_err(on(&path))?;
        for file in 0..FILES {
            let path = path.join(format!("source-{file:02}.c"));
            fs::write(&path, text(&mut random)).map_err(on(&path))?;
        }
    }
    Ok(())
}

fn text(random: &mut fastrand::Rng) -> Vec<u8> {
    let size = 200 << random.u32(0..7);
    let mut text = Vec::with_capacity(size + 40);
    while text.len() < size {
        let (word, number) = (WORDS[random.usize(0..WORDS.len())], random.u16(..));
        // Writing to memory does not fail.
        let _ = writeln!(text, "{word}_{number} = {word}({});", random.u8(..));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_trees_are_the_same() {
        let [one, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        make(one.path()).unwrap();
        make(other.path()).unwrap();
        let file = "part-59/source-39.c";
        let read = |dir: &tempfile::TempDir| fs::read(dir.path().join(file)).unwrap();
        assert_eq!(read(&one), read(&other));
        assert!(!read(&one).is_empty());
    }
}
