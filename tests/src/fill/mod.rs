//! A mixed tree, made by ordinary system calls in any mounted directory: every kind of inode,
//! extent, name, attribute and time that the file system can hold. The same seed and the same
//! limits make the same tree on every file system.
//!
//! | part | where | what |
//! |---|---|---|
//! | [`kinds`] | `kinds/`, `modes/` | all types of inodes, links short and long, modes, owners |
//! | [`extents`] | `data/`, `sparse/`, `shared/`, `packed/`, `nocow/` | what files consist of |
//! | [`names`] | `names/`, `links/`, `deep/`, `big/`, `moved/` | names, hard links, many names, renames |
//! | [`attributes`] | `xattrs/`, `acls/` | extended attributes and ACLs |
//! | [`times`] | everywhere | times; set on everything but what is below `now/` |
//! | [`subvolumes`] | `sub/` | subvolumes and snapshots, nested too |

mod attributes;
mod extents;
mod kinds;
mod names;
pub mod subvolumes;
pub mod times;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::random::Random;

/// The limits of the file system, and the amount of everything to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Everything that is random comes from here.
    pub seed: u64,
    /// Bytes of the largest value of an attribute; one and a half of it has to fit in an inode.
    pub value: usize,
    /// Attributes of one inode, small ones.
    pub attributes: usize,
    /// Bytes of the longest symbolic link.
    pub symlink: usize,
    /// Hard links to one inode in one directory.
    pub links: usize,
    /// Names in the big directory.
    pub names: usize,
    /// Bytes of the largest ordinary file.
    pub large: usize,
    /// Whether files can be marked for compression: not with `nodatacow` or `nodatasum`.
    pub packed: bool,
    /// Whether there is copy-on-write, with the flags that belong to it.
    pub cow: bool,
    /// Whether space can be allocated without being written.
    pub unwritten: bool,
    /// Offset in bytes of the last data in a file with long holes.
    pub far: u64,
}

impl Limits {
    /// For tree blocks of this many bytes, with or without extended references.
    #[must_use]
    pub fn new(seed: u64, node_size: usize, extended_refs: bool) -> Self {
        // A name of 40 bytes takes 50 in its item; more than a block's worth needs extended ones.
        let links = if extended_refs {
            node_size / 50 + 60
        } else {
            40
        };
        let item = node_size - 400;
        Self {
            seed,
            value: item.min(15_000),
            attributes: 120,
            symlink: item.min(4000),
            links,
            names: 700,
            large: 3 << 20,
            packed: true,
            cow: true,
            unwritten: true,
            far: 1 << 40,
        }
    }

    /// For ext4 with blocks of this many bytes, mapped by extents or by block pointers. All
    /// attributes of an inode share one block.
    #[must_use]
    pub fn ext4(seed: u64, block_size: usize, extents: bool) -> Self {
        Self {
            value: (block_size - 200) * 3 / 5,
            attributes: block_size / 100,
            symlink: block_size - 1,
            links: 300,
            packed: false,
            cow: false,
            unwritten: extents,
            // Pointers reach less far, and without `huge_file` fewer blocks can be counted.
            far: match (extents, block_size) {
                (false, 1024) => 1 << 33,
                (false, 2048) => 1 << 36,
                _ => 1 << 40,
            },
            ..Self::new(seed, 16384, true)
        }
    }
}

/// One filling of one directory.
#[derive(Debug)]
pub(crate) struct Fill<'a> {
    pub(crate) root: &'a Path,
    pub(crate) limits: Limits,
    pub(crate) random: Random,
}

impl Fill<'_> {
    /// Makes a directory below the root.
    pub(crate) fn dir(&self, name: &str) -> io::Result<PathBuf> {
        let dir = self.root.join(name);
        fs::create_dir(&dir)?;
        Ok(dir)
    }
}

/// Fills a directory (the root of a file system or subvolume), except with subvolumes. Times are
/// set at last; see [`times::set_all`].
///
/// # Errors
/// The first system call that failed, with the part it belongs to.
pub fn fill(root: &Path, limits: Limits) -> Result<(), String> {
    type Part = fn(&mut Fill<'_>) -> io::Result<()>;
    let parts: [(&str, Part); 13] = [
        ("kinds", kinds::kinds),
        ("modes", kinds::modes),
        ("data", extents::data),
        ("sparse", extents::sparse),
        ("shared", extents::shared),
        ("packed", extents::packed),
        ("nocow", extents::nocow),
        ("names", names::names),
        ("links", names::links),
        ("deep", names::deep),
        ("big", names::big),
        ("moved", names::moved),
        ("attributes", attributes::attributes),
    ];
    for (at, (name, part)) in parts.into_iter().enumerate() {
        let random = Random::new(limits.seed.wrapping_add(at as u64 * 1_000_003));
        let mut fill = Fill {
            root,
            limits,
            random,
        };
        part(&mut fill).map_err(|error| format!("filling {name}: {error}"))?;
    }
    times::fill(root, limits).map_err(|error| format!("filling times: {error}"))
}
