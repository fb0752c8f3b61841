//! The unused parts of a new image, for copies that leave them out.

use std::sync::Arc;

use parking_lot::Mutex;
use sapwood_base::RangeSet;
use sapwood_block::{Device, Layer, Result};

use crate::fs::FileSystem;
use crate::like::next_data;
use crate::new_file::NewFile;
use crate::options::Options;
use crate::vfs::TrimRange;

/// Bytes at both ends of an image that count as used: programs look for formats there.
const ENDS: u64 = 1 << 20;
/// Unused ranges begin and end at multiples of this.
const UNIT: u64 = 64 << 10;

/// A device that records what a file system discards.
#[derive(Debug)]
struct Discards {
    device: Arc<dyn Device>,
    free: Mutex<RangeSet>,
}

impl Layer for Discards {
    type Below = dyn Device;

    fn below(&self) -> &Self::Below {
        &*self.device
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        let end = offset.saturating_add(len);
        self.free.lock().insert(offset, end);
        Ok(())
    }
}

/// Ranges of a new image, in bytes, that its file system never reads: free blocks that are holes of
/// the file. None if it has no file system that can be written.
pub(crate) fn ranges(image: &NewFile) -> RangeSet {
    let mut unused = RangeSet::new();
    let Ok(device) = image.device() else {
        return unused;
    };
    let size = Device::size(&*device);
    let discards = Arc::new(Discards {
        device,
        free: Mutex::new(RangeSet::new()),
    });
    if !trim(&discards, image) {
        return unused;
    }
    let free = discards.free.lock();
    let mut at = 0;
    while at < size {
        // A block that was written after the trim is no hole.
        let end = next_data(image.file(), at).map_or(size, |data| data.min(size));
        for (from, to) in free.within(at, end) {
            let (from, to) = (from.next_multiple_of(UNIT), to - to % UNIT);
            if from < to {
                unused.insert(from, to);
            }
        }
        at = next_hole(image.file(), end).unwrap_or(size);
    }
    unused.remove(0, ENDS);
    unused.remove(size.saturating_sub(ENDS), u64::MAX);
    unused
}

/// Makes the file system discard its free space. False if there is none.
fn trim(device: &Arc<Discards>, image: &NewFile) -> bool {
    let options = Options::default();
    let Ok(fs) = FileSystem::open_on(Arc::clone(device) as _, image.path(), &options) else {
        return false;
    };
    let trimmed = fs.engine().trim(&TrimRange::default());
    fs.close().is_ok() && trimmed.is_ok()
}

/// The next hole of a file from `at` on; its end is one. `None` if the file ends before.
fn next_hole(file: &std::fs::File, at: u64) -> Option<u64> {
    rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(at)).ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::{CheckOptions, ImageBuilder, Kind};

    #[test]
    fn the_file_system_never_reads_them() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("r")).unwrap();
        std::fs::write(dir.path().join("r/f"), vec![7; 3 << 20]).unwrap();
        for kind in [Kind::Ext4, Kind::Btrfs] {
            let path = dir.path().join(kind.to_string());
            let new = NewFile::create(&path, false).unwrap();
            let builder = ImageBuilder::new(kind).size(256 << 20);
            let builder = builder.from_dir(dir.path().join("r")).unwrap();
            builder.make_in_scratch(&new, &mut |_| {}).unwrap();
            let unused = ranges(&new);
            assert!(unused.bytes() > 160 << 20, "{kind}: {}", unused.bytes());
            let noise = vec![0xa5; UNIT as usize];
            for (from, to) in unused.iter() {
                for at in (from..to).step_by(noise.len()) {
                    new.file().write_all_at(&noise, at).unwrap();
                }
            }
            new.finish().unwrap();
            let report = crate::check(&path, &CheckOptions::default(), &mut |_| {}).unwrap();
            assert!(report.clean, "{kind}: {report:?}");
            assert_eq!(
                crate::open(&path).unwrap().read("f").unwrap(),
                vec![7; 3 << 20]
            );
        }
        let other = NewFile::create(dir.path().join("other"), false).unwrap();
        other.device_of(4 << 20).unwrap();
        assert!(ranges(&other).is_empty(), "no file system");
    }
}
