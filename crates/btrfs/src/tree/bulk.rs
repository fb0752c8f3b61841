//! Packs sorted items into the blocks of a new tree.

use sapwood_btrfs_format::block::{Error, Item};
use sapwood_btrfs_format::{BlockInit, BlockMut, Key, node_ptrs};

/// Items of one tree, sorted by key.
pub(crate) type Items = Vec<(Key, Vec<u8>)>;

/// Level and first key of every block that the items fill, in the order of [`build`]: leaves
/// first, the root last. At least one leaf. A leaf gets at most `room` bytes of items.
pub(crate) fn outline(items: &Items, nodesize: usize, room: usize) -> Vec<(u8, Key)> {
    let first = |run: &[(Key, Vec<u8>)]| run.first().map_or(Key::MIN, |(key, _)| *key);
    let mut row: Vec<Key> = leaves(items, room).into_iter().map(first).collect();
    let mut all: Vec<(u8, Key)> = row.iter().map(|key| (0, *key)).collect();
    let mut level = 0;
    while row.len() > 1 {
        level += 1;
        let above = row.chunks(node_ptrs(nodesize).max(2));
        row = above
            .map(|run| run.first().copied().unwrap_or_default())
            .collect();
        all.extend(row.iter().map(|key| (level, *key)));
    }
    all
}

/// Divides the items into runs that fill one leaf each.
fn leaves(items: &Items, room: usize) -> Vec<&[(Key, Vec<u8>)]> {
    let (mut used, mut from) = (0, 0);
    let mut out = Vec::new();
    for (n, (_, data)) in items.iter().enumerate() {
        let need = Item::SIZE + data.len();
        if used + need > room && n > from {
            out.push(&items[from..n]);
            (from, used) = (n, 0);
        }
        used += need;
    }
    out.push(&items[from..]);
    out
}

/// A new block without its checksum.
pub(crate) struct NewBlock {
    pub(crate) bytenr: u64,
    pub(crate) bytes: Vec<u8>,
}

/// Builds the tree. `init` has the header fields that all its blocks share; `addresses` are the
/// blocks' addresses in the order of [`outline`], which had the same `room`.
pub(crate) fn build(
    items: &Items,
    addresses: &[u64],
    (nodesize, room): (usize, usize),
    init: &BlockInit,
) -> Result<Vec<NewBlock>, Error> {
    let mut free = addresses.iter().copied();
    let mut blocks = Vec::new();
    let mut row = Vec::new();
    for run in leaves(items, room) {
        let bytenr = free.next().unwrap_or_default();
        let mut bytes = vec![0; nodesize];
        let mut leaf = BlockMut::init(&mut bytes, &BlockInit { bytenr, ..*init })?;
        for (slot, (key, data)) in run.iter().enumerate() {
            leaf.insert(slot, key, data)?;
        }
        let first_key = run.first().map_or(Key::MIN, |(key, _)| *key);
        row.push((first_key, bytenr));
        blocks.push(NewBlock { bytenr, bytes });
    }
    let mut level = 0;
    while row.len() > 1 {
        level += 1;
        let mut above = Vec::new();
        for run in row.chunks(node_ptrs(nodesize).max(2)) {
            let bytenr = free.next().unwrap_or_default();
            let mut bytes = vec![0; nodesize];
            let init = BlockInit {
                bytenr,
                level,
                ..*init
            };
            let mut node = BlockMut::init(&mut bytes, &init)?;
            for (slot, (key, child)) in run.iter().enumerate() {
                node.insert_ptr(slot, key, *child, init.generation)?;
            }
            let first_key = run.first().map_or(Key::MIN, |(key, _)| *key);
            above.push((first_key, bytenr));
            blocks.push(NewBlock { bytenr, bytes });
        }
        row = above;
    }
    Ok(blocks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sapwood_btrfs_format::{Block, leaf_data_size};

    #[test]
    fn ten_thousand_items_make_three_levels_that_hold_them_all() {
        let items: Items = (0..10_000)
            .map(|n| (Key::new(n, 1, 0), vec![n as u8; 100]))
            .collect();
        let room = leaf_data_size(4096);
        let outline = outline(&items, 4096, room);
        let count = outline.len();
        assert_eq!(outline.last().unwrap(), &(2, items[0].0));
        let addresses: Vec<u64> = (1..=count as u64).map(|n| n * 4096).collect();
        let init = BlockInit {
            bytenr: 0,
            level: 0,
            generation: 1,
            owner: 5,
            fsid: [1; 16],
            chunk_tree_uuid: [2; 16],
        };
        let blocks = build(&items, &addresses, (4096, room), &init).unwrap();
        assert_eq!(blocks.len(), count);
        let mut found = Vec::new();
        for (new, expected) in blocks.iter().zip(&outline) {
            let block = Block::new(&new.bytes).unwrap();
            assert_eq!((block.level(), block.first_key().unwrap()), *expected);
            for slot in 0..block.items().len() {
                let (key, data) = block.entry(slot).unwrap();
                found.push((key, data.to_vec()));
            }
        }
        assert_eq!(found, items);
    }
}
