//! `sapwood dump`: the trees as they stand, for people who know the format.

use std::path::PathBuf;
use std::sync::Arc;

use sapwood::Kind;
use sapwood_block::Device;
use sapwood_btrfs::inspect::{self, TreeChoice};
use sapwood_btrfs_format::{DumpBlock, DumpSuper};
use sapwood_ext4::inspect::{Image, What};

use super::failure::{Failure, IMAGE, Result, USAGE};
use super::output;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Image
    pub(super) image: PathBuf,
    /// btrfs: tree to print: super, root, chunk, log, a name (extent, dev, fs, csum, uuid, free-space, block-group), or a number;
    /// without one all trees.
    /// ext4: super, groups, group:N, journal, or inode:X, map:X, dir:X, attrs:X with the number or
    /// the path of an inode; without one super and groups
    tree: Option<String>,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let (device, kind) = sapwood::image::open_known(&args.image, true)?;
    match kind {
        Kind::Btrfs => btrfs(args, device),
        Kind::Ext4 => ext4(args, device),
    }
}

fn ext4(args: &Args, device: Arc<dyn Device>) -> Result<()> {
    let what = match args.tree.as_deref() {
        None | Some("all") => vec![What::Super, What::Groups],
        Some(words) => {
            let unknown = || Failure::new(USAGE, format!("there is no {words} to be shown"));
            vec![What::named(words).ok_or_else(unknown)?]
        }
    };
    let fail = |error| Failure::local(&args.image, error).with_code(IMAGE);
    let image = Image::open(device).map_err(fail)?;
    for what in &what {
        let shown = image.show(what, &mut |text: String| {
            text.trim_end().lines().for_each(output::line_or_end);
        });
        shown.map_err(fail)?;
    }
    Ok(())
}

fn btrfs(args: &Args, device: Arc<dyn Device>) -> Result<()> {
    let fail = |error: sapwood_btrfs::Error| Failure::local(&args.image, error).with_code(IMAGE);
    if args.tree.as_deref() == Some("super") {
        let super_block = inspect::super_block(&[device]).map_err(fail)?;
        return output::line(DumpSuper(&super_block));
    }
    let choice = match args.tree.as_deref() {
        None | Some("all") => TreeChoice::All,
        Some(name) => TreeChoice::named(name)
            .ok_or_else(|| Failure::new(USAGE, format!("no tree is called {name}")))?,
    };
    inspect::walk(&[device], choice, &mut |block: &[u8]| {
        output::line_or_end(DumpBlock(block));
    })
    .map_err(fail)
}
