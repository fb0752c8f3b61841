use sapwood_block::{Device, MemoryDevice};
use sapwood_ext4_format::{BitmapKind, Geometry, GroupDesc, bitmap};

use super::*;
use crate::oracles::{self, MIB, TOOLS, dumped, image, left_out};
use crate::{Options, mount};

/// The groups of an image, without an engine.
fn groups(device: &Arc<MemoryDevice>) -> Groups {
    let device: Arc<dyn Device> = device.clone();
    let geometry = geometry(&*device);
    let cache = Arc::new(Cache::new(device, geometry.block_size(), 1 << 24));
    Groups::open(&cache, &geometry, false).unwrap()
}

fn geometry(device: &dyn Device) -> Geometry {
    Geometry::new(&mount::read_super(device).unwrap()).unwrap()
}

#[test]
fn groups_of_all_kinds_of_images_are_what_dumpe2fs_says() {
    if left_out(TOOLS) {
        return;
    }
    for args in [
        "",
        "-b 1024",
        "-b 2048 -I 128",
        "-t ext2",
        "-t ext3 -b 1024",
        "-b 1024 -O ^flex_bg",
        "-b 1024 -O meta_bg,^resize_inode",
        "-b 1024 -O ^metadata_csum,uninit_bg",
        "-b 1024 -O ^64bit",
        "-b 1024 -G 4 -N 5000",
        "-b 1024 -O sparse_super2",
        "-b 1024 -g 1024 -G 8",
        "-O ^has_journal,^uninit_bg,^metadata_csum",
    ] {
        let device = image(150 * MIB, args);
        let groups = groups(&device);
        let dumped = dumped(&device);
        assert_eq!(groups.count() as usize, dumped.len());
        for (group, says) in groups.layout().all.iter().zip(&dumped) {
            let number = group.number;
            groups.lock_blocks(group).unwrap();
            let map = groups.inodes(group).unwrap();
            assert_eq!(
                group.free_blocks(),
                says.free_blocks,
                "{args}: group {number}"
            );
            assert_eq!(
                group.free_inodes(),
                says.free_inodes,
                "{args}: group {number}"
            );
            assert_eq!(map.free(), says.free_inodes, "{args}: group {number}");
            assert_eq!(group.used_dirs(), says.dirs, "{args}: group {number}");
            let state = group.lock();
            let unused = groups.geometry().inodes_per_group() - group.first_never_used(&state);
            assert_eq!(unused, says.unused_inodes, "{args}: group {number}");
        }
        let free: u64 = dumped
            .iter()
            .map(|group| u64::from(group.free_blocks))
            .sum();
        assert_eq!(groups.free_blocks(), free);
        // Free blocks are no metadata; all metadata are in use.
        let buddy_free = |block: u64| {
            let (number, offset) = groups.geometry().group_of_block(block).unwrap();
            let state = groups.lock_blocks(groups.group(number).unwrap()).unwrap();
            state
                .buddy
                .as_ref()
                .is_some_and(|buddy| buddy.run_at(offset, 1) == 1)
        };
        for (start, end) in groups.layout().system.clone() {
            assert!((start..end).all(|block| groups.is_system(block, 1) && !buddy_free(block)));
            assert!(groups.is_system(start.saturating_sub(3), 4));
            assert!(!groups.is_system(end, 1));
        }
    }
}

/// Changes a byte of the device.
fn flip(device: &MemoryDevice, at: u64) {
    let mut byte = [0];
    device.read_at(at, &mut byte).unwrap();
    device.write_at(at, &[byte[0] ^ 0x10]).unwrap();
}

/// Changes a group's descriptor, without or with a right checksum.
fn change_desc(
    device: &MemoryDevice,
    number: u32,
    seal: bool,
    change: impl FnOnce(&mut GroupDesc),
) {
    let geometry = geometry(device);
    let (block, offset) = geometry.descriptor_block(number).unwrap();
    let at = geometry.block_offset(block).unwrap() + u64::from(offset);
    let mut bytes = vec![0; usize::from(geometry.desc_size())];
    device.read_at(at, &mut bytes).unwrap();
    let mut desc = GroupDesc::read(&bytes, &geometry).unwrap();
    change(&mut desc);
    if seal {
        desc.set_checksum(number, &geometry);
    }
    desc.write(&mut bytes).unwrap();
    device.write_at(at, &bytes).unwrap();
}

