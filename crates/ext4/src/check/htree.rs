//! Hash trees of directories: every block must be named once, and every name must be in the block
//! for its hash.

use std::collections::HashMap;

use sapwood_ext4_format::{DirEntry, DirHasher, DxNode, HashVersion, HtreeError, casefold};

use super::finding::{Finding, shown};
use super::notes::Directory;
use super::state::{Check, View};

/// Hashes that a block may have: from `low` to below `high`.
#[derive(Clone, Copy, Debug)]
struct Range {
    low: u32,
    high: u64,
}

/// Role of a block in the tree.
#[derive(Clone, Copy, Debug)]
enum Role {
    Node,
    Leaf(Range),
}

/// A directory's hash tree.
pub(super) struct Tree {
    roles: HashMap<u32, Role>,
    hasher: Option<DirHasher>,
    /// Part of it is damaged: blocks that it does not name are not reported.
    pub(super) bad: bool,
}

impl Tree {
    pub(super) fn is_node(&self, logical: u32) -> bool {
        matches!(self.roles.get(&logical), Some(Role::Node))
    }

    /// Reports a name that is not in the block for its hash.
    pub(super) fn misplaced(
        &self,
        dir: &Directory<'_>,
        logical: u32,
        entry: &DirEntry<'_>,
    ) -> Option<Finding> {
        let Some(Role::Leaf(range)) = self.roles.get(&logical) else {
            return None;
        };
        let hash = match entry.hash {
            Some((major, _)) => major,
            None => self.hash(dir, entry.name)?,
        };
        // Names with the first hash of a block may begin in the previous block.
        let good = hash >= range.low & !1 && u64::from(hash) < range.high;
        (!good).then(|| Finding::HtreeHash {
            dir: dir.ino,
            logical,
            name: shown(entry.name),
            hash,
        })
    }

    fn hash(&self, dir: &Directory<'_>, name: &[u8]) -> Option<u32> {
        let folded = dir.folds.then(|| casefold(name)).flatten();
        let hash = self
            .hasher
            .as_ref()?
            .hash(folded.as_deref().unwrap_or(name))?;
        Some(hash.major)
    }
}

impl Check<'_> {
    /// Reads the tree of a directory that has one.
    pub(super) fn tree(&mut self, view: &View, dir: &Directory<'_>) -> Tree {
        let mut tree = Tree {
            roles: HashMap::new(),
            hasher: None,
            bad: false,
        };
        if let Err(finding) = self.tree_root(view, dir, &mut tree) {
            tree.bad = true;
            self.found_all(finding);
        }
        if tree.bad {
            return tree;
        }
        for logical in 1..dir.blocks {
            if !tree.roles.contains_key(&logical) && dir.physical(logical).is_some() {
                self.found(Finding::HtreeForgotten {
                    dir: dir.ino,
                    logical,
                });
            }
        }
        tree
    }

    fn tree_root(
        &mut self,
        view: &View,
        dir: &Directory<'_>,
        tree: &mut Tree,
    ) -> Result<(), Option<Finding>> {
        let bad = |error: HtreeError| {
            Some(Finding::HtreeBad {
                dir: dir.ino,
                logical: 0,
                error,
            })
        };
        // A hole was reported when the blocks were found.
        let block = dir.physical(0).ok_or(None)?;
        let bytes = view.block(block).map_err(|_| None)?;
        let root = dir.format.dx_root(&bytes, dir.blocks).map_err(bad)?;
        if let Err(error) = dir.format.dx_verify(&bytes, dir.seed) {
            self.found_all(bad(error));
        }
        let number = root.info.hash_version;
        let version = HashVersion::from_disk(number, view.geometry.unsigned_hash());
        let sip = matches!(version, Some(HashVersion::SipHash));
        match version {
            Some(version) if sip == dir.format.hash_in_entry => {
                tree.hasher = Some(DirHasher::new(version, view.geometry.hash_seed()));
            }
            _ => self.found(Finding::HtreeVersion {
                dir: dir.ino,
                version: number,
            }),
        }
        let range = Range {
            low: 0,
            high: 1 << 32,
        };
        tree.roles.insert(0, Role::Node);
        self.node(
            view,
            dir,
            tree,
            &root.node,
            range,
            (0, root.info.indirect_levels),
        );
        Ok(())
    }

    /// Checks the entries of a node. `at`: its block and the levels of nodes below it.
    fn node(
        &mut self,
        view: &View,
        dir: &Directory<'_>,
        tree: &mut Tree,
        node: &DxNode<'_>,
        range: Range,
        at: (u32, u8),
    ) {
        let (logical, levels) = at;
        let entries: Vec<_> = node.entries().collect();
        for (index, entry) in entries.iter().enumerate() {
            let low = if index == 0 { range.low } else { entry.hash };
            let high = entries.get(index + 1);
            let high = high.map_or(range.high, |next| u64::from(next.hash));
            if low < range.low || high > range.high || u64::from(low) >= range.high {
                self.found(Finding::HtreeRange {
                    dir: dir.ino,
                    logical,
                    hash: entry.hash,
                });
            }
            let below = Range { low, high };
            let role = match levels {
                0 => Role::Leaf(below),
                _ => Role::Node,
            };
            if tree.roles.contains_key(&entry.block) {
                self.found(Finding::HtreeTwice {
                    dir: dir.ino,
                    logical: entry.block,
                });
                continue;
            }
            tree.roles.insert(entry.block, role);
            if levels > 0 {
                self.inner(view, dir, tree, below, (entry.block, levels - 1));
            }
        }
    }

    fn inner(
        &mut self,
        view: &View,
        dir: &Directory<'_>,
        tree: &mut Tree,
        range: Range,
        at: (u32, u8),
    ) {
        let bad = |error| Finding::HtreeBad {
            dir: dir.ino,
            logical: at.0,
            error,
        };
        let bytes = dir.physical(at.0).map(|block| view.block(block));
        let Some(Ok(bytes)) = bytes else {
            tree.bad = true;
            return;
        };
        if let Err(error) = dir.format.dx_verify(&bytes, dir.seed) {
            self.found(bad(error));
        }
        match dir.format.dx_node(&bytes, dir.blocks) {
            Ok(node) => self.node(view, dir, tree, &node, range, at),
            Err(error) => {
                tree.bad = true;
                self.found(bad(error));
            }
        }
    }
}
