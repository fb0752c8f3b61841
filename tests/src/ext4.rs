//! The variants of ext4 that both directions with the kernel are tried on.

use crate::fill::Limits;
use crate::image::{Mkfs, TempImage};
use crate::mount::Driver;

/// One variant: how it is made, and how it is mounted when it is filled.
#[derive(Debug, Clone)]
pub struct Variant {
    /// Name of the tests.
    pub name: &'static str,
    /// How it is made.
    pub mkfs: Mkfs,
    /// Mount options.
    pub options: &'static str,
    /// Bytes of a block.
    pub block_size: usize,
    /// Files are mapped by extents, not by block pointers.
    pub extents: bool,
    /// Large attributes have inodes of their own.
    pub ea_inode: bool,
    /// We only read it.
    pub read_only: bool,
    /// Not every kernel mounts it.
    pub uncertain: bool,
}

/// The seed of all fillings.
const SEED: u64 = 0xe8_4007;

impl Variant {
    fn new(name: &'static str, args: &str) -> Self {
        Self {
            name,
            mkfs: Mkfs::ext4(args),
            options: "rw",
            block_size: 4096,
            extents: true,
            ea_inode: false,
            read_only: false,
            uncertain: false,
        }
    }

    fn blocks(self, block_size: usize) -> Self {
        Self { block_size, ..self }
    }

    fn indirect(self) -> Self {
        Self {
            extents: false,
            ..self
        }
    }

    fn mounted(self, options: &'static str) -> Self {
        Self { options, ..self }
    }

    fn only_read(self) -> Self {
        Self {
            read_only: true,
            ..self
        }
    }

    fn uncertain(self) -> Self {
        Self {
            uncertain: true,
            ..self
        }
    }

    fn then(self, command: &[&str]) -> Self {
        Self {
            mkfs: self.mkfs.then(command),
            ..self
        }
    }

    /// Sets the hash of directories.
    fn hashed(self, algorithm: &str) -> Self {
        let option = format!("hash_alg={algorithm}");
        self.then(&["tune2fs", "-E", &option])
    }

    /// Bytes of names count as unsigned in the hash (bit 1 of `s_flags`).
    fn unsigned(self) -> Self {
        self.then(&["debugfs", "-w", "-R", "set_super_value flags 2"])
    }

    /// The limits of the fill.
    #[must_use]
    pub fn limits(&self) -> Limits {
        let limits = Limits::ext4(crate::random::seed(SEED), self.block_size, self.extents);
        Limits {
            value: if self.ea_inode { 20_000 } else { limits.value },
            names: if self.name == "default" {
                5000
            } else {
                limits.names
            },
            ..limits
        }
    }

    /// Whether `make test` tries it; `make matrices` tries all.
    #[must_use]
    pub fn always(&self) -> bool {
        ALWAYS.contains(&self.name)
    }

    /// The reason why this machine cannot make or mount it, if it cannot.
    #[must_use]
    pub fn impossible(&self) -> Option<String> {
        if !self.uncertain {
            return None;
        }
        // The reason follows the line with the command and its exit status.
        let one_line = |why: String| why.lines().skip(1).collect::<Vec<_>>().join(" ");
        let image = match TempImage::by_kernel(&self.mkfs) {
            Ok(image) => image,
            Err(why) => return Some(one_line(why)),
        };
        match Driver::Kernel.mount(image.path(), self.options) {
            Ok(mount) => mount.unmount().err().map(one_line),
            Err(why) => Some(one_line(why)),
        }
    }
}

/// All variants.
#[must_use]
pub fn variants() -> Vec<Variant> {
    [sizes(), layouts(), journals(), files(), directories()].concat()
}

/// Variants that are tried each time; the others run in long runs.
const ALWAYS: [&str; 7] = [
    "default",
    "blocks-1k",
    "no-checksums",
    "fast-commit",
    "orphan-file",
    "ext3",
    "inline-data",
];

fn sizes() -> Vec<Variant> {
    let new = Variant::new;
    vec![
        new("default", ""),
        new("blocks-1k", "-b 1024").blocks(1024),
        new("blocks-2k", "-b 2048").blocks(2048),
        new("inodes-128", "-I 128"),
        new("inodes-512", "-I 512"),
        new("inodes-1024", "-I 1024"),
        new("blocks-1k-inodes-128", "-b 1024 -I 128").blocks(1024),
        new("blocks-1k-inodes-1024", "-b 1024 -I 1024").blocks(1024),
        new("no-extra-isize", "-O ^extra_isize"),
        new("big-inode-tables", "-I 1024 -i 4096 -O 64bit"),
        new("few-inodes", "-N 4000"),
    ]
}

