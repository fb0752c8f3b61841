//! Inodes, names, file extents: all planted in the subvolume that shares nothing.

use sapwood_btrfs_format::{
    DirItemRef, FileExtent, Incompat, InodeFlags, InodeItem, InodeRefRef, Key, dir_items,
    inode_refs, kind, name_hash, objectid,
};

use super::Case;
use super::editor::{Editor, LONE};
use super::extents::{change_extent, file_extent, leaf_border};

const TOP: u64 = objectid::FIRST_FREE;

pub const CASES: &[Case] = &[
    (
        |e| e.put(LONE, &Key::new(9999, kind::VERITY_DESC_ITEM, 0), b""),
        &["InodeMissing"],
    ),
    (
        |e| {
            let tree = Key::new(inode(e, "regular"), kind::VERITY_MERKLE_ITEM, 0);
            e.put(LONE, &tree, b"hashes");
        },
        &["HashTreeStray"],
    ),
    (
        |e| {
            change_inode(e, inode(e, "regular"), |i| {
                i.flags = (i.inode_flags() | InodeFlags::VERITY).bits().into()
            })
        },
        &["HashTreeBad"],
    ),
    (
        |e| e.remove(260, &Key::new(TOP, kind::INODE_ITEM, 0)),
        &["TopDirectory", "InodeMissing"],
    ),
    (
        |e| {
            change_inode(e, inode(e, "regular"), |i| {
                i.nlink = (i.nlink.get() + 1).into()
            })
        },
        &["LinkCount"],
    ),
    (
        |e| {
            let name = InodeRefRef {
                index: 9999,
                name: b"again",
            };
            e.put(
                LONE,
                &Key::new(inode(e, "dir"), kind::INODE_REF, inode(e, "many")),
                &name.encode(),
            );
        },
        &["DirectoryNames", "DirEntryMissing", "LinkCount"],
    ),
    (
        // `deep` moves into `deep/deeper`.
        |e| {
            let (deep, index) = (inode(e, "deep"), index_key(e, "deep"));
            let deeper = deep + 1;
            for old in [item_key("deep"), index] {
                let data = e.get(LONE, &old);
                e.remove(LONE, &old);
                e.put(
                    LONE,
                    &Key {
                        objectid: deeper,
                        ..old
                    },
                    &data,
                );
            }
            let old = Key::new(deep, kind::INODE_REF, TOP);
            e.rekey(
                LONE,
                &old,
                &Key {
                    offset: deeper,
                    ..old
                },
            );
            change_inode(e, TOP, |i| i.size = (i.size.get() - 8).into());
            change_inode(e, deeper, |i| i.size = (i.size.get() + 8).into());
        },
        &["DirectoryLoop"],
    ),
    (
        |e| change_inode(e, TOP, |i| i.size = (i.size.get() + 2).into()),
        &["DirectorySize"],
    ),
    (
        |e| e.remove(LONE, &index_key(e, "regular")),
        &["DirIndexMissing", "DirEntryMissing"],
    ),
    (
        |e| e.remove(LONE, &item_key("regular")),
        &["DirItemMissing"],
    ),
    (
        |e| change_entry(e, &item_key("regular"), |entry| entry.kind = 2),
        &["DirItemDiffers"],
    ),
    (
        |e| {
            let key = e.find(LONE, |key, _| key.kind == kind::XATTR_ITEM).0;
            e.change(LONE, &key, |data| data.extend(data.clone()));
        },
        &["NameTwice"],
    ),
    (
        |e| {
            for key in [item_key("fifo"), index_key(e, "fifo")] {
                change_entry(e, &key, |entry| entry.location.objectid = 9999);
            }
        },
        &["DirEntryDangling", "DirEntryMissing"],
    ),
    (
        |e| {
            let key = Key::new(inode(e, "hard"), kind::INODE_REF, TOP);
            e.change(LONE, &key, |data| {
                let first = inode_refs(data).next().unwrap().unwrap().encode();
                *data = first;
            });
        },
        &["InodeRefMissing", "LinkCount"],
    ),
    (
        |e| {
            let index = index_key(e, "fifo");
            e.remove(LONE, &index);
            e.remove(LONE, &item_key("fifo"));
        },
        &["DirEntryMissing", "DirectorySize"],
    ),
    (
        |e| {
            for key in [item_key("fifo"), index_key(e, "fifo")] {
                change_entry(e, &key, |entry| entry.kind = 1);
            }
        },
        &["DirEntryType"],
    ),
    (
        |e| {
            let extent = FileExtent::Inline {
                generation: 1,
                ram_bytes: 1,
                compression: 0,
                data: b"x",
            };
            e.put(
                LONE,
                &Key::new(inode(e, "fifo"), kind::EXTENT_DATA, 0),
                &extent.encode(),
            );
        },
        &["ItemNotOfMode"],
    ),
    (
        |e| {
            let (last, _) = leaf_border(e, LONE, kind::EXTENT_DATA);
            change_extent(e, &last, |extent| {
                extent.num_bytes = 12288;
                extent.disk_num_bytes = 12288;
            });
        },
        &[
            "FileExtentOverlap",
            "FileExtentField",
            "ChecksumMissing",
            "ExtentLength",
            "InodeBytes",
        ],
    ),
    (
        |e| {
            let flags = e.sb.incompat() - Incompat::NO_HOLES;
            e.superblock(|sb| sb.incompat_flags = flags.bits().into());
        },
        &["FileExtentGap"],
    ),
    (
        |e| {
            let (last, _) = leaf_border(e, LONE, kind::EXTENT_DATA);
            change_inode(e, last.objectid, |i| i.size = 5000.into());
        },
        &["FileExtentPastEnd"],
    ),
    (
        |e| {
            let extent = FileExtent::Inline {
                generation: 1,
                ram_bytes: 5000,
                compression: 1,
                data: b"short",
            };
            e.put(LONE, &file_extent(e, "inline"), &extent.encode());
            change_inode(e, inode(e, "inline"), |i| i.nbytes = 5000.into());
        },
        &["InlineTooLong"],
    ),
    (
        |e| {
            change_inode(e, inode(e, "regular"), |i| {
                i.nbytes = (i.nbytes.get() + 1).into()
            })
        },
        &["InodeBytes"],
    ),
    (
        |e| {
            change_inode(e, inode(e, "symlink"), |i| {
                i.size = (i.size.get() + 1).into()
            })
        },
        &["SymlinkTarget"],
    ),
    (
        |e| {
            let orphan = e.find(LONE, |key, _| key.kind == kind::ORPHAN_ITEM).0;
            e.remove(LONE, &orphan);
        },
        &["OrphanMissing"],
    ),
    (
        |e| {
            let key = Key::new(objectid::ORPHAN, kind::ORPHAN_ITEM, inode(e, "regular"));
            e.put(LONE, &key, b"");
        },
        &["OrphanStray"],
    ),
];

