//! Promises of blocks: refused at the write, kept to the end, given back.

use std::sync::Arc;

use sapwood_block::Device;
use sapwood_vfs::AllocMode;

use super::fixture::{MemoryImage, content, file, is_vfs, open, quiet, write};
use crate::{Error, Ext4, data};

fn mounted() -> Option<(MemoryImage, Arc<sapwood_block::MemoryDevice>, Ext4)> {
    let image = MemoryImage::new(
        &["-t", "ext4", "-b", "4096", "-m", "0", "-O", "^has_journal"],
        "16M",
    )?;
    let device = Arc::new(image.device.snapshot());
    let fs = open(Arc::clone(&device) as Arc<dyn Device>, &quiet());
    Some((image, device, fs))
}

#[test]
fn a_full_file_system_refuses_at_the_write() {
    let Some((image, device, fs)) = mounted() else {
        return;
    };
    let inode = file(&fs, "a");
    let mut written = 0;
    let piece: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8 + 1).collect();
    loop {
        match write(&fs, &inode, written, &piece) {
            Ok(()) => written += piece.len() as u64,
            Err(Error::NoSpace) => break,
            Err(error) => panic!("{error}"),
        }
        assert!(written < 16 << 20);
    }
    assert!(written > 8 << 20);
    // What it has may still be overwritten, and what was taken arrives.
    write(&fs, &inode, 10, b"over").unwrap();
    data::flush(&fs.engine, &inode).unwrap();
    let found = content(&fs, &inode);
    assert_eq!(found[..10], piece[..10]);
    assert_eq!(found[14..100], piece[14..100]);
    assert_eq!(fs.engine.space.promised(), 0);
    // What is freed can be used again.
    {
        let _io = inode.io.write();
        data::truncate(&fs.engine, &inode, 0).unwrap();
    }
    write(&fs, &file(&fs, "b"), 0, &vec![1; written as usize / 2]).unwrap();
    fs.close().unwrap();
    image.check(&device);
}

#[test]
fn promises_are_given_back() {
    let Some((image, device, fs)) = mounted() else {
        return;
    };
    let inode = file(&fs, "a");
    let free = fs.engine.groups.free_blocks();
    write(&fs, &inode, 0, &[1; 40_000]).unwrap();
    assert_eq!(fs.engine.space.promised(), 10);
    assert_eq!(inode.with_delayed_blocks().1, 10);
    // Written again: promised once.
    write(&fs, &inode, 100, &[2; 10_000]).unwrap();
    assert_eq!(fs.engine.space.promised(), 10);
    {
        let _io = inode.io.write();
        let (offset, len) = (8192, 8192);
        data::fallocate(&fs.engine, &inode, offset, len, AllocMode::PunchHole).unwrap();
        assert_eq!(fs.engine.space.promised(), 8);
        data::truncate(&fs.engine, &inode, 20_000).unwrap();
        assert_eq!(fs.engine.space.promised(), 3);
    }
    data::flush(&fs.engine, &inode).unwrap();
    assert_eq!(fs.engine.space.promised(), 0);
    assert_eq!(fs.engine.groups.free_blocks(), free - 3);
    write(&fs, &inode, 5000, &[3; 6000]).unwrap();
    assert_eq!(fs.engine.space.promised(), 1, "the hole only");
    {
        let _io = inode.io.write();
        data::truncate(&fs.engine, &inode, 0).unwrap();
    }
    assert_eq!(fs.engine.space.promised(), 0);
    assert_eq!(fs.engine.writeback.bytes(), 0);
    fs.close().unwrap();
    image.check(&device);
}

