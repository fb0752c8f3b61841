//! Two directories of any images, compared name by name.

use std::collections::BTreeMap;

use super::{DiffEntry, DiffError, DiffKind, DiffOptions, DiffParts, Result, Top, at, path};
use crate::kind::Kind;
use crate::tree::{self, HeldInode, Names, Walker, join};
use crate::vfs::{self, FileKind};

/// A directory that both sides have.
struct Level<'a> {
    old: HeldInode<'a>,
    new: HeldInode<'a>,
    path: Vec<u8>,
    /// Names with the sides that have them.
    names: std::collections::btree_map::IntoIter<Vec<u8>, (bool, bool)>,
}

struct Comparison<'o> {
    options: &'o DiffOptions,
    each: &'o mut dyn FnMut(DiffEntry),
}

/// Takes a reference of its own to a top directory.
fn hold<'a>(top: &Top<'a>) -> vfs::Result<HeldInode<'a>> {
    let fs = top.node.file_system();
    if top.node.ino() == fs.root() {
        return HeldInode::root(fs);
    }
    Ok(HeldInode::new(fs, fs.reference(top.node.ino())?))
}

pub(super) fn diff(
    old: &Top<'_>,
    new: &Top<'_>,
    options: &DiffOptions,
    each: &mut dyn FnMut(DiffEntry),
) -> Result<()> {
    let (old_node, new_node) = (
        hold(old).map_err(at("compare", b""))?,
        hold(new).map_err(at("compare", b""))?,
    );
    let mut comparison = Comparison { options, each };
    comparison.both(&old_node, &new_node, b"")?;
    let formats = (old.fs.kind(), new.fs.kind());
    let mut open = vec![level(old_node, new_node, Vec::new(), formats)?];
    let mut inside = std::collections::HashSet::new();
    while let Some(level_now) = open.last_mut() {
        if options.stop.is_stopped() {
            return Err(DiffError::Stopped);
        }
        let Some((name, sides)) = level_now.names.next() else {
            open.pop();
            continue;
        };
        let path = join(&level_now.path, &name);
        let child = |dir: &HeldInode<'_>, has: bool| -> Result<Option<_>> {
            if !has {
                return Ok(None);
            }
            let entry = dir.file_system().lookup(dir.ino(), &name);
            Ok(Some(entry.map_err(at("read", &path))?))
        };
        let before = child(&level_now.old, sides.0)?;
        let before = before.map(|entry| HeldInode::new(level_now.old.file_system(), entry));
        let after = child(&level_now.new, sides.1)?;
        let after = after.map(|entry| HeldInode::new(level_now.new.file_system(), entry));
        match (before, after) {
            (Some(before), Some(after)) if before.attr().kind == after.attr().kind => {
                comparison.both(&before, &after, &path)?;
                if after.is_dir() {
                    if !inside.insert(after.ino()) {
                        return Err(at("read", &path)(tree::directory_loop(&name)));
                    }
                    open.push(level(before, after, path, formats)?);
                }
            }
            (before, after) => {
                if let Some(before) = before {
                    comparison.single(&before, &path, DiffKind::Removed)?;
                }
                if let Some(after) = after {
                    comparison.single(&after, &path, DiffKind::Added)?;
                }
            }
        }
    }
    Ok(())
}

fn level<'a>(
    old: HeldInode<'a>,
    new: HeldInode<'a>,
    path: Vec<u8>,
    formats: (Kind, Kind),
) -> Result<Level<'a>> {
    let mut names: BTreeMap<Vec<u8>, (bool, bool)> = BTreeMap::new();
    for (dir, kind, is_new) in [(&old, formats.0, false), (&new, formats.1, true)] {
        let mut listing = Names::default();
        let fs = dir.file_system();
        while let Some(entry) = listing.next(fs, dir.ino()).map_err(at("list", &path))? {
            if tree::is_of_format(kind, dir, &entry.name).map_err(at("list", &path))? {
                continue;
            }
            let sides = names.entry(entry.name).or_default();
            if is_new {
                sides.1 = true;
            } else {
                sides.0 = true;
            }
        }
    }
    Ok(Level {
        old,
        new,
        path,
        names: names.into_iter(),
    })
}

impl Comparison<'_> {
    /// Compares two files of one type.
    fn both(&mut self, old: &HeldInode<'_>, new: &HeldInode<'_>, name: &[u8]) -> Result<()> {
        let parts = self.parts(old, new).map_err(at("compare", name))?;
        if parts.any() {
            (self.each)(DiffEntry {
                kind: DiffKind::Changed,
                path: path(name),
                from: None,
                file: new.attr().kind,
                parts,
            });
        }
        Ok(())
    }

    fn parts(&self, old: &HeldInode<'_>, new: &HeldInode<'_>) -> vfs::Result<DiffParts> {
        let (then, now) = (old.attr(), new.attr());
        let regular = now.kind == FileKind::Regular;
        let mut parts = DiffParts {
            content: now.rdev != then.rdev,
            size: regular && now.size != then.size,
            mtime: now.mtime != then.mtime,
            mode: now.perm != then.perm,
            uid: now.uid != then.uid,
            gid: now.gid != then.gid,
            xattrs: old.xattrs()? != new.xattrs()?,
        };
        if parts.size {
            parts.content = true;
        } else if regular && (parts.mtime || self.options.content) {
            parts.content = !new.has_content_of(old)?;
        } else if now.kind == FileKind::Symlink {
            parts.content = old.target()? != new.target()?;
        }
        Ok(parts)
    }

    /// Reports a file that one side has, and everything below it.
    fn single(&mut self, node: &HeldInode<'_>, name: &[u8], kind: DiffKind) -> Result<()> {
        let mut report = |name: &[u8], file: FileKind| {
            (self.each)(DiffEntry {
                kind,
                path: path(name),
                from: None,
                file,
                parts: DiffParts::default(),
            });
        };
        report(name, node.attr().kind);
        if !node.is_dir() {
            return Ok(());
        }
        let fs = node.file_system();
        let mut walk = Walker::named(node.ino(), name);
        loop {
            let step = walk.next(fs);
            let step = match step {
                Ok(Some((_, attr))) if !self.options.stop.is_stopped() => attr,
                Ok(Some(_)) => {
                    walk.end(fs);
                    return Err(DiffError::Stopped);
                }
                Ok(None) => return Ok(()),
                Err(error) => {
                    let failed = at("list", walk.whole_path());
                    walk.end(fs);
                    return Err(failed(error));
                }
            };
            report(walk.whole_path(), step.kind);
        }
    }
}