fn layouts() -> Vec<Variant> {
    let new = Variant::new;
    vec![
        new("no-64bit", "-O ^64bit"),
        new("no-flex-bg", "-O ^flex_bg"),
        new("flex-64", "-G 64"),
        new("small-groups", "-g 8192"),
        new("meta-bg", "-O meta_bg,^resize_inode"),
        new("meta-bg-1k", "-b 1024 -O meta_bg,^resize_inode").blocks(1024),
        new("no-resize-inode", "-O ^resize_inode"),
        new("sparse-super2", "-O sparse_super2,^resize_inode"),
        new("no-sparse-super", "-O ^sparse_super,^resize_inode"),
        new("packed-metadata", "-E packed_meta_blocks=1"),
        new("no-checksums", "-O ^metadata_csum"),
        new("uninit-bg", "-O ^metadata_csum,uninit_bg"),
        new("checksum-seed", "-O metadata_csum_seed"),
        new("eager-tables", "-E lazy_itable_init=0,lazy_journal_init=0"),
        new("bigalloc", "-O bigalloc").only_read(),
        new("bigalloc-1k-64k", "-b 1024 -O bigalloc -C 65536")
            .blocks(1024)
            .only_read(),
    ]
}

fn journals() -> Vec<Variant> {
    let new = Variant::new;
    vec![
        new("no-journal", "-O ^has_journal"),
        new("small-journal", "-J size=4"),
        new("small-journal-1k", "-b 1024 -J size=1").blocks(1024),
        new("fast-commit", "-O fast_commit"),
        new("data-journal", "").mounted("data=journal"),
        new("data-writeback", "").mounted("data=writeback"),
        new("orphan-file", "-O orphan_file"),
        new("no-orphan-file", "-O ^orphan_file"),
    ]
}

fn files() -> Vec<Variant> {
    let new = Variant::new;
    vec![
        new("indirect", "-O ^extents,^64bit").indirect(),
        new("indirect-2k", "-b 2048 -O ^extents,^64bit")
            .indirect()
            .blocks(2048),
        new("indirect-1k", "-b 1024 -O ^extents,^64bit")
            .indirect()
            .blocks(1024),
        new("ext2", "-t ext2").indirect(),
        new("ext2-1k-inodes-128", "-t ext2 -b 1024 -I 128")
            .indirect()
            .blocks(1024),
        new("ext3", "-t ext3").indirect(),
        new("ext3-1k", "-t ext3 -b 1024").indirect().blocks(1024),
        new("inline-data", "-O inline_data"),
        new("inline-data-1k", "-b 1024 -I 512 -O inline_data").blocks(1024),
        Variant {
            ea_inode: true,
            ..new("ea-inode", "-O ea_inode")
        },
        new("no-huge-file", "-O ^huge_file"),
        new("no-large-file", "-O ^huge_file,^large_file"),
    ]
}

fn directories() -> Vec<Variant> {
    let new = Variant::new;
    vec![
        new("no-dir-index", "-O ^dir_index"),
        new("no-filetype", "-O ^filetype"),
        new("no-dir-nlink", "-O ^dir_nlink"),
        new("large-dir", "-O large_dir"),
        new("large-dir-1k", "-b 1024 -O large_dir").blocks(1024),
        new("hash-legacy", "").hashed("legacy"),
        new("hash-tea", "").hashed("tea"),
        new("hash-half-md4-unsigned", "").unsigned(),
        new("hash-legacy-unsigned", "").hashed("legacy").unsigned(),
        new("hash-tea-unsigned-1k", "-b 1024")
            .hashed("tea")
            .unsigned()
            .blocks(1024),
        new(
            "hash-seed",
            "-E hash_seed=01234567-89ab-cdef-0123-456789abcdef",
        ),
        new("casefold", "-O casefold").uncertain(),
        new("quota", "-O quota").uncertain(),
        new("project-quota", "-O project,quota").uncertain(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_always_tried_exists() {
        let all = variants();
        let chosen = all.iter().filter(|variant| variant.always());
        assert_eq!(chosen.count(), ALWAYS.len());
    }
}
