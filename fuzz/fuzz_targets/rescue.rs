//! The scanner and the readers of damaged images: arbitrary bytes over a small image of either
//! format. Every file, or every deleted file, is listed and read; the image must stay as it is.
//!
//! Input: see [`Lies`].
#![no_main]

use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};

use arbitrary::Arbitrary;
use libfuzzer_sys::{Corpus, fuzz_target};
use sapwood_block::Device;
use sapwood_fuzz::ext4::{FORMS, Image};
use sapwood_fuzz::lies::{Change, apply, other_block};
use sapwood_hostile::image::{DEFAULT, GoodImage, MIXED};
use sapwood_rescue::{Collected, OnDeleted, Rescued, Scanning, btrfs, ext4};
use sapwood_vfs::{FileKind, FileSystem, Ino, SeekFrom};

/// The changes, and the reader of the image after them.
#[derive(Arbitrary, Debug)]
struct Lies {
    /// Bit 0: btrfs; bits 1 and 2: form of an ext4; bit 3: without superblock; bit 4: ext4 without
    /// descriptors; bit 5: the deleted files.
    mode: u8,
    changes: Vec<Change>,
    /// Bytes that are written over the image, at 512 times the first two.
    patch: Vec<u8>,
}

const MOST: usize = 12;
/// Most entries of a walk.
const ENTRIES: usize = 3000;

fn ext4_image(form: usize) -> &'static Image {
    static IMAGES: [OnceLock<Image>; FORMS.len()] = [const { OnceLock::new() }; FORMS.len()];
    IMAGES[form].get_or_init(|| Image::filled(form))
}

fn btrfs_images() -> &'static [GoodImage; 2] {
    static IMAGES: OnceLock<[GoodImage; 2]> = OnceLock::new();
    IMAGES.get_or_init(|| [GoodImage::expand(MIXED), GoodImage::expand(DEFAULT)])
}

fn walk(fs: &Rescued) {
    let mut todo = vec![(fs.root(), 0)];
    let mut seen = 0;
    while let Some((dir, depth)) = todo.pop() {
        let mut from = 0;
        loop {
            let before = from;
            let mut entries: Vec<(Ino, FileKind, Vec<u8>)> = Vec::new();
            let listed = fs.readdir(dir, from, &mut |entry| {
                assert!(entry.next > from, "a listing does not advance");
                from = entry.next;
                entries.push((entry.ino, entry.kind, entry.name));
                ControlFlow::Continue(())
            });
            for (ino, kind, name) in entries {
                seen += 1;
                if seen > ENTRIES {
                    return;
                }
                let _ = fs.lookup(dir, &name);
                if kind == FileKind::Directory && depth < 20 {
                    todo.push((ino, depth + 1));
                } else {
                    read(fs, ino);
                }
            }
            if listed.is_err() || from == before {
                break;
            }
        }
    }
}

/// The deleted files that `list` passes on.
fn deleted(kind: &'static str, list: impl FnOnce(&mut OnDeleted<'_>)) -> Rescued {
    let mut files = Collected::new(kind);
    list(&mut |found| {
        found.collect(&mut files);
        let file = found.counted();
        assert!(file.readable <= file.size);
        ControlFlow::Continue(())
    });
    Rescued::new(files)
}

fn read(fs: &Rescued, ino: Ino) {
    let Ok(attr) = fs.getattr(ino) else { return };
    let mut buf = vec![0; 10_000];
    for offset in [0, attr.size / 2, attr.size.saturating_sub(1)] {
        let _ = fs.read(ino, offset, &mut buf);
        let _ = fs.seek(ino, SeekFrom::Data(offset));
        let _ = fs.seek(ino, SeekFrom::Hole(offset));
    }
    let _ = fs.readlink(ino);
    for name in fs.listxattr(ino).unwrap_or_default() {
        let _ = fs.getxattr(ino, &name);
    }
}

fuzz_target!(|lies: Lies| -> Corpus {
    if lies.changes.len() > MOST {
        return Corpus::Reject;
    }
    let watch = |_: Scanning| true;
    let is_btrfs = lies.mode & 1 != 0;
    let device = if is_btrfs {
        let image = &btrfs_images()[usize::from(lies.mode >> 1 & 1)];
        let device = image.device.snapshot();
        for change in &lies.changes {
            if change.block >= 0xf0 {
                image.edit_super(&device, true, |bytes| {
                    let at = usize::from(change.at) % (4096 - 565);
                    apply(&change.how, bytes, at, &|number| other_block(image, number));
                });
                continue;
            }
            let place = &image.blocks[usize::from(change.block) % image.blocks.len()];
            change.edit_block(image, &device, place, true);
        }
        device
    } else {
        let image = ext4_image(usize::from(lies.mode >> 1) % FORMS.len());
        let device = image.device.snapshot();
        for change in &lies.changes {
            image.edit(&device, &image.blocks, change);
        }
        device
    };
    if let [low, high, bytes @ ..] = lies.patch.as_slice() {
        let at = u64::from(u16::from_le_bytes([*low, *high])) * 512;
        let at = at % device.size().saturating_sub(bytes.len() as u64).max(1);
        let _ = device.write_at(at, bytes);
    }
    if lies.mode & 8 != 0 {
        let at = if is_btrfs { 64 << 10 } else { 1024 };
        let _ = device.write_at(at, &[0; 1024]);
    }
    let before = device.snapshot();
    let device = Arc::new(device);
    if is_btrfs {
        let devices: Vec<Arc<dyn Device>> = vec![device.clone()];
        let options = btrfs::Options::default();
        if let Ok(image) = btrfs::Image::open(devices, options, &watch) {
            let _ = image.states(4);
            if lies.mode & 32 != 0 {
                walk(&deleted("btrfs", |each| {
                    let _ = image.deleted(4, each);
                }));
            } else if let Ok(files) = image.files(btrfs::Choice::Newest) {
                walk(&Rescued::new(files));
            }
        }
    } else if let Ok(image) = ext4::Image::open(device.clone(), ext4::Options::default(), &watch) {
        walk(&if lies.mode & 32 != 0 {
            deleted("ext4", |each| image.deleted(each))
        } else {
            Rescued::new(image.files())
        });
    }
    assert_eq!(device.first_difference(&before), None, "changed");
    Corpus::Keep
});
