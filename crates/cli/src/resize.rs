//! `sapwood resize`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use sapwood::internal::ResizeError;
use sapwood::{NewSize, Progress};
use serde_json::json;

use super::failure::{FAILED, Failure, Result, USAGE};
use super::{output, progress, times};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Image that nothing has mounted, or a directory in a mount by Sapwood. The end of a partition
    /// (IMAGE#PART) moves if there is room
    image: PathBuf,
    /// New size: bytes, or with k, M, G, T; +SIZE or -SIZE for a change; max for all of the device;
    /// min for the smallest size. DEVID:SIZE for a device of a mounted btrfs. May precede IMAGE
    #[arg(allow_hyphen_values = true)]
    size: OsString,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A new size, and the device that gets it.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Wanted {
    devid: Option<u64>,
    size: NewSize,
}

impl Wanted {
    fn parse(text: &str) -> sapwood::Result<Self> {
        let device = text.split_once(':');
        let device = device.and_then(|(devid, size)| Some((devid.parse().ok()?, size)));
        let (devid, size) = device.map_or((None, text), |(devid, size)| (Some(devid), size));
        size.parse().map(|size| Self { devid, size })
    }
}

impl Args {
    /// The image, which may be the second operand, as for `btrfs filesystem resize`.
    pub(super) fn image_mut(&mut self) -> &mut PathBuf {
        let is_size = self
            .image
            .to_str()
            .is_some_and(|text| Wanted::parse(text).is_ok());
        let second = Path::new(&self.size);
        if is_size && !self.image.exists() && second.exists() {
            let image = PathBuf::from(std::mem::take(&mut self.size));
            self.size = std::mem::replace(&mut self.image, image).into_os_string();
        }
        &mut self.image
    }
}

pub(super) fn run(mut args: Args) -> Result<()> {
    args.image_mut();
    let size = args.size.to_string_lossy();
    let wanted = Wanted::parse(&size).map_err(|error| Failure::new(USAGE, error))?;
    let bar = progress::moved(args.quiet || args.json);
    let mut show = |step: Progress<'_>| {
        if let Progress::Done { done, .. } = step {
            bar.set_position(done);
        }
    };
    let resized = match (wanted.devid, times::source_date_epoch()?) {
        (Some(devid), _) => sapwood::resize_device(&args.image, devid, wanted.size, &mut show),
        (None, Some(time)) if !args.image.is_dir() => {
            sapwood::resize_reproducibly(&args.image, wanted.size, time, &mut show)
        }
        (None, _) => sapwood::resize(&args.image, wanted.size, &mut show),
    };
    bar.finish_and_clear();
    let report = resized.map_err(|error| match error.downcast() {
        Ok(ResizeError::Open(error)) => error.into(),
        Ok(error) => Failure::new(FAILED, error),
        Err(error) => error.into(),
    })?;
    if args.json {
        return output::object(&json!({ "before": report.before, "after": report.after }));
    }
    if args.quiet {
        return Ok(());
    }
    let (image, size) = (args.image.display(), output::size(report.after));
    output::line(format!("{image}: {size} ({report})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_id_may_precede_the_size() {
        let parsed = |text: &str| Wanted::parse(text);
        let wanted = |devid, size| Wanted { devid, size };
        assert_eq!(parsed("2:max").unwrap(), wanted(Some(2), NewSize::Max));
        assert_eq!(
            parsed("1:+1M").unwrap(),
            wanted(Some(1), NewSize::More(1 << 20))
        );
        assert_eq!(parsed("4k").unwrap(), wanted(None, NewSize::Exactly(4096)));
        for bad in [
            "",
            ":",
            "x:1M",
            "1:",
            "1:2:3",
            ":1M",
            "99999999999999999999:1M",
        ] {
            assert!(parsed(bad).is_err(), "{bad}");
        }
    }
}
