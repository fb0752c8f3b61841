//! Checks an inode with all its items.

use sapwood_btrfs_format::{Incompat, InodeFlags, file_type, objectid};

use super::super::finding::Finding;
use super::super::state::Check;
use super::leaf::type_hash;
use super::partial::{Facts, Partial};
use super::summary::Summary;

/// Whether it is a removed directory. Linux may stop before it removes the indexes of the last
/// entries; they are removed with the orphan.
fn is_dead_directory(partial: &Partial) -> bool {
    let dead = |facts: &Facts| {
        facts.nlink == 0 && partial.names == 0 && file_type::from_mode(facts.mode) == file_type::DIR
    };
    partial.facts.as_ref().is_some_and(dead)
}

impl Check<'_> {
    /// Reports the problems of an inode, and adds to the summary the facts that others must agree
    /// with.
    pub(super) fn judge(&mut self, tree: u64, partial: Partial, sum: &mut Summary) {
        let inode = partial.inode;
        self.report.stats.inodes += 1;
        if !is_dead_directory(&partial) {
            sum.links = sum.links.wrapping_add(partial.links);
            sum.types = sum.types.wrapping_add(partial.types);
        }
        let Some(facts) = partial.facts else {
            if !partial.damaged {
                self.found(Finding::InodeMissing {
                    tree,
                    inode,
                    key: partial.first,
                });
            }
            return;
        };
        let file_type = file_type::from_mode(facts.mode);
        let types = type_hash(inode, file_type).wrapping_mul(partial.entries.into());
        sum.types = sum.types.wrapping_sub(types);
        if facts.nlink == 0 {
            sum.unlinked.push(inode);
        }
        self.judge_mode(tree, &partial, &facts, file_type);
        if partial.damaged || is_dead_directory(&partial) {
            return;
        }
        let (found, expected) = (facts.nlink, partial.names);
        if u64::from(found) != expected {
            self.found(Finding::LinkCount {
                tree,
                inode,
                found,
                expected,
            });
        }
        self.judge_hash_tree(tree, &partial, &facts, sum);
        match file_type {
            file_type::DIR => self.judge_directory(tree, &partial, &facts),
            // An inode without names may be half deleted.
            file_type::REG_FILE if facts.nlink > 0 => self.judge_file(tree, &partial, &facts),
            file_type::SYMLINK if facts.nlink > 0 => self.judge_symlink(tree, &partial, &facts),
            _ => {}
        }
        self.judge_checksums(tree, &partial, &facts);
    }

    fn judge_mode(&mut self, tree: u64, partial: &Partial, facts: &Facts, file_type: u8) {
        let has_data = matches!(file_type, file_type::REG_FILE | file_type::SYMLINK);
        let odd = match (partial.dir_key, partial.data_key) {
            (Some(key), _) if file_type != file_type::DIR => Some(key),
            (_, Some(key)) if !has_data => Some(key),
            _ => None,
        };
        if let Some(key) = odd {
            let (inode, mode) = (partial.inode, facts.mode);
            self.found(Finding::ItemNotOfMode {
                tree,
                inode,
                mode,
                key,
            });
        }
    }

    fn judge_directory(&mut self, tree: u64, partial: &Partial, facts: &Facts) {
        let (inode, names) = (partial.inode, partial.names);
        if partial.parent.is_some_and(|parent| parent > inode) {
            self.inodes.climbers.push(inode);
        }
        if names > 1 {
            self.found(Finding::DirectoryNames { tree, inode, names });
        }
        let examined = partial.listing != 0 && self.examine_directory(tree, inode);
        let (found, expected) = (facts.size, partial.name_bytes);
        if found != expected && !examined {
            self.found(Finding::DirectorySize {
                tree,
                inode,
                found,
                expected,
            });
        }
    }

    fn judge_extents(&mut self, tree: u64, partial: &Partial, facts: &Facts) {
        let inode = partial.inode;
        let extents = &partial.extents;
        if let Some(offset) = extents.overlap {
            self.found(Finding::FileExtentOverlap {
                tree,
                inode,
                offset,
            });
        }
        if let Some(len) = extents.inline.filter(|len| *len > self.sectorsize()) {
            self.found(Finding::InlineTooLong { tree, inode, len });
        }
        let (found, expected) = (facts.nbytes, extents.bytes);
        if found != expected {
            self.found(Finding::InodeBytes {
                tree,
                inode,
                found,
                expected,
            });
        }
    }

    fn judge_file(&mut self, tree: u64, partial: &Partial, facts: &Facts) {
        self.judge_extents(tree, partial, facts);
        let (inode, size, extents) = (partial.inode, facts.size, &partial.extents);
        let end = size
            .div_ceil(self.sectorsize())
            .saturating_mul(self.sectorsize());
        if let Some(offset) = extents.last_data.filter(|at| *at >= end) {
            self.found(Finding::FileExtentPastEnd {
                tree,
                inode,
                offset,
                size,
            });
        }
        if self.sb.incompat().contains(Incompat::NO_HOLES) {
            return;
        }
        let at_begin = (extents.first.is_none_or(|at| at > 0) && end > 0).then_some(0);
        let at_end = (extents.end < end).then_some(extents.end);
        if let Some(offset) = at_begin.or(extents.gap.filter(|at| *at < end)).or(at_end) {
            self.found(Finding::FileExtentGap {
                tree,
                inode,
                offset,
            });
        }
    }

    fn judge_symlink(&mut self, tree: u64, partial: &Partial, facts: &Facts) {
        let (inode, size) = (partial.inode, facts.size);
        let fixed = InodeFlags::IMMUTABLE | InodeFlags::APPEND;
        if facts.flags.intersects(fixed) {
            let flags = facts.flags.bits();
            self.found(Finding::SymlinkFlags { tree, inode, flags });
        }
        let found = partial.extents.inline.unwrap_or(0);
        if found != size || size == 0 {
            self.found(Finding::SymlinkTarget {
                tree,
                inode,
                size,
                found,
            });
        } else {
            self.judge_extents(tree, partial, facts);
        }
    }

    fn judge_checksums(&mut self, tree: u64, partial: &Partial, facts: &Facts) {
        let inode = partial.inode;
        let unsummed = facts.flags.contains(InodeFlags::NODATASUM);
        // Compressed data always has checksums.
        let bare = if unsummed {
            partial.bare_compressed
        } else {
            partial.bare
        };
        let unsummed = unsummed && bare.is_none();
        match (unsummed, bare, partial.summed) {
            // Relocation moves data of inodes with and without checksums.
            (false, Some(_), _) if tree == objectid::DATA_RELOC_TREE => {}
            (false, Some((offset, bytenr, len)), _) if !self.has_hole(objectid::CSUM_TREE) => {
                self.found(Finding::ChecksumMissing {
                    tree,
                    inode,
                    offset,
                    bytenr,
                    len,
                });
            }
            (true, _, Some((offset, bytenr, _))) if inode <= objectid::LAST_FREE => {
                self.found(Finding::ChecksumUnwanted {
                    tree,
                    inode,
                    offset,
                    bytenr,
                });
            }
            _ => {}
        }
    }
}
