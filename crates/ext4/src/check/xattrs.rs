//! Extended attributes: in inodes, in blocks that inodes share, in separate inodes.

use std::sync::Arc;

use sapwood_ext4_format::{
    Incompat, Inode, InodeFlags, Xattr, XattrError, XattrSet, XattrSigns, XattrValue,
    acl_from_disk, crc32c, xattr_block_hash, xattr_block_verify, xattr_entry_hash, xattr_index,
};

use super::finding::Finding;
use super::notes::BlockUse;
use super::state::{Check, View};
use super::walk::{self, Piece};

/// Attributes of an inode.
#[derive(Debug, Default)]
pub(super) struct Attributes {
    /// Attributes in the inode.
    pub(super) set: XattrSet,
    /// Clusters charged to the inode.
    pub(super) clusters: u64,
    pub(super) incomplete: bool,
}

impl Check<'_> {
    /// Checks the attributes of an inode.
    pub(super) fn attributes(&mut self, view: &View, ino: u32, inode: &Inode) -> Attributes {
        let mut all = Attributes::default();
        let inodes = view.geometry.inodes_count();
        match XattrSet::parse_ibody(inode.attr_area(), inodes) {
            Ok(set) => all.set = set,
            Err(error) => {
                all.incomplete = true;
                self.found(Finding::XattrBad { ino, error });
            }
        }
        let entries = std::mem::take(&mut all.set.entries);
        for entry in &entries {
            self.judge(view, ino, entry, &mut all.clusters);
        }
        all.set.entries = entries;
        let block = inode.file_acl();
        if block != 0 {
            self.block_of_attributes(view, ino, block, &mut all);
        }
        all
    }

    fn block_of_attributes(&mut self, view: &View, ino: u32, block: u64, all: &mut Attributes) {
        all.clusters += 1;
        if let Some(known) = self.xattr_blocks.get_mut(&block) {
            known.seen += 1;
            all.clusters += known.clusters;
            all.incomplete |= known.bad;
            for value in known.values.clone() {
                self.values.entry(value).or_default().seen += 1;
            }
            return;
        }
        if self.system.contains(block) {
            all.incomplete = true;
            return self.found(Finding::BlocksOfGroups {
                ino,
                block,
                count: 1,
            });
        }
        if self.used.insert(block) {
            self.shared.insert(block);
        }
        self.report.stats.xattr_blocks += 1;
        let mut known = BlockUse {
            refcount: 0,
            seen: 1,
            bad: true,
            values: Vec::new(),
            clusters: 0,
        };
        match self.read_attributes(view, ino, block) {
            Some((refcount, set)) => {
                known.refcount = refcount;
                known.bad = false;
                for entry in &set.entries {
                    self.judge(view, ino, entry, &mut known.clusters);
                    if let XattrValue::Inode { inode, .. } = entry.value {
                        known.values.push(inode);
                    }
                }
            }
            None => all.incomplete = true,
        }
        all.clusters += known.clusters;
        self.xattr_blocks.insert(block, known);
    }

    /// Checks that an encrypted inode has a context, by which its key is found.
    pub(super) fn encryption(
        &mut self,
        view: &View,
        ino: u32,
        inode: &Inode,
        attributes: &Attributes,
    ) {
        let feature = view.geometry.features().has_incompat(Incompat::ENCRYPT);
        if !feature || !inode.flags().contains(InodeFlags::ENCRYPT) || attributes.incomplete {
            return;
        }
        let context = |set: &XattrSet| {
            let found = set.get(xattr_index::ENCRYPTION, CONTEXT);
            found.map(|found| found.value.clone())
        };
        let found = context(&attributes.set).or_else(|| {
            let block = inode.file_acl();
            let bytes = (block != 0).then(|| view.block(block))?.ok()?;
            let parsed = XattrSet::parse_block(&bytes, view.geometry.inodes_count());
            context(&parsed.ok()?.1)
        });
        let why = match found {
            None => "encrypted without a context",
            Some(XattrValue::Bytes(bytes)) if is_context(&bytes) => return,
            Some(_) => "encrypted with an invalid context",
        };
        self.found(Finding::InodeField { ino, why });
    }

    fn read_attributes(&mut self, view: &View, ino: u32, block: u64) -> Option<(u32, XattrSet)> {
        let bad = |error: XattrError| Finding::XattrBlockBad { ino, block, error };
        let bytes = match view.block(block) {
            Ok(bytes) => bytes,
            Err(finding) => {
                self.found(finding);
                return None;
            }
        };
        if view.geometry.metadata_csum()
            && let Err(error) = xattr_block_verify(&bytes, view.geometry.csum_seed(), block)
        {
            self.found(bad(error));
        }
        let (header, set) = match XattrSet::parse_block(&bytes, view.geometry.inodes_count()) {
            Ok(parsed) => parsed,
            Err(error) => {
                self.found(bad(error));
                return None;
            }
        };
        let hashes = set.entries.iter().map(|entry| match &entry.value {
            XattrValue::Bytes(value) => xattr_entry_hash(&entry.name, value, XattrSigns::Unsigned),
            XattrValue::Inode { hash, .. } => *hash,
        });
        let (found, expected) = (header.hash.get(), xattr_block_hash(hashes));
        let signed = set
            .entries
            .iter()
            .any(|entry| entry.name.iter().any(|byte| *byte >= 0x80));
        if found != 0 && found != expected && !signed {
            self.found(Finding::XattrBlockHash {
                block,
                found,
                expected,
            });
        }
        Some((header.refcount.get(), set))
    }

    /// Checks one attribute: access control lists, values in inodes.
    fn judge(&mut self, view: &View, ino: u32, entry: &Xattr, clusters: &mut u64) {
        let acl = [
            xattr_index::POSIX_ACL_ACCESS,
            xattr_index::POSIX_ACL_DEFAULT,
        ];
        match &entry.value {
            XattrValue::Bytes(value) if acl.contains(&entry.index) => {
                if let Err(error) = acl_from_disk(value) {
                    self.found(Finding::AclBad { ino, error });
                }
            }
            XattrValue::Bytes(_) => {}
            XattrValue::Inode { inode, size, hash } => {
                let known = self.values.contains_key(inode);
                let counted = self.values.entry(*inode).or_default();
                counted.seen += 1;
                *clusters += counted.clusters;
                let judged = self.value(view, entry, *inode, *size, *hash, known);
                match judged {
                    Ok(taken) if !known => {
                        *clusters += taken;
                        self.values.entry(*inode).or_default().clusters = taken;
                    }
                    Ok(_) => {}
                    Err(why) => self.found(Finding::XattrValueBad {
                        ino,
                        value: *inode,
                        why,
                    }),
                }
            }
        }
    }

    /// Checks a value in an inode: flags, size, hash. Returns its clusters.
    fn value(
        &self,
        view: &View,
        entry: &Xattr,
        ino: u32,
        size: u32,
        hash: u32,
        known: bool,
    ) -> Result<u64, &'static str> {
        if !view.geometry.features().has_incompat(Incompat::EA_INODE) {
            return Err("the feature is missing");
        }
        let inode = self.again(ino).ok_or("cannot be read")?;
        if !inode.flags().contains(InodeFlags::EA_INODE) || !inode.is_regular() {
            return Err("is not an attribute's value");
        }
        if inode.links() == 0 || inode.size(&view.geometry) != u64::from(size) {
            return Err("is not in use, or of another size");
        }
        let expected = xattr_entry_hash(
            &entry.name,
            &inode.ea_hash().to_le_bytes(),
            XattrSigns::Unsigned,
        );
        let signed = xattr_entry_hash(
            &entry.name,
            &inode.ea_hash().to_le_bytes(),
            XattrSigns::Signed,
        );
        if hash != expected && hash != signed {
            return Err("the attribute's hash is wrong");
        }
        let sectors = inode.sectors(&view.geometry);
        let cluster = u64::from(view.geometry.cluster_size() / 512).max(1);
        if !known && value_hash(view, ino, &inode) != Some(inode.ea_hash()) {
            return Err("the value's hash is wrong");
        }
        Ok(sectors / cluster)
    }

    /// Checks the reference counts, after all inodes were seen.
    pub(super) fn references(&mut self) {
        let view = Arc::clone(&self.view);
        let mut blocks: Vec<_> = self
            .xattr_blocks
            .iter()
            .filter(|(_, one)| !one.bad)
            .collect();
        blocks.sort_by_key(|(block, _)| **block);
        let wrong = blocks
            .into_iter()
            .filter(|(_, one)| u64::from(one.refcount) != one.seen);
        let wrong: Vec<_> = wrong
            .map(|(block, one)| Finding::XattrRefcount {
                block: *block,
                found: one.refcount,
                expected: one.seen,
            })
            .collect();
        if !self.incomplete {
            self.found_all(wrong);
        }
        for group in 0..view.geometry.group_count() {
            let notes = self.inodes.group(group);
            let values: Vec<u32> = (0..notes.len())
                .filter(|at| notes[*at].is_value && notes[*at].in_use && !notes[*at].bad)
                .filter_map(|at| view.geometry.ino(group, at as u32))
                .collect();
            for ino in values {
                self.value_references(ino);
            }
        }
    }

    fn value_references(&mut self, ino: u32) {
        let seen = self.values.get(&ino).map_or(0, |known| known.seen);
        let Some(inode) = self.again(ino) else {
            return;
        };
        let found = inode.ea_refcount();
        if found != seen && !self.incomplete {
            self.found(Finding::XattrValueRefcount {
                ino,
                found,
                expected: seen,
            });
        }
    }
}

