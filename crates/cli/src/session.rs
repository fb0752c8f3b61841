//! The image that a script changes: the commands of its lines use it instead of opening theirs.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use sapwood::FileSystem;

/// An open image, for the commands of one thread.
struct Session {
    image: PathBuf,
    fs: FileSystem,
    /// The standard input of the current command.
    input: Option<Vec<u8>>,
}

thread_local! {
    static SESSION: RefCell<Option<Session>> = const { RefCell::new(None) };
}

/// Runs `work`, whose commands find `image` open as `fs`.
pub(super) fn with<T>(image: &Path, fs: &FileSystem, work: impl FnOnce() -> T) -> T {
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
