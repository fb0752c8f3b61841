//! Comparison of two trees that tests have filled, at several levels of strictness.

use sapwood_testing::tree::{Facts, PLACEHOLDER, Tree, TreeInode};
use sapwood_vfs::Timestamp;

/// The strictness of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compare {
    /// Two views of one image: everything.
    SameImage,
    /// The same, but the first tree was taken before everything was written out.
    Live,
    /// Two images filled alike: compares everything except inode numbers, times that were not set,
    /// and allocation.
    AlikeFill,
    /// Like `AlikeFill`, for file systems whose directory sizes depend on a seed and on their
    /// history.
    AlikeTree,
}

/// Flag of a file that was found not to compress (`m`).
const NO_COMPRESS: u32 = 0x400;

/// Flags for ext4's storage of a file (index, huge, extents, inline), in which two images may
/// differ.
const LAYOUT: u32 = 0x1000 | 0x4_0000 | 0x8_0000 | 0x1000_0000;

/// Paths below which times were not set.
const OWN_TIMES: [&str; 2] = ["now", "sub"];

/// Compares two trees.
///
/// # Errors
/// The differences, one line for each, up to 40.
pub fn compare(expected: &Tree, found: &Tree, how: Compare) -> Result<(), String> {
    let prepared = |tree: &Tree| {
        let tree = tree.clone();
        match how {
            Compare::SameImage => tree,
            // Whether a file does not compress shows only when it is written out, and not each
            // time.
            Compare::Live | Compare::AlikeFill => tree.without_flags(LAYOUT | NO_COMPRESS),
            // Between two images that were filled alike, one through FUSE, data is compared by
            // pages.
            Compare::AlikeTree => tree.without_flags(LAYOUT | NO_COMPRESS).in_pages(),
        }
    };
    let choose = |path: &str, one: &TreeInode, two: &TreeInode| facts(path, one, two, how);
    prepared(expected).compare(&prepared(found), choose)
}

fn facts(path: &str, expected: &TreeInode, found: &TreeInode, how: Compare) -> Facts {
    let mut facts = Facts::MODE | Facts::LINKS | Facts::SIZE | Facts::IDENTITY;
    if expected.is_dir() && how == Compare::AlikeTree {
        facts -= Facts::SIZE;
    }
    if path != "." && expected.number == PLACEHOLDER && found.number == PLACEHOLDER {
        return facts;
    }
    facts |= Facts::FLAGS | Facts::CONTENT | Facts::DATA | Facts::XATTRS;
    let times = expected.times.unwrap_or_default();
    let others = found.times.unwrap_or_default();
    let cut = |left: Timestamp, right: Timestamp| how == Compare::Live && is_cut(left, right);
    match how {
        Compare::AlikeFill | Compare::AlikeTree => {
            let own = OWN_TIMES.iter().any(|own| path.starts_with(own));
            facts.set(Facts::MTIME, !own && path != ".");
        }
        Compare::SameImage => {
            // Data that is not written out yet may be counted in addition to the data that it
            // replaces, so these facts count only here.
            facts |= Facts::NUMBER | Facts::MTIME | Facts::CTIME | Facts::BTIME | Facts::BLOCKS;
        }
        Compare::Live => {
            facts |= Facts::NUMBER | Facts::BTIME;
            facts.set(Facts::MTIME, !cut(times.mtime, others.mtime));
            // A change of flags changes a time, and FUSE's cache is not told.
            let in_flags = path.split('/').any(|name| name == "flags");
            facts.set(Facts::CTIME, !in_flags && !cut(times.ctime, others.ctime));
        }
    }
    facts
}

/// True if `found` is the time `asked` as ext4 stores it: 34 bits of seconds, or 32 without
/// nanoseconds. FUSE's cache shows the requested time until it forgets the inode.
fn is_cut(asked: Timestamp, found: Timestamp) -> bool {
    let earliest = i64::from(i32::MIN);
    let short = asked.sec.clamp(earliest, i32::MAX.into());
    let long = asked.sec.clamp(earliest, i64::from(i32::MAX) + (3 << 32));
    found.nsec == 0 && (found.sec == short || (found.sec == long && long != asked.sec))
}
