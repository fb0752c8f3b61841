//! The C library's allocator in a daemon.
//!
//! Each thread gets an arena of its own, up to eight for each processor, and memory that is free in
//! one arena serves no other. A mount has many threads and bounds on what it keeps, so without a
//! limit the process takes about half as much again as the bounds say.
#![expect(unsafe_code, reason = "the C library has no other way to say it")]

/// With less memory than this one arena serves all threads.
#[cfg(target_env = "gnu")]
const LITTLE: u64 = 1 << 30;

/// Limits the arenas. Call it before threads start.
pub(super) fn limit_arenas() {
    #[cfg(target_env = "gnu")]
    {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let arenas = match sapwood::mount::available_memory() < LITTLE {
            true => 1,
            false => i32::try_from(cores).unwrap_or(i32::MAX),
        };
        // SAFETY: it sets a number, under the allocator's own lock.
        if unsafe { libc::mallopt(libc::M_ARENA_MAX, arenas) } == 0 {
            log::debug!("the allocator takes no limit of arenas");
        }
    }
}
