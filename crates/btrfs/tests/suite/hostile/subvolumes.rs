//! Root refs that lead in a circle.

use std::sync::Arc;
use std::thread;

use sapwood_btrfs::Btrfs;
use sapwood_btrfs_format::{Block, kind, objectid};
use sapwood_hostile::explore::options;
use sapwood_hostile::image::{DEFAULT, GoodImage};
use sapwood_vfs::Subvolumes;

use super::indexes::{HEADER, ITEM};

/// Offset of the key's offset in the head of an item: in a backref the parent.
const PARENT: usize = 9;
/// Bytes of the stack of the thread that lists: no recursion to the longest chain fits.
const STACK: usize = 256 << 10;

#[test]
fn a_circle_of_subvolumes_is_an_error() {
    let image = GoodImage::expand(DEFAULT);
    let device = image.device.snapshot();
    let mut circles = 0;
    for place in &image.blocks {
        image.edit(&device, place, true, |bytes| {
            let block = Block::new(bytes).unwrap();
            if !block.is_leaf() || block.owner() != objectid::ROOT_TREE {
                return;
            }
            let keys = (0..block.nritems()).map(|slot| (slot, block.entry(slot).unwrap().0));
            let refs = keys.filter(|(_, key)| key.kind == kind::ROOT_BACKREF);
            for (slot, key) in refs.collect::<Vec<_>>() {
                let at = HEADER + slot * ITEM + PARENT;
                bytes[at..at + 8].copy_from_slice(&key.objectid.to_le_bytes());
                circles += 1;
            }
        });
    }
    assert!(circles > 0);
    let fs = Btrfs::open(vec![Arc::new(device)], options(false)).unwrap();
    let listed = thread::scope(|scope| {
        let lister = thread::Builder::new().stack_size(STACK);
        let lister = lister.spawn_scoped(scope, || fs.list());
        lister.unwrap().join().unwrap()
    });
    let error = listed.unwrap_err().to_string();
    assert!(error.contains("subvolume"), "{error}");
}
