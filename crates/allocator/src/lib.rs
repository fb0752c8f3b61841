//! The allocator of the `sapwood` command, and of the benchmarks' processes.
//!
//! A program that links this crate allocates with it: `use sapwood_allocator as _;`. A library must
//! not link it, because a program has one allocator.
//!
//! # Why jemalloc
//! What one thread allocates, another often releases: data goes from a request to writeback, blocks
//! of metadata from a change to the commit. The C library's allocator merges and splits chunks for
//! it, under the lock of the arena, and grows and shrinks arenas with system calls. jemalloc does
//! not. Few arenas and a short decay keep a daemon within the bounds of its caches.
#![expect(
    unsafe_code,
    reason = "a symbol that the allocator reads its settings from"
)]

use tikv_jemallocator::Jemalloc;

#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// Read when the process starts.
// SAFETY: the allocator declares a pointer to a string of this name, which ends with NUL.
#[used]
#[unsafe(export_name = "_rjem_malloc_conf")]
static SETTINGS: &[u8; 64] = b"narenas:2,dirty_decay_ms:1000,muzzy_decay_ms:0,lg_tcache_max:14\0";
