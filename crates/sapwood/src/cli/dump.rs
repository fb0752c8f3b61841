//! `sapwood dump`: the trees as they stand, for people who know the format.

use std::path::PathBuf;
use std::sync::Arc;

use sapwood::Kind;
use sapwood_block::Device;
use sapwood_btrfs::inspect::{self, TreeChoice};
use sapwood_btrfs_format::{DumpBlock, DumpSuper};

use super::failure::{Failure, IMAGE, Result, USAGE};
use super::output;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Image
    image: PathBuf,
    /// Tree to print: super, root, chunk, log, a name (extent, dev, fs, csum, uuid, free-space, block-group), or a number;
    /// without one all trees
    tree: Option<String>,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let (device, kind) = sapwood::image::open_known(&args.image, true)?;
    match kind {
        Kind::Btrfs => btrfs(args, device),
        Kind::Ext4 => Err(Failure::local(
            &args.image,
            "a dump of ext4 is not built in yet",
        )),
    }
}

fn btrfs(args: &Args, device: Arc<dyn Device>) -> Result<()> {
    let fail = |error: sapwood_btrfs::Error| Failure::local(&args.image, error).with_code(IMAGE);
    if args.tree.as_deref() == Some("super") {
        let super_block = inspect::super_block(&[device]).map_err(fail)?;
        output::line(DumpSuper(&super_block));
        return Ok(());
    }
    let choice = match args.tree.as_deref() {
        None | Some("all") => TreeChoice::All,
        Some(name) => TreeChoice::named(name)
            .ok_or_else(|| Failure::new(USAGE, format!("no tree is called {name}")))?,
    };
    inspect::walk(&[device], choice, &mut |block: &[u8]| {
        output::line(DumpBlock(block))
    })
    .map_err(fail)
}