fn desc(device: &MemoryDevice, number: u32) -> GroupDesc {
    let mut found = None;
    change_desc(device, number, false, |desc| found = Some(desc.clone()));
    found.unwrap()
}

/// One kind of damage to group 1, and its line in the log.
struct Damage {
    args: &'static str,
    does: fn(&MemoryDevice),
    says: &'static str,
}

const DAMAGE: &[Damage] = &[
    Damage {
        args: "",
        does: |device| change_desc(device, 1, false, |desc| desc.set_free_inodes(7).unwrap()),
        says: "checksum",
    },
    Damage {
        args: "",
        does: |device| {
            change_desc(device, 1, true, |desc| {
                desc.set_block_bitmap(1 << 40).unwrap()
            })
        },
        says: "outside",
    },
    Damage {
        args: "",
        does: |device| {
            change_desc(device, 1, true, |desc| {
                desc.set_flags(GroupFlags::INODE_ZEROED);
                desc.set_free_clusters(1).unwrap();
            });
        },
        says: "checksum",
    },
    Damage {
        args: "-O ^metadata_csum,^uninit_bg,^flex_bg",
        does: |device| {
            let at = desc(device, 1).block_bitmap() * 1024;
            device.write_at(at, &[0; 1024]).unwrap();
        },
        says: "metadata are free",
    },
    Damage {
        args: "-O ^metadata_csum,^uninit_bg,^flex_bg",
        does: |device| flip(device, desc(device, 1).block_bitmap() * 1024 + 900),
        says: "blocks are free in its bitmap",
    },
    Damage {
        args: "-O ^metadata_csum,^uninit_bg",
        does: |device| {
            let table = desc(device, 2).inode_table();
            change_desc(device, 1, true, |desc| {
                desc.set_inode_table(table + 3).unwrap()
            });
        },
        says: "overlap",
    },
];

#[test]
fn damage_puts_a_group_out_of_use_and_no_other() {
    if left_out(TOOLS) {
        return;
    }
    for (number, damage) in DAMAGE.iter().enumerate() {
        let device = image(64 * MIB, &format!("-b 1024 {}", damage.args));
        (damage.does)(&device);
        let groups = groups(&device);
        let mut usable = 0;
        for group in &groups.layout().all {
            let error = groups.lock_blocks(group).err();
            // Which of two overlapping tables is wrong cannot be known; this one overlaps two
            // others.
            let beside = damage.says == "overlap" && matches!(group.number, 2 | 3);
            let may_fail = group.number == 1 || beside;
            assert!(may_fail || error.is_none(), "{number}: {error:?}");
            if let Some(error) = error {
                assert!(error.to_string().contains(damage.says), "{number}: {error}");
                assert_eq!((group.free_blocks(), group.free_inodes()), (0, 0));
                assert!(!group.may_have(0));
                assert!(groups.inodes(group).is_err());
            }
            usable += u64::from(group.free_blocks());
        }
        assert!(
            groups.lock_blocks(&groups.layout().all[1]).is_err(),
            "{number}"
        );
        assert_eq!(groups.free_blocks(), usable, "{number}");
    }
}

