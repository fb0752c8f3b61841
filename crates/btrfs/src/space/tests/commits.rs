//! Commits on images of every kind, verified by `btrfs check`.

use sapwood_btrfs_format::{InodeItem, Key, kind, objectid};

use super::images::{FILL, VARIANTS};
use super::{MIB, checked, open};
use crate::mount::Engine;
use crate::tree::verify::verify_tree;
use sapwood_testing::machine::{Need, left_out};
use sapwood_testing::oracle::{Kind, TempImage};
use std::sync::Arc;

/// Changes the top directory's inode, so that a leaf of the top-level tree is copied.
fn touch(engine: &Arc<Engine>) {
    let mut h = engine.start(1).unwrap();
    let root = engine.roots.get(objectid::FS_TREE).unwrap();
    let key = Key::new(256, kind::INODE_ITEM, 0);
    root.modify(&mut h, &key, |item| {
        let mut item = InodeItem::read(item.unwrap()).unwrap();
        item.sequence = (item.sequence.get() + 1).into();
        item.transid = 0.into();
        Ok(crate::tree::Change::Put(item.bytes().to_vec()))
    })
    .unwrap();
    h.end().unwrap();
}

#[test]
fn small_commits_are_clean() {
    if left_out(&[Need::Kernel(Kind::Btrfs), Need::Program("btrfs")]) {
        return;
    }
    for &(mib, args) in VARIANTS {
        let image = TempImage::new(mib * MIB, args);
        image.mount().shell(FILL);
        let (device, engine) = open(&image);
        for _ in 0..5 {
            touch(&engine);
            engine.commit(None).unwrap();
        }
        for root in engine.roots.all_cached() {
            let stats = verify_tree(&*engine, &root).unwrap();
            // For these two, the kernel counts only changes since the mount.
            if ![objectid::ROOT_TREE, objectid::CHUNK_TREE].contains(&root.id()) {
                let said = root.item().bytes_used.get();
                let is = stats.blocks * engine.space.nodesize;
                assert_eq!(said, is, "{args:?}: tree {}", root.id());
            }
        }
        let (_, again) = super::open_device(&device);
        for root in again.roots.all_cached() {
            let ours = engine.roots.get(root.id()).unwrap().item().bytes_used;
            let read = root.item().bytes_used;
            let counted = ![objectid::ROOT_TREE, objectid::CHUNK_TREE].contains(&root.id());
            assert!(!counted || read == ours, "{args:?}: tree {}", root.id());
        }
        checked(&device, &format!("{mib} MiB {args:?}"));
    }
}
