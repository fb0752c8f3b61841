//! An allocator that ends the process when a single allocation is larger than any that an image
//! of the fuzz targets may cause. Memory that is asked for but never touched does not count
//! toward libFuzzer's limit, so a length that an image made up would go unseen.
#![allow(unsafe_code)] // The trait of allocators is unsafe; every call is handed on as it came.

use std::alloc::{GlobalAlloc, Layout, System};

/// Bytes. The largest honest ones are the caches of expanded images and block buffers.
const LARGEST: usize = 96 << 20;

struct Limited;

#[global_allocator]
static LIMITED: Limited = Limited;

fn judge(size: usize) {
    if size > LARGEST {
        eprintln!("an allocation of {size} bytes");
        std::process::abort();
    }
}

// SAFETY: all of it is the system's allocator, called with what the caller gave.
unsafe impl GlobalAlloc for Limited {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        judge(layout.size());
        // SAFETY: the caller's promises are handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        judge(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        judge(size);
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, size) }
    }
}
