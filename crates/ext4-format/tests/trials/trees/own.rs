//! A hash tree built by the crate alone, put in the place of a directory of the same number of
//! blocks.

use std::collections::BTreeSet;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use libtest_mimic::Failed;
use sapwood_ext4_format::{DirFormat, DirHasher, NewEntry, dir_type};

use sapwood_testing::oracle::KernelMount;

use super::fill::name;
use super::mount::{clean, make, run};
use super::reader::Reader;

/// A tree in memory: its blocks by their logical number.
struct Tree {
    format: DirFormat,
    hasher: DirHasher,
    blocks: Vec<Vec<u8>>,
    /// Blocks that contain names.
    leaves: BTreeSet<usize>,
}

/// One step down: a node's block and the entry taken there.
type Step = (usize, usize);

impl Tree {
    fn new(format: DirFormat, hasher: DirHasher, inode: u32) -> Self {
        let mut blocks = vec![vec![0xff; format.block_size]; 2];
        format
            .dx_init_root(&mut blocks[0], inode, 2, hasher.version().to_disk(), 1)
            .unwrap();
        format.init_block(&mut blocks[1]).unwrap();
        Tree {
            format,
            hasher,
            blocks,
            leaves: BTreeSet::from([1]),
        }
    }

    /// Inserts a name; each round goes down from the root and changes one node, until the leaf has
    /// room.
    fn insert(&mut self, name: &[u8], inode: u32) {
        let hash = self.hasher.hash(name).unwrap();
        let entry = NewEntry {
            name,
            inode,
            file_type: dir_type::REGULAR,
            hash: (hash.major, hash.minor),
        };
        loop {
            let (steps, leaf) = self.descend(hash.major);
            let room = self.format.has_room(&self.blocks[leaf], name).unwrap();
            let put = self.format.insert(&mut self.blocks[leaf], &entry).unwrap();
            assert_eq!(room, put.is_some());
            if let Some(offset) = put {
                let found = self.format.find(&self.blocks[leaf], name).unwrap().unwrap();
                assert_eq!((found.offset, found.inode), (offset, inode));
                return;
            }
            self.make_room(&steps, leaf);
        }
    }

    fn descend(&self, hash: u32) -> (Vec<Step>, usize) {
        let count = self.blocks.len() as u32;
        let root = self.format.dx_root(&self.blocks[0], count).unwrap();
        let (mut node, mut at, mut steps) = (root.node, 0, Vec::new());
        for _ in 0..root.info.indirect_levels {
            let index = node.search(hash);
            steps.push((at, index));
            at = node.entry(index).unwrap().block as usize;
            node = self.format.dx_node(&self.blocks[at], count).unwrap();
        }
        let index = node.search(hash);
        steps.push((at, index));
        (steps, node.entry(index).unwrap().block as usize)
    }

    fn is_full(&self, block: usize) -> bool {
        let count = self.blocks.len() as u32;
        match block {
            0 => self
                .format
                .dx_root(&self.blocks[0], count)
                .unwrap()
                .node
                .is_full(),
            _ => self
                .format
                .dx_node(&self.blocks[block], count)
                .unwrap()
                .is_full(),
        }
    }

    /// Splits the leaf, or a full node above it, from the top.
    fn make_room(&mut self, steps: &[Step], leaf: usize) {
        let mut new = vec![0xff; self.format.block_size];
        let number = self.blocks.len();
        let free = steps.iter().rposition(|&(block, _)| !self.is_full(block));
        let (format, hasher) = (self.format, self.hasher);
        let (parent, index, hash) = match free {
            None => {
                format
                    .dx_grow(&mut self.blocks[0], &mut new, number as u32)
                    .unwrap();
                self.blocks.push(new);
                return;
            }
            Some(level) => {
                let (parent, index) = steps[level];
                let hash = match steps.get(level + 1) {
                    Some(&(full, _)) => format.dx_split(&mut self.blocks[full], &mut new).unwrap(),
                    None => {
                        let hash = |name: &[u8]| hasher.hash(name).unwrap().major;
                        self.leaves.insert(number);
                        format
                            .split_leaf(&mut self.blocks[leaf], &mut new, hash)
                            .unwrap()
                            .hash
                    }
                };
                (parent, index, hash)
            }
        };
        self.format
            .dx_insert(&mut self.blocks[parent], index + 1, hash, number as u32)
            .unwrap();
        self.blocks.push(new);
    }
}

/// Builds a tree of `names` names with the hash of a kind, lets `e2fsck` and the kernel judge it.
pub(crate) fn build(
    mkfs: &str,
    hash: u8,
    unsigned: bool,
    names: usize,
    levels: u8,
) -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let (image, at, empty) = (
        dir.path().join("image"),
        dir.path().join("mnt"),
        dir.path().join("empty"),
    );
    make(&image, 256 << 20, mkfs);
    std::fs::write(&empty, "x")?;
    let flags = format!(
        "ssv flags {}\nmkdir d\nwrite {} target\n",
        1 + u8::from(unsigned),
        empty.display()
    );
    debugfs(dir.path(), &image, &flags);
    let inode_of = |name: &str| -> u32 {
        let text = run("debugfs", &["-R", &format!("stat {name}")], &image);
        text.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    let (number, target) = (inode_of("d"), inode_of("target"));
    let reader = Reader::open(&image);
    let mut tree = Tree::new(reader.dir_format(), reader.hasher(hash), number);
    (0..names).for_each(|number| tree.insert(&name(number), target));

    let mut grow = "expand_dir d\n".repeat(tree.blocks.len() - 1);
    let with_extents = reader.inode(number).flags | 0x1000;
    grow += &format!(
        "sif d flags {with_extents}\nsif target links_count {}\n",
        names + 1
    );
    debugfs(dir.path(), &image, &grow);
    let inode = reader.inode(number);
    let map = reader.map(&inode);
    assert_eq!(map.len(), tree.blocks.len());
    for (&logical, &physical) in &map {
        let block = &mut tree.blocks[logical as usize];
        if tree.leaves.contains(&(logical as usize)) {
            tree.format.seal(block, inode.seed)?;
        } else {
            tree.format.dx_seal(block, inode.seed)?;
        }
        reader.write(physical, block);
    }
    assert_eq!(reader.check_htree(&inode, &map), levels);
    clean(&image);
    if reader.block_size > 4096 {
        return Ok(()); // The kernel mounts no blocks above the page size.
    }
    let mounted = KernelMount::at(&image, "ro", &at)?;
    let listed: BTreeSet<Vec<u8>> = std::fs::read_dir(at.join("d"))?
        .map(|entry| entry.unwrap().file_name().into_vec())
        .collect();
    assert_eq!(listed, (0..names).map(name).collect());
    for number in 0..names {
        let path = at
            .join("d")
            .join(std::ffi::OsStr::from_bytes(&name(number)));
        assert!(
            path.symlink_metadata().is_ok(),
            "the kernel does not find name {number}"
        );
    }
    drop(mounted);
    Ok(())
}

fn debugfs(dir: &Path, image: &Path, commands: &str) {
    let script = dir.join("script");
    std::fs::write(&script, commands).unwrap();
    run("debugfs", &["-w", "-f", script.to_str().unwrap()], image);
}
