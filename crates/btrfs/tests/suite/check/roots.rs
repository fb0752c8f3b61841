//! The root tree, subvolumes, uuids.

use sapwood_btrfs_format::{
    DirItemRef, Key, RootRefRef, dir_items, kind, name_hash, objectid, root_ref, uuid_key_parts,
};

use super::Case;
use super::editor::{Editor, LONE};

const ROOTS: u64 = objectid::ROOT_TREE;
const REF: Key = Key::new(objectid::FS_TREE, kind::ROOT_REF, LONE);
const BACKREF: Key = Key::new(LONE, kind::ROOT_BACKREF, objectid::FS_TREE);

pub const CASES: &[Case] = &[
    (
        |e| e.remove(ROOTS, &e.root_item(objectid::DATA_RELOC_TREE).0),
        &["TreeMissing"],
    ),
    (
        |e| e.remove(ROOTS, &e.root_item(objectid::CSUM_TREE).0),
        &["TreeMissing"],
    ),
    (
        |e| e.remove(ROOTS, &REF),
        &["RootRefMissing", "SubvolumeEntryStray"],
    ),
    (|e| e.remove(ROOTS, &BACKREF), &["RootBackrefMissing"]),
    (
        |e| {
            let (key, mut item) = e.root_item(LONE);
            item.root_dirid = 257.into();
            e.change(ROOTS, &key, |data| {
                data[..item.bytes().len()].copy_from_slice(item.bytes());
            });
        },
        &["RootDirectory"],
    ),
    (
        |e| change_ref(e, &BACKREF, |r| r.dirid += 1),
        &["RootRefDiffers"],
    ),
    (
        |e| {
            let data = e.get(ROOTS, &REF);
            e.put(
                ROOTS,
                &Key {
                    offset: 9999,
                    ..REF
                },
                &data,
            );
        },
        &["RootRefStray"],
    ),
    (
        |e| {
            e.remove(ROOTS, &REF);
            e.remove(ROOTS, &BACKREF);
        },
        &["SubvolumeUnreachable", "SubvolumeEntryStray"],
    ),
    (
        |e| {
            change_ref(e, &REF, |r| r.sequence += 1000);
            change_ref(e, &BACKREF, |r| r.sequence += 1000);
        },
        &["SubvolumeEntryMissing"],
    ),
    (
        // Both names of a new entry for a subvolume that is elsewhere.
        |e| {
            let entry = DirItemRef {
                location: Key::new(256, kind::ROOT_ITEM, u64::MAX),
                transid: 1,
                kind: 2,
                name: b"stray",
                data: &[],
            };
            let hash = name_hash(b"stray").into();
            e.put(LONE, &Key::new(256, kind::DIR_ITEM, hash), &entry.encode());
            e.put(LONE, &Key::new(256, kind::DIR_INDEX, 9999), &entry.encode());
            super::names::change_inode(e, 256, |inode| inode.size = (inode.size.get() + 10).into());
        },
        &["SubvolumeEntryStray"],
    ),
    (
        |e| {
            let orphan = e.find(ROOTS, |key, _| key.kind == kind::ORPHAN_ITEM).0;
            e.remove(ROOTS, &orphan);
        },
        &["DeadRootForgotten"],
    ),
    (
        |e| {
            e.put(
                ROOTS,
                &Key::new(objectid::ORPHAN, kind::ORPHAN_ITEM, LONE),
                b"",
            )
        },
        &["RootOrphanStray"],
    ),
    (|e| change_default(e, 9999), &["DefaultSubvolume"]),
    (
        |e| {
            let is_lone = |_: &Key, data: &[u8]| data == LONE.to_le_bytes();
            let key = e.find(objectid::UUID_TREE, is_lone).0;
            e.remove(objectid::UUID_TREE, &key);
        },
        &["UuidMissing"],
    ),
    (
        |e| {
            let (objectid, offset) = uuid_key_parts(&[7; 16]);
            let key = Key::new(objectid, kind::UUID_KEY_RECEIVED_SUBVOL, offset);
            e.put(objectid::UUID_TREE, &key, &LONE.to_le_bytes());
        },
        &["UuidStray"],
    ),
];

fn change_ref(e: &Editor, key: &Key, change: impl FnOnce(&mut RootRefRef<'_>)) {
    let data = e.get(ROOTS, key);
    let mut parsed = root_ref(&data).unwrap();
    change(&mut parsed);
    e.put(ROOTS, key, &parsed.encode());
}

fn change_default(e: &Editor, tree: u64) {
    let hash = name_hash(b"default").into();
    let key = Key::new(objectid::ROOT_TREE_DIR, kind::DIR_ITEM, hash);
    let data = e.get(ROOTS, &key);
    let mut entry = dir_items(&data).next().unwrap().unwrap();
    entry.location.objectid = tree;
    e.put(ROOTS, &key, &entry.encode());
}
