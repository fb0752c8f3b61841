//! System calls of Linux.

mod calls;
mod claim;
mod loop_device;
mod mount_table;
mod open;
mod process;
mod qemu_lock;
mod search;
mod target;

pub(crate) use std::os::unix::net::UnixStream as LocalStream;

pub(crate) use calls::{
    SHUT_DOWN, WRITES_THROUGH, begin_writeback, data_sync, discard_blocks, drop_cached,
    is_unsupported, next_data, next_hole, os_str, os_string, prepare_release, punch_hole, read_at,
    read_exact_at, release, will_read, write, write_all_at, writeback_failed,
};
pub(crate) use mount_table::mount_table;
pub use open::open_for_writing;
pub(crate) use open::{adopt, create, make_writable, open, unlock};
pub use search::mounted_elsewhere;