/// Name of the attribute with the context of an encrypted inode.
const CONTEXT: &[u8] = b"c";

/// Whether it is a context of version 1 or 2, by version and length.
fn is_context(bytes: &[u8]) -> bool {
    matches!((bytes.first(), bytes.len()), (Some(1), 28) | (Some(2), 40))
}

/// Hash of a value, over all its bytes.
fn value_hash(view: &View, ino: u32, inode: &Inode) -> Option<u32> {
    let mut left = inode.size(&view.geometry);
    let mut hash = view.geometry.csum_seed();
    let (mut next, mut failed) = (0, false);
    let mut nodes = std::collections::HashSet::new();
    walk::walk(view, ino, inode, &mut |piece| match piece {
        Piece::Node { block } => nodes.insert(block),
        Piece::Data {
            logical,
            physical,
            len,
            ..
        } => {
            failed |= logical != next;
            next = logical + len;
            for block in physical..physical + len {
                if left == 0 || failed {
                    break;
                }
                match view.block(block) {
                    Ok(bytes) => {
                        let many = left.min(bytes.len() as u64);
                        hash = crc32c(hash, &bytes[..many as usize]);
                        left -= many;
                    }
                    Err(_) => failed = true,
                }
            }
            true
        }
    });
    (!failed && left == 0).then_some(hash)
}
