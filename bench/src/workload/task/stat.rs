//! `stat` of many files.

use std::fs::{self, File};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use sapwood_vfs::{Credentials, FileSystem, Ino, NewInode};

use crate::contestant::Standing;
use crate::error::on;
use crate::figures::Seen;
use crate::workload::Place;
use crate::{Error, Result};

const PER_DIRECTORY: u32 = 1000;

pub(super) fn run(standing: &mut Standing, files: u32) -> Result<Seen> {
    fill(&standing.place()?, files)?;
    standing.begin()?;
    standing.remount_cold()?;
    let place = standing.place()?;
    let cold = timed(&place, files)?;
    let warm = timed(&place, files)?;
    Ok(Seen::rate(cold).with("warm", warm))
}

fn directories(files: u32) -> impl Iterator<Item = (String, u32)> {
    let count = files.div_ceil(PER_DIRECTORY);
    (0..count).map(move |number| {
        let left = files - number * PER_DIRECTORY;
        (format!("dir-{number}"), left.min(PER_DIRECTORY))
    })
}

fn fill(place: &Place, files: u32) -> Result<()> {
    for (name, count) in directories(files) {
        match place {
            Place::Directory(root) => {
                let dir = root.join(name);
                fs::create_dir(&dir).map_err(on(&dir))?;
                for number in 0..count {
                    let path = dir.join(format!("file-{number}"));
                    File::create(&path).map_err(on(&path))?;
                }
            }
            Place::Library(fs) => {
                let (who, what) = (Credentials::ROOT, NewInode::Directory);
                let dir = fs.create(&who, fs.root(), name.as_bytes(), what, 0o755)?;
                for number in 0..count {
                    let name = format!("file-{number}");
                    let what = NewInode::Regular;
                    let made = fs.create(&who, dir.ino(), name.as_bytes(), what, 0o644)?;
                    fs.forget(made.ino(), 1);
                }
                fs.forget(dir.ino(), 1);
            }
        }
    }
    Ok(())
}

/// Files per second of a walk over all files.
fn timed(place: &Place, files: u32) -> Result<f64> {
    let began = Instant::now();
    let found = match place {
        Place::Directory(dir) => walk(dir)?,
        Place::Library(fs) => walk_inside(&**fs)?,
    };
    if found != u64::from(files) {
        return Err(Error::Refused(format!(
            "{found} of {files} files are there"
        )));
    }
    Ok(f64::from(files) / began.elapsed().as_secs_f64())
}

fn walk(root: &Path) -> Result<u64> {
    let mut found = 0;
    let list = |dir: &Path| fs::read_dir(dir).map_err(on(dir));
    for dir in list(root)? {
        let dir = dir.map_err(on(root))?.path();
        // Files of mkfs, such as lost+found.
        if !dir
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with("dir-"))
        {
            continue;
        }
        for file in list(&dir)? {
            let file = file.map_err(on(&dir))?;
            let status = file.metadata().map_err(on(&file.path()))?;
            found += u64::from(status.is_file());
        }
    }
    Ok(found)
}

fn names(fs: &dyn FileSystem, dir: Ino) -> Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        names.push(entry.name.to_vec());
        ControlFlow::Continue(())
    })?;
    Ok(names)
}

fn walk_inside(fs: &dyn FileSystem) -> Result<u64> {
    let mut found = 0;
    for name in names(fs, fs.root())? {
        if !name.starts_with(b"dir-") {
            continue;
        }
        let dir = fs.lookup(fs.root(), &name)?;
        for name in names(fs, dir.ino())? {
            let file = fs.lookup(dir.ino(), &name)?;
            fs.getattr(file.ino())?;
            fs.forget(file.ino(), 1);
            found += 1;
        }
        fs.forget(dir.ino(), 1);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use sapwood_block::MemoryDevice;
    use sapwood_btrfs::{Btrfs, Options, mkfs};

    #[test]
    fn all_files_are_found_in_a_directory_and_in_process() {
        assert_eq!(
            directories(1001)
                .map(|(_, count)| count)
                .collect::<Vec<_>>(),
            [1000, 1]
        );
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("lost+found")).unwrap();
        let place = Place::Directory(dir.path().to_owned());
        fill(&place, 1003).unwrap();
        assert_eq!(walk(dir.path()).unwrap(), 1003);
        let device = Arc::new(MemoryDevice::new(256 << 20));
        mkfs::mkfs(&*device, &mkfs::MkfsOptions::default()).unwrap();
        let fs = Arc::new(Btrfs::open(vec![device], Options::default()).unwrap());
        fill(&Place::Library(fs.clone()), 1003).unwrap();
        assert_eq!(walk_inside(&*fs).unwrap(), 1003);
        assert!(timed(&place, 1004).is_err());
        fs.unmount().unwrap();
    }
}
