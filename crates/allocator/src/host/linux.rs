//! jemalloc and its settings.

pub(crate) use tikv_jemallocator::Jemalloc as Below;

/// Read when the process starts.
// SAFETY: the allocator declares a pointer to a string of this name, which ends with NUL.
#[used]
#[unsafe(export_name = "_rjem_malloc_conf")]
static SETTINGS: &[u8; 64] = b"narenas:2,dirty_decay_ms:1000,muzzy_decay_ms:0,lg_tcache_max:14\0";
