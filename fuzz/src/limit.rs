//! An allocator that ends the process at an allocation that is larger than a valid input of the
//! fuzz targets may cause. libFuzzer's limit does not count memory that is allocated but never
//! touched, so without this allocator a length taken from an image without a check would stay
//! undetected.
#![allow(unsafe_code)] // The trait of allocators is unsafe; every call passes its arguments on.

use std::alloc::{GlobalAlloc, Layout, System};

/// Bytes. The largest valid allocations are the caches of expanded images and block buffers.
const LARGEST: usize = 96 << 20;

struct Limited;

#[global_allocator]
static LIMITED: Limited = Limited;

fn check_size(size: usize) {
    if size > LARGEST {
        eprintln!("an allocation of {size} bytes");
        std::process::abort();
    }
}

// SAFETY: every method calls the system's allocator with the arguments of the caller.
unsafe impl GlobalAlloc for Limited {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        check_size(layout.size());
        // SAFETY: the caller guarantees the conditions of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        check_size(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        check_size(size);
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, size) }
    }
}
