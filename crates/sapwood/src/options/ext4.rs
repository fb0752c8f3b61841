//! Options that only ext4 has.

use sapwood_ext4::{AllocPolicy, DataMode, FastCommits, Options};

use super::{OptionError, bad};

/// Options of the kernel's ext4 that change nothing here: what they ask for is so in any case, or
/// is only a matter of when things are done.
const WITHOUT_EFFECT: &[&str] = &[
    "user_xattr",
    "delalloc",
    "nodelalloc",
    "auto_da_alloc",
    "noauto_da_alloc",
    "block_validity",
    "noblock_validity",
    "dioread_lock",
    "dioread_nolock",
    "journal_checksum",
    "nojournal_checksum",
    "init_itable",
    "noinit_itable",
    "mblk_io_submit",
    "nomblk_io_submit",
    "nombcache",
    "no_mbcache",
    "bsddf",
    "nogrpid",
    "sysvgroups",
    "oldalloc",
    "orlov",
    "i_version",
    "stripe",
    "inode_readahead_blks",
    "max_batch_time",
    "min_batch_time",
    "journal_ioprio",
];

fn unsupported(name: &str, value: &str, why: &'static str) -> OptionError {
    OptionError::Unsupported {
        option: format!("{name}={value}"),
        why,
    }
}

/// Takes an option. False if ext4 has none of that name.
///
/// # Errors
/// The value makes no sense, or asks for what is not done.
pub(super) fn set(
    options: &mut Options,
    name: &str,
    value: Option<&str>,
) -> Result<bool, OptionError> {
    match (name, value) {
        ("noload", _) => options.no_load = true,
        ("data", Some("ordered")) => options.data = DataMode::Ordered,
        ("data", Some("writeback")) => options.data = DataMode::Writeback,
        ("data", Some("journal")) => options.data = DataMode::Journal,
        ("inode_search", Some(words)) => search(&mut options.alloc, words)?,
        ("fast_commit", Some("careful")) => options.fast_commit = FastCommits::Careful,
        ("fast_commit", Some("full")) => options.fast_commit = FastCommits::Full,
        ("fast_commit", Some("off")) => options.fast_commit = FastCommits::Off,
        ("errors", Some("remount-ro")) => {}
        ("errors", Some(value @ ("continue" | "panic"))) => {
            let why = "after an error a mount takes no more changes, and nothing else";
            return Err(unsupported(name, value, why));
        }
        ("data" | "inode_search" | "fast_commit" | "errors", _) => return Err(bad(name, value)),
        _ => return Ok(WITHOUT_EFFECT.contains(&name)),
    }
    Ok(true)
}

/// `locked` or `restart` (what happens after a lost race), `spread` or `together` (where threads
/// begin), with a colon between.
fn search(policy: &mut AllocPolicy, words: &str) -> Result<(), OptionError> {
    for word in words.split(':') {
        match word {
            "locked" => policy.search_again_locked = true,
            "restart" => policy.search_again_locked = false,
            "spread" => policy.spread = true,
            "together" => policy.spread = false,
            _ => return Err(bad("inode_search", Some(words))),
        }
    }
    Ok(())
}
