//! Owners of new files in an image.

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

/// The umask of the process. To be read before threads are started.
pub(super) fn umask() -> u32 {
    // Only setting the umask reads it.
    let umask = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    rustix::process::umask(umask);
    #[allow(clippy::useless_conversion, reason = "narrower on some systems")]
    umask.bits().into()
}

/// The owner that an option names, or the user that runs the command; group; umask.
pub(super) fn chosen(owner: Option<(u32, u32)>) -> (u32, u32, u32) {
    let caller = || {
        (
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        )
    };
    let (uid, gid) = owner.unwrap_or_else(caller);
    (uid, gid, umask())
}
