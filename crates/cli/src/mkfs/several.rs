//! A btrfs over several devices.

use std::path::Path;
use std::sync::Arc;

use sapwood::block::{Device, Operand};
use sapwood::internal::image::OpenError;
use sapwood::internal::{NewFile, mkfs_several};
use sapwood::{FileSystem, MkfsOptions, OutputFormat, Sources};

use super::super::failure::{Failure, Result, USAGE};
use super::super::{choice, files, interrupt};
use super::{Args, mkfs_failure, not_encrypted, open, print, root_owner, set_owner};

/// Makes it in files, devices, partitions and exports. `--size` creates the files that do not
/// exist; they get their names at the end.
pub(super) fn run(args: &Args, options: &MkfsOptions, sources: &Sources) -> Result<()> {
    if !sources.is_empty() {
        let why = "several devices are filled after they are made: sapwood cp --device";
        return Err(Failure::new(USAGE, why));
    }
    if args.output_format != OutputFormat::Raw {
        let why = format_args!("{} is for one new file", args.output_format);
        return Err(Failure::local(&args.image, why));
    }
    interrupt::abandon_new_files();
    let (mut devices, mut new) = (Vec::new(), Vec::new());
    for path in std::iter::once(&args.image).chain(&args.others) {
        files::refuse_stream(path)?;
        match options.size().filter(|_| is_missing(path)) {
            Some(_) if choice::has_key() => return Err(not_encrypted(path)),
            Some(size) => {
                let file = NewFile::create(path, false)?;
                devices.push(file.device_of(size).map_err(OpenError::from)?);
                new.push(file);
            }
            None => devices.push(open(path)?),
        }
    }
    let each: Vec<&dyn Device> = devices.iter().map(Arc::as_ref).collect();
    let made = mkfs_several(&each, &args.image, options, false);
    let made = made.map_err(|error| mkfs_failure(&args.image, &error))?;
    drop(devices);
    new.into_iter().try_for_each(NewFile::finish)?;
    if let Some((uid, gid)) = root_owner(options) {
        let mut opening = choice::fixed(choice::opening(false))?;
        for other in &args.others {
            opening.add_device(other);
        }
        let fs = FileSystem::open_with_options(&args.image, &opening)?;
        set_owner(fs, &args.image, uid, gid)?;
    }
    print(args, options, &made, None)
}

fn is_missing(path: &Path) -> bool {
    !Operand::is_fixed(path) && !Operand::exists(path)
}
