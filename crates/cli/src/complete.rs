//! `sapwood complete`: the paths in an image that continue a word, for the completions of shells.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use sapwood::internal::Target;
use sapwood::{FileSystem, FileType, Options};

use super::failure::Result;
use super::output;

/// Time after which a completion gives up, because the user waits for it.
const LONGEST: Duration = Duration::from_secs(2);
/// Names that are printed at most.
const MOST: usize = 1000;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Word on the command line, up to the cursor
    word: OsString,
}

/// Prints the words that `word` can become, one in each line. A directory ends with a slash. A
/// word that names no image, an image that cannot be opened, and one that takes too long print
/// nothing: a completion has no place for an error.
pub(super) fn run(args: &Args) -> Result<()> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let word = args.word.clone();
    std::thread::spawn(move || {
        // The receiver is gone if this took too long.
        let _ = sender.send(words(&word));
    });
    let found = receiver.recv_timeout(LONGEST).ok().flatten();
    let mut lines = Vec::new();
    for word in found.unwrap_or_default() {
        lines.extend_from_slice(&word);
        lines.push(b'\n');
    }
    output::bytes(&lines)
}

fn words(word: &OsStr) -> Option<Vec<Vec<u8>>> {
    let Ok(Target::Image { image, path }) = Target::parse(word) else {
        return None;
    };
    // A server may be far away, and a key press should reach none.
    let scheme = image.as_os_str().as_bytes();
    if scheme.starts_with(b"nbd:") || scheme.starts_with(b"nbd+") {
        return None;
    }
    let start = path.iter().rposition(|byte| *byte == b'/');
    let (dir, begin) = path.split_at(start.map_or(0, |at| at + 1));
    let word = word.as_bytes();
    let head = word.get(..word.len().checked_sub(begin.len())?)?;
    let fs = Options::new().read_only(true).open(&image).ok()?;
    let dir = Path::new(OsStr::from_bytes(dir));
    let fitting = names(&fs, dir, begin)?.filter(|(name, _)| !name.contains(&b'\n'));
    let fitting = fitting.map(|(name, kind)| {
        let slash: &[u8] = if kind.is_dir() { b"/" } else { b"" };
        [head, &name, slash].concat()
    });
    let mut words: Vec<_> = fitting.take(MOST).collect();
    words.sort();
    Some(words)
}

/// The names in a directory of an image that begin with `begin`; `None` if it cannot be read.
pub(super) fn names(
    fs: &FileSystem,
    dir: &Path,
    begin: &[u8],
) -> Option<impl Iterator<Item = (Vec<u8>, FileType)>> {
    let entries = fs.read_dir(dir).ok()?.flatten();
    Some(entries.filter_map(move |entry| {
        let name = entry.file_name().into_vec();
        fits(&name, begin).then(|| (name, entry.file_type()))
    }))
}

/// Whether a name begins with `begin`. A hidden name needs its dot.
pub(super) fn fits(name: &[u8], begin: &[u8]) -> bool {
    let hidden = name.starts_with(b".") && !begin.starts_with(b".");
    name.starts_with(begin) && !hidden
}
