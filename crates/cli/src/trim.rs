//! `sapwood trim`.

use std::path::PathBuf;

use serde_json::json;

use super::failure::Result;
use super::{choice, output};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Image that nothing has mounted; fstrim(8) is for mounts
    pub(super) image: PathBuf,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let options = choice::fixed(choice::opening(false))?;
    let bytes = sapwood::trim_with_options(&args.image, &options)?;
    if args.json {
        return output::object(&json!({ "bytes": bytes }));
    }
    if args.quiet {
        return Ok(());
    }
    let (image, size) = (args.image.display(), output::size(bytes));
    output::line(format!("{image}: {size} ({bytes} bytes) trimmed"))
}
