//! Threads of a test that run with the credentials of another user.
//!
//! `unsafe`: makes the system calls directly, because the library's functions change the
//! credentials of all threads.
#![expect(unsafe_code, reason = "see the module's text")]

use std::io;

/// The user of a thread.
#[derive(Debug, Clone, Copy)]
pub struct User {
    /// File-system user id.
    pub uid: u32,
    /// File-system group id.
    pub gid: u32,
    /// The only supplementary group.
    pub group: u32,
}

/// A user without files.
pub const OTHER: User = User {
    uid: 1234,
    gid: 1234,
    group: 1234,
};

/// Runs `work` in a thread with these credentials and no capability, unless the user is root.
pub fn acting_as<T: Send>(user: User, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    in_thread(
        || {
            let groups = [user.group];
            call(unsafe { libc::syscall(libc::SYS_setgroups, 1, groups.as_ptr()) })?;
            let gid = user.gid;
            call(unsafe { libc::syscall(libc::SYS_setresgid, gid, gid, gid) })?;
            let uid = user.uid;
            call(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) })
        },
        work,
    )
}

/// Runs `work` in a thread of root's whose file-system user id is `uid`.
pub fn with_fsuid<T: Send>(uid: u32, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    in_thread(
        || {
            // The call returns the old id in every case.
            unsafe { libc::syscall(libc::SYS_setfsuid, uid) };
            Ok(())
        },
        work,
    )
}

/// Runs `work` in a thread of root's without `CAP_FSETID`.
pub fn without_fsetid<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    in_thread(
        || {
            let mut sets = rustix::thread::capabilities(None)?;
            sets.effective -= rustix::thread::CapabilitySet::FSETID;
            Ok(rustix::thread::set_capabilities(None, sets)?)
        },
        work,
    )
}

fn in_thread<T: Send>(
    change: impl FnOnce() -> io::Result<()> + Send,
    work: impl FnOnce() -> T + Send,
) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| change().map(|()| work()));
        let ended = thread.join();
        ended.unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
    })
}

fn call(result: libc::c_long) -> io::Result<()> {
    match result {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
