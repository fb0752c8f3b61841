//! Names of inodes. A name is in three items: the dir item (for a lookup), the index (for a
//! listing) and the ref of the inode. Where two of them agree, the third one follows.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use sapwood_btrfs_format::{
    DirItem, DirItemRef, InodeRefRef, Key, dir_items, extref_hash, inode_refs, kind, name_hash,
};
use zerocopy::FromBytes;

use super::super::error::CheckError;
use super::super::finding::{Finding, shown};
use super::super::inodes::names as names_of;
use super::super::report::CheckReport;
use super::Repaired;
use super::edit::Editor;

/// A directory: its tree and inode.
type Dir = (u64, u64);

/// An entry of a directory, in a dir item or an index.
#[derive(Clone, PartialEq, Eq)]
struct Entry {
    name: Vec<u8>,
    location: Key,
    kind: u8,
    transid: u64,
}

impl Entry {
    fn of(entry: &DirItemRef<'_>) -> Self {
        Self {
            name: entry.name.to_vec(),
            location: entry.location,
            kind: entry.kind,
            transid: entry.transid,
        }
    }

    fn encode(&self) -> Vec<u8> {
        let entry = DirItemRef {
            location: self.location,
            transid: self.transid,
            kind: self.kind,
            name: &self.name,
            data: &[],
        };
        entry.encode()
    }

    /// The name, and where it leads.
    fn target(&self) -> (&[u8], Key) {
        (&self.name, self.location)
    }
}

/// All that is known about the names in one directory.
#[derive(Default)]
struct Names {
    items: BTreeMap<Vec<u8>, Entry>,
    index: BTreeMap<u64, Entry>,
    /// Index, name and inode of each ref.
    refs: BTreeSet<(u64, Vec<u8>, u64)>,
}

/// All that is known about the names in some directories of a tree.
struct TreeNames {
    dirs: BTreeMap<u64, Names>,
    /// The inodes of the tree.
    inodes: HashSet<u64>,
}

/// The directory of a finding about a name.
fn dir_of(finding: &Finding) -> Option<Dir> {
    match *finding {
        Finding::DirIndexMissing { tree, inode, .. }
        | Finding::DirItemMissing { tree, inode, .. }
        | Finding::DirItemDiffers { tree, inode, .. } => Some((tree, inode)),
        Finding::InodeRefMissing { tree, dir, .. }
        | Finding::DirEntryMissing { tree, dir, .. }
        | Finding::DirEntryDangling { tree, dir, .. } => Some((tree, dir)),
        _ => None,
    }
}

/// Repairs the names of all directories with findings, and file types of entries.
pub(super) fn repair(
    editor: &Editor<'_, '_>,
    report: &CheckReport,
    done: &mut Repaired,
) -> Result<(), CheckError> {
    let mut trees: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    for (tree, dir) in report.findings.iter().filter_map(dir_of) {
        trees.entry(tree).or_default().insert(dir);
    }
    for (tree, dirs) in trees {
        let TreeNames { dirs, inodes } = TreeNames::read(editor, tree, &dirs);
        for (dir, names) in dirs {
            names.repair(editor, (tree, dir), &inodes, done)?;
        }
    }
    for finding in &report.findings {
        if set_type(editor, finding)? {
            done.add(finding.code(), format!("{finding}: corrected"));
        }
    }
    Ok(())
}

impl TreeNames {
    /// Reads the tree once, for all directories.
    fn read(editor: &Editor<'_, '_>, tree: u64, wanted: &BTreeSet<u64>) -> Self {
        let empty = wanted.iter().map(|dir| (*dir, Names::default()));
        let mut dirs: BTreeMap<u64, Names> = empty.collect();
        let mut inodes = HashSet::new();
        editor.range(
            tree,
            &Key::MIN,
            &Key::MAX,
            &mut |key, data| match key.kind {
                kind::DIR_ITEM => {
                    if let Some(names) = dirs.get_mut(&key.objectid) {
                        let entries = dir_items(data).filter_map(Result::ok);
                        let entries = entries.map(|entry| (entry.name.to_vec(), Entry::of(&entry)));
                        names.items.extend(entries);
                    }
                }
                kind::DIR_INDEX => {
                    if let Some(names) = dirs.get_mut(&key.objectid) {
                        let entry = dir_items(data).find_map(Result::ok);
                        let entry = entry.map(|entry| (key.offset, Entry::of(&entry)));
                        names.index.extend(entry);
                    }
                }
                kind::INODE_REF | kind::INODE_EXTREF => {
                    for (parent, index, name) in names_of(&key, data) {
                        if let Some(names) = dirs.get_mut(&parent) {
                            names.refs.insert((index, name.to_vec(), key.objectid));
                        }
                    }
                }
                kind::INODE_ITEM => _ = inodes.insert(key.objectid),
                _ => {}
            },
        );
        Self { dirs, inodes }
    }
}