fn item_key(name: &str) -> Key {
    Key::new(TOP, kind::DIR_ITEM, name_hash(name.as_bytes()).into())
}

fn index_key(e: &Editor, name: &str) -> Key {
    let named = |key: &Key, data: &[u8]| {
        (key.objectid, key.kind) == (TOP, kind::DIR_INDEX)
            && dir_items(data).any(|entry| entry.unwrap().name == name.as_bytes())
    };
    e.find(LONE, named).0
}

/// Inode of a name in the top directory.
pub fn inode(e: &Editor, name: &str) -> u64 {
    let data = e.get(LONE, &item_key(name));
    let mut entries = dir_items(&data).map(|entry| entry.unwrap());
    entries
        .find(|entry| entry.name == name.as_bytes())
        .unwrap()
        .location
        .objectid
}

pub fn change_inode(e: &Editor, inode: u64, change: impl FnOnce(&mut InodeItem)) {
    e.change(LONE, &Key::new(inode, kind::INODE_ITEM, 0), |data| {
        let mut item = InodeItem::read(data).unwrap();
        change(&mut item);
        *data = item.bytes().to_vec();
    });
}

/// Changes the only entry of a dir item or index.
fn change_entry(e: &Editor, key: &Key, change: impl FnOnce(&mut DirItemRef<'_>)) {
    let data = e.get(LONE, key);
    let mut entry = dir_items(&data).next().unwrap().unwrap();
    change(&mut entry);
    e.put(LONE, key, &entry.encode());
}