#[test]
fn blocks_behind_the_end_stay_until_a_truncation() {
    let Some((image, device, fs)) = mounted() else {
        return;
    };
    let inode = file(&fs, "a");
    write(&fs, &inode, 0, &[1; 5000]).unwrap();
    data::flush(&fs.engine, &inode).unwrap();
    fs.engine.journal.commit_and_settle().unwrap();
    let free = fs.engine.groups.free_blocks();
    let io = inode.io.write();
    let mode = AllocMode::Allocate { keep_size: true };
    data::fallocate(&fs.engine, &inode, 0, 81_920, mode).unwrap();
    assert_eq!(inode.size(), 5000);
    assert_eq!(fs.engine.groups.free_blocks(), free - 18);
    // A hole made behind the end leaves them.
    data::fallocate(&fs.engine, &inode, 40_960, 40_960, AllocMode::PunchHole).unwrap();
    assert_eq!(fs.engine.groups.free_blocks(), free - 18);
    drop(io);
    fs.engine.journal.commit_and_settle().unwrap();
    {
        let _io = inode.io.write();
        data::truncate(&fs.engine, &inode, 5000).unwrap();
    }
    fs.engine.journal.commit_and_settle().unwrap();
    assert_eq!(fs.engine.groups.free_blocks(), free);
    fs.close().unwrap();
    image.check(&device);
}

#[test]
fn files_end_where_the_format_does() {
    for options in [
        &["-t", "ext4", "-b", "4096"][..],
        &["-t", "ext4", "-b", "1024"],
        &["-t", "ext2", "-b", "1024"],
    ] {
        let Some(image) = MemoryImage::new(options, "16M") else {
            return;
        };
        let device = Arc::new(image.device.snapshot());
        let fs = open(Arc::clone(&device) as Arc<dyn Device>, &quiet());
        let inode = file(&fs, "a");
        let most = inode.max_size(&fs.engine);
        let too_large = |result| is_vfs(&result, &sapwood_vfs::Error::FileTooLarge);
        assert!(too_large(write(&fs, &inode, most, b"x")));
        assert!(too_large(write(&fs, &inode, most - 2, b"xyz")));
        assert!(too_large(write(&fs, &inode, u64::MAX, b"xyz")));
        write(&fs, &inode, most - 3, b"xyz").unwrap();
        data::flush(&fs.engine, &inode).unwrap();
        {
            let _io = inode.io.write();
            assert!(too_large(data::truncate(&fs.engine, &inode, most + 1)));
            let mut end = [0; 5];
            let len = data::read(&fs.engine, &inode, most - 4, &mut end).unwrap();
            assert_eq!(&end[..len], b"\0xyz");
        }
        drop(inode);
        fs.close().unwrap();
        image.check(&device);
        let fs = open(Arc::clone(&device) as Arc<dyn Device>, &quiet());
        let inode = file(&fs, "a");
        assert_eq!(inode.size(), most);
        {
            let _io = inode.io.write();
            data::truncate(&fs.engine, &inode, 3).unwrap();
        }
        assert_eq!(content(&fs, &inode), [0; 3]);
        fs.close().unwrap();
        image.check(&device);
    }
}

/// What `statfs` calls available can be allocated, metadata and promises included.
#[test]
fn what_is_available_can_be_allocated() {
    for (block, reserved, size) in [
        ("1024", "0", "16M"),
        ("1024", "5", "64M"),
        ("4096", "1", "64M"),
    ] {
        let options = ["-t", "ext4", "-b", block, "-m", reserved];
        let Some(image) = MemoryImage::new(&options, size) else {
            return;
        };
        let device = Arc::new(image.device.snapshot());
        let fs = open(Arc::clone(&device) as Arc<dyn Device>, &quiet());
        // Dirty data has promises, and is not taken twice.
        let dirty = file(&fs, "a");
        write(&fs, &dirty, 0, &[7; 50_000]).unwrap();
        let stat = fs.engine.space.statfs();
        let len = stat.blocks_available * u64::from(stat.block_size);
        assert!(len > 4 << 20, "{len}");
        let inode = file(&fs, "b");
        {
            let _io = inode.io.write();
            let mode = AllocMode::Allocate { keep_size: false };
            data::fallocate(&fs.engine, &inode, 0, len, mode).unwrap();
        }
        data::flush(&fs.engine, &dirty).unwrap();
        assert_eq!(content(&fs, &dirty), [7; 50_000]);
        fs.close().unwrap();
        image.check(&device);
    }
}
