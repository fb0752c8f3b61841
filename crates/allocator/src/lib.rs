//! The allocator of the `sapwood` command, and of the benchmarks' processes.
//!
//! A program that links this crate allocates with it: `use sapwood_allocator as _;`. A library must
//! not link it, because a program has one allocator.
//!
//! # Why jemalloc
//! Often one thread allocates memory and another releases it: data passes from a request to
//! writeback, blocks of metadata from a change to the commit. The C library's allocator then merges
//! and splits chunks under the lock of the arena, and grows and shrinks arenas with system calls.
//! jemalloc does not. Few arenas and a short decay keep a daemon within the bounds of its caches.
//!
//! Systems other than Linux, and `--cfg sapwood_portable`, use the system's allocator.
//!
//! # Without memory
//! The standard library aborts with a backtrace when an allocation fails. A program that must
//! remove or print something first gives a function ([`when_exhausted`]).
#![expect(
    unsafe_code,
    reason = "an allocator, and a symbol that it reads its settings from"
)]

mod host;

use std::alloc::{GlobalAlloc, Layout};
use std::sync::OnceLock;

use host::Below;

#[global_allocator]
static ALLOCATOR: Watched = Watched;

static WHEN_EXHAUSTED: OnceLock<fn(usize)> = OnceLock::new();

/// From now on a failed allocation calls `act` with the number of bytes that are missing. `act`
/// allocates nothing, and ends the process: the allocation fails when it returns. Only the first
/// call counts.
pub fn when_exhausted(act: fn(usize)) {
    let _ = WHEN_EXHAUSTED.set(act);
}

/// The allocator, which calls the function of [`when_exhausted`].
struct Watched;

impl Watched {
    fn watched(found: *mut u8, bytes: usize) -> *mut u8 {
        if found.is_null()
            && let Some(act) = WHEN_EXHAUSTED.get()
        {
            act(bytes);
        }
        found
    }
}

// SAFETY: all methods forward their arguments, and return the result.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of this method, which is the same.
        Self::watched(unsafe { Below.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        Self::watched(unsafe { Below.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { Below.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        Self::watched(unsafe { Below.realloc(at, layout, size) }, size)
    }
}