#[test]
fn a_wrong_bitmap_puts_its_group_out_of_use_when_it_is_read() {
    if left_out(TOOLS) {
        return;
    }
    let plain = "-b 1024 -O ^metadata_csum,^uninit_bg";
    for (args, kind, says) in [
        ("-b 1024", BitmapKind::Inode, "checksum"),
        (plain, BitmapKind::Inode, "inodes are free in its bitmap"),
        ("-b 1024", BitmapKind::Block, "checksum"),
        (plain, BitmapKind::Block, "blocks are free in its bitmap"),
    ] {
        let device = image(64 * MIB, args);
        let lost = dumped(&device)[0].free_blocks;
        let desc = desc(&device, 0);
        let (block, byte) = match kind {
            BitmapKind::Inode => (desc.inode_bitmap(), 200),
            BitmapKind::Block => (desc.block_bitmap(), 1000),
        };
        flip(&device, block * 1024 + byte);
        let groups = groups(&device);
        let free = groups.free_blocks();
        let group = &groups.layout().all[0];
        let error = match kind {
            BitmapKind::Inode => groups.inodes(group).err(),
            BitmapKind::Block => groups.lock_blocks(group).err(),
        };
        let error = error.unwrap();
        assert!(error.to_string().contains(says), "{error}");
        assert_eq!(groups.free_blocks(), free - u64::from(lost));
        assert!(groups.inodes(&groups.layout().all[1]).is_ok());
    }
}

#[test]
fn a_bitmap_that_was_never_written_is_computed_and_then_written() {
    if left_out(TOOLS) {
        return;
    }
    let device = image(64 * MIB, "-b 1024 -O ^has_journal");
    let engine = oracles::engine(&device, Options::default());
    let group = engine.groups.group(3).unwrap();
    let before = desc(&device, 3);
    let unwritten = GroupFlags::BLOCK_UNINIT | GroupFlags::INODE_UNINIT;
    assert!(before.flags().contains(unwritten));
    // Two ask for the block at once: it is the same one.
    let buffer = engine.groups.bitmap(group, BitmapKind::Block).unwrap();
    let again = engine.groups.bitmap(group, BitmapKind::Block).unwrap();
    assert!(Arc::ptr_eq(&buffer, &again));
    let goal = group.first_block + 5000;
    let request = crate::block_alloc::Request {
        goal,
        len: 3,
        ino: 12,
    };
    let extent = crate::block_alloc::allocate(&engine.groups, &request).unwrap();
    assert_eq!((extent.start, extent.len), (goal, 3));
    let h = engine.start(crate::block_alloc::CREDITS).unwrap();
    crate::block_alloc::claim(&engine.groups, &h, extent).unwrap();
    drop(h);
    engine.journal.commit_and_settle().unwrap();
    let after = desc(&device, 3);
    assert_eq!(after.flags() & unwritten, GroupFlags::INODE_UNINIT);
    assert_eq!(after.free_clusters(), before.free_clusters() - 3);
    let mut bytes = vec![0; 1024];
    device
        .read_at(after.block_bitmap() * 1024, &mut bytes)
        .unwrap();
    assert_eq!(bitmap::count_zero(&bytes, 0, 8192), after.free_clusters());
    // Read again, it matches its checksums.
    let groups = groups(&device);
    drop(groups.lock_blocks(&groups.layout().all[3]).unwrap());
    let h = engine.start(crate::block_alloc::CREDITS).unwrap();
    crate::block_alloc::free(&engine.groups, &h, extent, false).unwrap();
    drop(h);
    mount::close(&engine).unwrap();
    oracles::clean(&device, "freed again");
}

/// Space of a group that is out of use is not lost: `e2fsck` finds it, and the superblock counts
/// it.
#[test]
fn an_unmount_counts_the_groups_out_of_use() {
    if left_out(TOOLS) {
        return;
    }
    let counts = |device: &MemoryDevice| {
        let sb = mount::read_super(device).unwrap();
        (sb.free_blocks_count(), sb.free_inodes_count.get())
    };
    // All groups there are, by their descriptor or by a bitmap that is read; and one of several.
    for (size, damaged_bitmap) in [(8 * MIB, false), (8 * MIB, true), (64 * MIB, false)] {
        let device = image(size, "-b 1024");
        let before = counts(&device);
        if damaged_bitmap {
            flip(&device, desc(&device, 0).block_bitmap() * 1024 + 1000)
        } else {
            flip(&device, 2048 + 0x1e)
        }
        let engine = oracles::engine(&device, Options::default());
        let group = engine.groups.group(0).unwrap();
        assert!(engine.groups.lock_blocks(group).is_err());
        mount::close(&engine).unwrap();
        assert_eq!(counts(&device), before, "{size} {damaged_bitmap}");
    }
}
