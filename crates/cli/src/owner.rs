//! Owners of what a command makes in an image.

use sapwood_vfs::Credentials;

/// Reads `UID:GID`.
///
/// # Errors
/// It is something else.
pub(super) fn parse(text: &str) -> Result<(u32, u32), String> {
    let parsed = text
        .split_once(':')
        .and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?)));
    parsed.ok_or_else(|| format!("{text} is not UID:GID"))
}

/// The user that runs the command, with its umask. To be called before threads are started.
pub(super) fn caller() -> Credentials {
    // Only setting the umask reads it.
    let umask = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    rustix::process::umask(umask);
    Credentials {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        umask: umask.bits(),
        keep_setgid: true,
    }
}

/// The caller, or the owner that an option names.
pub(super) fn chosen(owner: Option<(u32, u32)>) -> Credentials {
    let caller = caller();
    match owner {
        Some((uid, gid)) => Credentials { uid, gid, ..caller },
        None => caller,
    }
}