impl Names {
    /// Whether a ref and its dir item agree, and whether the ref and its index do.
    fn agree(&self, (index, name, inode): &(u64, Vec<u8>, u64)) -> (bool, bool) {
        let location = Key::new(*inode, kind::INODE_ITEM, 0);
        let item = self.items.get(name);
        let listed = self.index.get(index).filter(|entry| entry.name == *name);
        let leads = |entry: Option<&Entry>| entry.is_some_and(|entry| entry.location == location);
        (leads(item), leads(listed))
    }

    fn repair(
        &self,
        editor: &Editor<'_, '_>,
        (tree, dir): Dir,
        inodes: &HashSet<u64>,
        done: &mut Repaired,
    ) -> Result<(), CheckError> {
        let mut add = |code, name: &[u8], what: &str| {
            let name = shown(name);
            done.add(
                code,
                format!("subvolume {tree} directory {dir}: {name}: {what}"),
            );
        };
        let listed: BTreeSet<(&[u8], Key)> = self.index.values().map(Entry::target).collect();
        for one in &self.refs {
            let (index, name, _) = one;
            let agree = self.agree(one);
            // With another index of the same name, the ref is the odd one.
            if agree == (true, false)
                && let Some(item) = self.items.get(name)
                && !listed.contains(&item.target())
                && editor.put(
                    tree,
                    &Key::new(dir, kind::DIR_INDEX, *index),
                    &item.encode(),
                )?
            {
                add(
                    "DirIndexMissing",
                    name,
                    "index written from dir item and ref",
                );
            }
            if agree == (false, true)
                && let Some(listed) = self.index.get(index)
                && put_item(editor, (tree, dir), listed)?
            {
                add(
                    "DirItemMissing",
                    name,
                    "dir item written from index and ref",
                );
            }
        }
        for (index, entry) in &self.index {
            let item = self.items.get(&entry.name);
            let inode = entry.location.objectid;
            let known = (*index, entry.name.clone(), inode);
            let agree = item.is_some_and(|item| item.target() == entry.target());
            let is_inode = entry.location.kind == kind::INODE_ITEM && inodes.contains(&inode);
            if !agree || !is_inode || self.refs.contains(&known) {
                continue;
            }
            if self.put_ref(editor, (tree, dir), &known)? {
                add(
                    "InodeRefMissing",
                    &entry.name,
                    "ref written from dir item and index",
                );
            }
        }
        Ok(())
    }

    /// Writes a ref. It replaces one of the same name, and one that neither dir item nor index has.
    fn put_ref(
        &self,
        editor: &Editor<'_, '_>,
        (tree, dir): Dir,
        (index, name, inode): &(u64, Vec<u8>, u64),
    ) -> Result<bool, CheckError> {
        let key = Key::new(*inode, kind::INODE_REF, dir);
        let mut kept = Vec::new();
        let mut long = false;
        let extref = Key::new(*inode, kind::INODE_EXTREF, extref_hash(dir, name));
        editor.range(tree, &key, &extref, &mut |found, data| {
            long |= found == extref;
            if found != key {
                return;
            }
            for one in inode_refs(data).filter_map(Result::ok) {
                let known = (one.index, one.name.to_vec(), *inode);
                if one.name != name && self.agree(&known) != (false, false) {
                    kept.extend(one.encode());
                }
            }
        });
        if long {
            return Ok(false);
        }
        let new = InodeRefRef {
            index: *index,
            name,
        };
        kept.extend(new.encode());
        editor.put(tree, &key, &kept)
    }
}

/// Writes the dir item of a name, next to other names with the same hash.
fn put_item(editor: &Editor<'_, '_>, (tree, dir): Dir, entry: &Entry) -> Result<bool, CheckError> {
    let key = Key::new(dir, kind::DIR_ITEM, name_hash(&entry.name).into());
    let mut data = Vec::new();
    editor.range(tree, &key, &key, &mut |_, found| {
        let others = dir_items(found).filter_map(Result::ok);
        for other in others.filter(|other| other.name != entry.name) {
            data.extend(other.encode());
        }
    });
    data.extend(entry.encode());
    editor.put(tree, &key, &data)
}

/// Gives an entry the file type of its inode, in dir item and index.
fn set_type(editor: &Editor<'_, '_>, finding: &Finding) -> Result<bool, CheckError> {
    let Finding::DirEntryType {
        tree,
        dir,
        name,
        expected,
        ..
    } = finding
    else {
        return Ok(false);
    };
    let mut places = Vec::new();
    let from = Key::new(*dir, kind::DIR_ITEM, 0);
    let to = Key::new(*dir, kind::DIR_INDEX, u64::MAX);
    editor.range(*tree, &from, &to, &mut |key, data| {
        let mut at = 0;
        for entry in dir_items(data).map_while(Result::ok) {
            if shown(entry.name) == *name {
                places.push((key, at));
            }
            at += entry.encode().len();
        }
    });
    let mut set = false;
    for (key, at) in places {
        set |= editor.edit(*tree, &key, |data| {
            let (item, _) = DirItem::mut_from_prefix(data.get_mut(at..)?).ok()?;
            item.kind = *expected;
            Some(())
        })?;
    }
    Ok(set)
}
