//! What stands in the inode: short files and links, and how they become blocks.

use std::sync::Arc;

use sapwood_block::{Device, MemoryDevice};
use sapwood_ext4_format::InodeFlags;
use sapwood_vfs::{Credentials, FileSystem, Ino, NewInode};

use super::fixture::{MemoryImage, content, file, open, quiet, write};
use crate::{Ext4, data};

fn mounted(options: &[&str]) -> Option<(MemoryImage, Arc<MemoryDevice>, Ext4)> {
    let image = MemoryImage::new(options, "16M")?;
    let device = Arc::new(image.device.snapshot());
    let fs = open(Arc::clone(&device) as Arc<dyn Device>, &quiet());
    Some((image, device, fs))
}

/// Closes, checks and opens again.
fn again(image: &MemoryImage, device: &Arc<MemoryDevice>, fs: &Ext4) -> Ext4 {
    fs.close().unwrap();
    image.check(device);
    open(Arc::clone(device) as Arc<dyn Device>, &quiet())
}

#[test]
fn a_short_file_is_inline_until_it_grows() {
    let options = ["-t", "ext4", "-b", "4096", "-I", "512", "-O", "inline_data"];
    let Some((image, device, mut fs)) = mounted(&options) else {
        return;
    };
    let free = fs.engine.groups.free_blocks();
    let mut wanted = Vec::new();
    // In the map; with an attribute; cut; longer again by a hole; then in blocks.
    let steps: [(u64, usize, bool); 5] = [
        (0, 40, true),
        (30, 170, true),
        (10, 5, true),
        (250, 20, true),
        (260, 900, false),
    ];
    for (nth, (offset, len, inline)) in steps.into_iter().enumerate() {
        let inode = file(&fs, "a");
        if nth == 2 {
            let _io = inode.io.write();
            data::truncate(&fs.engine, &inode, 20).unwrap();
            wanted.truncate(20);
        }
        let bytes = vec![nth as u8 + 1; len];
        write(&fs, &inode, offset, &bytes).unwrap();
        let end = offset as usize + len;
        wanted.resize(wanted.len().max(end), 0);
        wanted[offset as usize..end].copy_from_slice(&bytes);
        assert_eq!(content(&fs, &inode), wanted);
        assert_eq!(
            inode.flags().contains(InodeFlags::INLINE_DATA),
            inline,
            "step {nth}"
        );
        drop(inode);
        fs = again(&image, &device, &fs);
        assert_eq!(content(&fs, &file(&fs, "a")), wanted, "step {nth}");
        assert_eq!(fs.engine.groups.free_blocks() == free, inline);
        // It shows all 60 bytes of a map.
        let shown = image.debugfs("cat a");
        let (shown, rest) = shown.as_bytes().split_at(wanted.len());
        assert_eq!(shown, wanted, "debugfs, step {nth}");
        assert!(rest.iter().all(|byte| *byte == 0));
    }
}

#[test]
fn fallocate_makes_blocks_of_inline_data() {
    let options = ["-t", "ext4", "-b", "4096", "-I", "256", "-O", "inline_data"];
    let Some((image, device, fs)) = mounted(&options) else {
        return;
    };
    let inode = file(&fs, "b");
    write(&fs, &inode, 0, b"some bytes").unwrap();
    assert!(inode.flags().contains(InodeFlags::INLINE_DATA));
    {
        let _io = inode.io.write();
        let mode = sapwood_vfs::AllocMode::Allocate { keep_size: true };
        data::fallocate(&fs.engine, &inode, 4096, 4096, mode).unwrap();
    }
    assert!(!inode.flags().contains(InodeFlags::INLINE_DATA));
    drop(inode);
    let fs = again(&image, &device, &fs);
    assert_eq!(content(&fs, &file(&fs, "b")), b"some bytes");
}

#[test]
fn links_of_all_lengths_lead_where_they_should() {
    for options in [
        &["-t", "ext4", "-b", "1024"][..],
        &["-t", "ext2", "-b", "1024"],
        &["-t", "ext4", "-b", "1024", "-O", "inline_data,ea_inode"],
    ] {
        let Some((image, device, fs)) = mounted(options) else {
            return;
        };
        let free = fs.engine.groups.free_blocks();
        let lengths = [1usize, 59, 60, 61, 500, 1023];
        for len in lengths {
            let (name, target) = (format!("l{len}"), vec![b'x'; len]);
            let what = NewInode::Symlink(&target);
            fs.create(&Credentials::ROOT, Ino(2), name.as_bytes(), what, 0o777)
                .unwrap();
        }
        let long = vec![b'x'; 1024];
        let what = NewInode::Symlink(&long);
        assert!(
            fs.create(&Credentials::ROOT, Ino(2), b"long", what, 0o777)
                .is_err()
        );
        let fs = again(&image, &device, &fs);
        for len in lengths {
            let inode = file(&fs, &format!("l{len}"));
            let target = data::readlink(&fs.engine, &inode).unwrap();
            assert_eq!(target, vec![b'x'; len], "{options:?}, {len} bytes");
        }
        assert_eq!(fs.engine.groups.free_blocks(), free - 4);
        for len in lengths {
            fs.unlink(Ino(2), format!("l{len}").as_bytes()).unwrap();
        }
        let fs = again(&image, &device, &fs);
        assert_eq!(fs.engine.groups.free_blocks(), free);
    }
}

/// Bytes of the first block of a file as the device has them.
fn first_block(fs: &Ext4, device: &MemoryDevice, name: &str) -> Vec<u8> {
    let run = crate::map::lookup(&fs.engine, &file(fs, name), 0, 1).unwrap();
    let crate::map::Mapped::Written(block) = run.what else {
        panic!("{run:?}");
    };
    let mut bytes = vec![0; 4096];
    device.read_at(block * 4096, &mut bytes).unwrap();
    bytes
}

#[test]
fn a_cut_block_is_zero_behind_the_end_on_the_device() {
    let Some((_image, device, fs)) = mounted(&["-t", "ext4", "-b", "4096"]) else {
        return;
    };
    let inode = file(&fs, "a");
    write(&fs, &inode, 0, &[7; 4096]).unwrap();
    fs.sync().unwrap();
    {
        let _io = inode.io.write();
        data::truncate(&fs.engine, &inode, 100).unwrap();
    }
    fs.sync().unwrap();
    let block = first_block(&fs, &device, "a");
    assert!(block[..100].iter().all(|byte| *byte == 7));
    assert!(block[100..].iter().all(|byte| *byte == 0));
}

#[test]
fn what_stands_behind_the_end_is_zeroed_when_the_file_grows() {
    let options = ["-t", "ext4", "-b", "4096"];
    let Some((image, device, fs)) = mounted(&options) else {
        return;
    };
    let inode = file(&fs, "a");
    write(&fs, &inode, 0, &[7; 100]).unwrap();
    drop(inode);
    let fs = again(&image, &device, &fs);
    // As a kernel may leave it that wrote the page while it was mapped.
    let run = crate::map::lookup(&fs.engine, &file(&fs, "a"), 0, 1).unwrap();
    let crate::map::Mapped::Written(block) = run.what else {
        panic!("{run:?}");
    };
    device.write_at(block * 4096 + 100, &[9; 3996]).unwrap();
    let inode = file(&fs, "a");
    write(&fs, &inode, 8192, &[8; 10]).unwrap();
    let found = content(&fs, &inode);
    assert!(found[..100].iter().all(|byte| *byte == 7));
    assert!(found[100..8192].iter().all(|byte| *byte == 0));
}
