//! The image of a script or of a shell: the commands of the lines use it instead of opening theirs.

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use sapwood::FileSystem;

/// An open image, for the commands of one thread.
struct Session {
    image: PathBuf,
    fs: FileSystem,
    /// The standard input of the current command.
    input: Option<Vec<u8>>,
    /// The current directory in the image. A script has none.
    dir: Option<PathBuf>,
}

thread_local! {
    static SESSION: RefCell<Option<Session>> = const { RefCell::new(None) };
}

/// Runs `work`, whose commands find `image` open as `fs`.
pub(super) fn with<T>(image: &Path, fs: &FileSystem, work: impl FnOnce() -> T) -> T {
    begin(image, fs, None, work)
}

/// Runs `work`, the loop of a shell. Its commands find `image` open as `fs`, and relative paths
/// start at `dir`.
pub(super) fn with_directory<T>(
    image: &Path,
    fs: &FileSystem,
    dir: PathBuf,
    work: impl FnOnce() -> T,
) -> T {
    begin(image, fs, Some(dir), work)
}

fn begin<T>(image: &Path, fs: &FileSystem, dir: Option<PathBuf>, work: impl FnOnce() -> T) -> T {
    /// Ends the session, after a panic too.
    struct End;

    impl Drop for End {
        fn drop(&mut self) {
            SESSION.set(None);
        }
    }

    SESSION.set(Some(Session {
        image: image.to_owned(),
        fs: fs.clone(),
        input: None,
        dir,
    }));
    let _end = End;
    work()
}

/// The image of the session, if one runs.
pub(super) fn image() -> Option<PathBuf> {
    SESSION.with_borrow(|session| session.as_ref().map(|session| session.image.clone()))
}

/// The open image of the session, if one runs.
pub(super) fn fs() -> Option<FileSystem> {
    SESSION.with_borrow(|session| session.as_ref().map(|session| session.fs.clone()))
}

/// The current directory in the image of a shell: absolute, without links.
pub(super) fn dir() -> Option<PathBuf> {
    SESSION.with_borrow(|session| session.as_ref().and_then(|session| session.dir.clone()))
}

/// Changes the current directory of a shell.
pub(super) fn set_dir(dir: PathBuf) {
    SESSION.with_borrow_mut(|session| {
        if let Some(session) = session {
            session.dir = Some(dir);
        }
    });
}

/// The path in the image of a shell that the word `:PATH` means; `None` outside of a shell, and for
/// any other word.
pub(super) fn marked(word: &OsStr) -> Option<Vec<u8>> {
    let path = word.as_bytes().strip_prefix(b":")?;
    dir().map(|dir| from_root(&dir, path))
}

/// The path in the image of a shell that a word means in a command whose places are all in the
/// image; `None` outside of a shell.
pub(super) fn path(word: &OsStr) -> Option<Vec<u8>> {
    let word = word.as_bytes();
    let path = word.strip_prefix(b":").unwrap_or(word);
    dir().map(|dir| from_root(&dir, path))
}

/// A path from the root, without the slash at its begin.
fn from_root(dir: &Path, path: &[u8]) -> Vec<u8> {
    let whole = if path.is_empty() {
        dir.as_os_str().to_owned()
    } else {
        dir.join(OsStr::from_bytes(path)).into_os_string()
    };
    let bytes = OsString::into_vec(whole);
    let start = bytes.iter().position(|byte| *byte != b'/');
    bytes
        .get(start.unwrap_or(bytes.len())..)
        .unwrap_or_default()
        .to_vec()
}

/// Sets the standard input of the next command.
pub(super) fn set_input(input: Option<Vec<u8>>) {
    SESSION.with_borrow_mut(|session| {
        if let Some(session) = session {
            session.input = input;
        }
    });
}

/// Takes the standard input of the current command.
pub(super) fn take_input() -> Option<Vec<u8>> {
    SESSION.with_borrow_mut(|session| session.as_mut().and_then(|session| session.input.take()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_starts_at_the_directory_or_at_the_root() {
        for (dir, path, whole) in [
            ("/", "", ""),
            ("/", "etc/", "etc/"),
            ("/etc", "", "etc"),
            ("/etc", "a/../b", "etc/a/../b"),
            ("/etc", "//usr", "usr"),
            ("/etc", "/", ""),
        ] {
            let found = from_root(Path::new(dir), path.as_bytes());
            assert_eq!(found, whole.as_bytes(), "{dir} {path}");
        }
    }
}
