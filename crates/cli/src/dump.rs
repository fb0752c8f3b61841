//! `sapwood dump`: the trees of an image, for readers who know the format.

use std::path::PathBuf;

use super::failure::Result;
use super::{choice, info, output};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Image
    pub(super) image: PathBuf,
    /// btrfs: tree to print: super, root, chunk, log, a name (extent, dev, fs, csum, uuid,
    /// free-space, block-group), or a number; without one all trees.
    /// ext4: super, groups, group:N, journal, or inode:X, map:X, dir:X, attrs:X with the number or
    /// the path of an inode; without one super and groups
    tree: Option<String>,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let (options, tree) = (choice::opening(true), args.tree.as_deref());
    let dumped = sapwood::dump_with_options(&args.image, &options, tree, &mut |text| {
        output::line_or_end(text);
    });
    dumped.map_err(info::failure)
}
