//! Images that are opened for reading keep every byte, with any option.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use libtest_mimic::Trial;
use sapwood::Kind;
use sapwood::internal::image::{self, OpenError};
use sapwood::internal::options::table::{self, Effect};
use sapwood::vfs::{Credentials, NewInode};
use sapwood_testing::FileContent;
use sapwood_testing::tree::{Detail, Tree};
use sapwood_tests::image::{Mkfs, TempImage};
use sapwood_tests::{Outcome, trial};

use super::options::sample;

pub(crate) fn trials() -> Vec<Trial> {
    let kinds = [Kind::Btrfs, Kind::Ext4];
    let trials = kinds.map(|kind| {
        let name = format!("options::read_only_changes_no_byte_{kind}");
        trial(name, &[], move || changes_no_byte(kind))
    });
    trials.into()
}

/// An image with files, and its state before the last commit or recovery.
fn images(kind: Kind) -> Result<[TempImage; 2], Box<dyn std::error::Error + Send + Sync>> {
    let size = if kind == Kind::Ext4 {
        24 << 20
    } else {
        110 << 20
    };
    let mkfs = Mkfs {
        kind,
        ..Mkfs::ours("").sized(size)
    };
    let clean = TempImage::new(&mkfs)?;
    let fs = sapwood::open(clean.path())?;
    fs.create_dir_all("a/b")?;
    fs.write("a/old", vec![1; 100_000])?;
    fs.set_xattr("a/old", "user.x", b"value")?;
    fs.close()?;
    let torn = clean.copy()?;
    let fs = sapwood::open(clean.path())?;
    let mut file = fs.create("a/b/new")?;
    file.write_all(&[2; 50_000])?;
    file.sync_all()?;
    fs::copy(clean.path(), torn.path())?;
    drop(file);
    fs.close()?;
    Ok([clean, torn])
}

/// Times of the file that change with each write.
fn times(path: &Path) -> std::io::Result<(i64, i64)> {
    let found = path.metadata()?;
    Ok((found.mtime(), found.mtime_nsec()))
}

fn changes_no_byte(kind: Kind) -> Outcome {
    let mut opened = 0;
    for image in images(kind)? {
        let (before, since) = (FileContent::of(image.path())?, times(image.path())?);
        for option in table::all() {
            if matches!(option.effect, Effect::Refused) {
                continue;
            }
            for name in option.names {
                let name = name.replace('*', "word");
                let mut options = sapwood::Options::default();
                // `rw` among them.
                if options.set(&name, sample(option.form)).is_err() {
                    continue;
                }
                options.set_read_only();
                let fs = match image::open(image.path(), &options) {
                    Ok(fs) => fs,
                    Err(OpenError::Device(_)) if !matches!(&*name, "device" | "journal_path") => {
                        return Err(format!("{name}: busy").into());
                    }
                    Err(_) => continue,
                };
                opened += 1;
                let tree =
                    Tree::of(&*fs, Detail::Sums).map_err(|error| format!("{name}: {error}"))?;
                if tree.find(fs.root(), b"a").is_none() && name != "subvol" {
                    return Err(format!("{name}: no files").into());
                }
                let who = Credentials::ROOT;
                if fs
                    .create(&who, fs.root(), b"x", NewInode::Regular, 0o600)
                    .is_ok()
                {
                    return Err(format!("{name}: a file was made").into());
                }
                if fs.sync().is_ok() {
                    fs.statfs()?;
                }
                fs.unmount()?;
                if times(image.path())? != since {
                    return Err(format!("{name}: the image was written to").into());
                }
            }
        }
        if FileContent::of(image.path())? != before {
            return Err("the image changed".into());
        }
    }
    if opened < 50 {
        return Err(format!("only {opened} options could be used").into());
    }
    Ok(())
}
