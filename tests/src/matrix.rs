//! The variants of btrfs that both directions with the kernel are tried on.

use crate::fill::Limits;
use crate::image::{Maker, Mkfs};
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
    /// Bytes of a tree block.
    pub node_size: usize,
    /// Extended references.
    pub extended_refs: bool,
}

/// The seed of all fillings.
const SEED: u64 = 0x5a9_3007;

impl Variant {
    fn kernel(name: &'static str, args: &str) -> Self {
        Self {
            name,
            mkfs: Mkfs::with(args),
            options: "rw",
            node_size: 16384,
            extended_refs: true,
        }
    }

    fn ours(name: &'static str, args: &str) -> Self {
        Self {
            mkfs: Mkfs::ours(args),
            ..Self::kernel(name, "")
        }
    }

    fn node(self, node_size: usize) -> Self {
        Self { node_size, ..self }
    }

    fn mounted(self, options: &'static str) -> Self {
        Self { options, ..self }
    }

    fn sized(self, size: u64) -> Self {
        Self {
            mkfs: self.mkfs.sized(size),
            ..self
        }
    }

    fn without_extended_refs(self) -> Self {
        Self {
            extended_refs: false,
            ..self
        }
    }

    /// Whether `make test` tries it; `make matrices` tries all.
    #[must_use]
    pub fn always(&self) -> bool {
        ALWAYS.contains(&self.name)
    }

    /// The limits of the fill.
    #[must_use]
    pub fn limits(&self) -> Limits {
        let limits = Limits::new(
            crate::random::seed(SEED),
            self.node_size,
            self.extended_refs,
        );
        let names = if self.name == "default" {
            5000
        } else {
            limits.names
        };
        Limits {
            names,
            packed: !self.options.starts_with("nodata"),
            ..limits
        }
    }

    /// Mount options for a driver: Sapwood needs none for free space.
    #[must_use]
    pub fn options_for(&self, driver: Driver) -> &'static str {
        let of_kernel = self.options.contains("space_cache");
        if of_kernel && driver == Driver::Sapwood {
            "rw"
        } else {
            self.options
        }
    }

    /// Variants that agree in this are filled to the same tree.
    #[must_use]
    pub fn outcome(&self) -> (Limits, &'static str) {
        (self.limits(), self.options_for(Driver::Sapwood))
    }

    /// True if it needs `sapwood mkfs`.
    #[must_use]
    pub fn by_us(&self) -> bool {
        self.mkfs.maker == Maker::Sapwood
    }
}

/// Variants that stand for the others: the least and the largest tree blocks, old and new forms of
/// items, each place of the space cache, compression, each kind of data.
const ALWAYS: [&str; 8] = [
    "default",
    "mixed",
    "space-cache-v1",
    "old",
    "4k-sha256-holes-lzo",
    "64k-blake2-zlib",
    "nodatacow",
    "ours",
];

/// All variants.
#[must_use]
pub fn variants() -> Vec<Variant> {
    let old = "-n 4096 -O ^no-holes,^extref,^skinny-metadata -R ^free-space-tree";
    vec![
        Variant::kernel("default", ""),
        Variant::kernel("nodes-4k", "-n 4096").node(4096),
        Variant::kernel("nodes-8k", "-n 8192").node(8192),
        Variant::kernel("nodes-32k", "-n 32768").node(32768),
        Variant::kernel("nodes-64k", "-n 65536").node(65536),
        Variant::kernel("xxhash", "--csum xxhash"),
        Variant::kernel("sha256", "--csum sha256"),
        Variant::kernel("blake2", "--csum blake2"),
        Variant::kernel("metadata-single", "-m single"),
        Variant::kernel("all-dup", "-m dup -d dup").sized(2 << 30),
        Variant::kernel("mixed", "-M").node(4096).sized(512 << 20),
        Variant::kernel("mixed-dup", "-M -m dup -d dup").node(4096),
        Variant::kernel("explicit-holes", "-O ^no-holes"),
        Variant::kernel("space-cache-v1", "-R ^free-space-tree").mounted("space_cache=v1"),
        Variant::kernel("no-space-cache", "-R ^free-space-tree").mounted("nospace_cache"),
        Variant::kernel("fat-extents", "-O ^skinny-metadata"),
        Variant::kernel("no-extref", "-O ^extref").without_extended_refs(),
        Variant::kernel("old", old)
            .node(4096)
            .without_extended_refs(),
        Variant::kernel("zlib", "").mounted("compress=zlib"),
        Variant::kernel("lzo", "").mounted("compress=lzo"),
        Variant::kernel("zstd", "").mounted("compress=zstd"),
        Variant::kernel("zstd-force", "").mounted("compress-force=zstd:9"),
        Variant::kernel(
            "4k-sha256-holes-lzo",
            "-n 4096 --csum sha256 -O ^no-holes -m single",
        )
        .node(4096)
        .mounted("compress-force=lzo"),
        Variant::kernel("64k-blake2-zlib", "-n 65536 --csum blake2")
            .node(65536)
            .mounted("compress=zlib"),
        Variant::kernel("nodatacow", "").mounted("nodatacow"),
        Variant::kernel("nodatasum", "").mounted("nodatasum"),
        Variant::kernel("no-inline", "").mounted("max_inline=0"),
        Variant::ours("ours", ""),
        Variant::ours("ours-block-group-tree", "-O block-group-tree"),
        Variant::ours("ours-no-block-group-tree", "-O ^block-group-tree"),
        Variant::ours("ours-4k-sha256", "-n 4k --checksum sha256").node(4096),
        Variant::ours(
            "ours-64k-blake2-single",
            "-n 64k --checksum blake2 -m single",
        )
        .node(65536),
        Variant::ours("ours-mixed", "-M")
            .node(4096)
            .sized(512 << 20),
        Variant::ours(
            "ours-plain",
            "-O ^no-holes,^free-space-tree,^block-group-tree",
        )
        .mounted("nospace_cache"),
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
