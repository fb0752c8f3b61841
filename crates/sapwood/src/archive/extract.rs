//! Making the entries of an archive in a file system.
//!
//! # How it works
//! Every step takes one name in a directory that is held. The directories of the entry before stay
//! held, so a following entry of the same directory finds it at once. A file gets its final owner
//! and mode when it is made, where the directory does not ask for others; set-id bits and times
//! follow the content. A directory gets its attributes at the end, because everything that is made
//! in it changes its times. A directory that the archive only passes through keeps its times if an
//! image is built.
//!
//! A layer of a container image replaces what lower layers have, also whole directories by files.
//! Its whiteouts are applied to the lower layers before anything of it is made.
//!
//! A file whose content ends too early, or finds no space, is removed again.

mod whiteouts;

use std::collections::{BTreeMap, HashSet};

use super::entry::{Attributes, Entries, Entry, EntryKind};
use super::error::{ArchiveError, Result, path};
use crate::changes::Changes;
use crate::progress::{OnProgress, Progress};
use crate::tree::{self, Node};
use crate::vfs::{
    self, Credentials, Error, FileKind, FileSystem, Ino, NewInode, SetAttr, SetTime, SetXattrMode,
    Timestamp, WriteMode,
};

/// Bytes in which content is copied, and which become a hole if all are zero.
const PIECE: usize = 64 * 1024;
/// Where an archive is extracted.
pub(crate) struct Into<'a> {
    pub(crate) fs: &'a dyn FileSystem,
    /// The directory.
    pub(crate) base: Node<'a>,
    /// Symbolic links in names are followed: the directory is the root of an image.
    pub(crate) through_links: bool,
    /// Owner and umask of directories that are not in the archive.
    pub(crate) creator: Credentials,
    /// What is made otherwise than the archive has it.
    pub(crate) changes: &'a Changes,
    /// An image is built: directories that are not in the archive have this time, and those that
    /// exist keep theirs.
    pub(crate) building: Option<Timestamp>,
    /// The archive is a layer of a container image.
    pub(crate) layer: bool,
}

/// A held directory.
struct Open<'a> {
    name: Vec<u8>,
    node: Node<'a>,
}

/// Times of a directory that is not in the archive.
struct Passed {
    path: Vec<u8>,
    atime: Timestamp,
    mtime: Timestamp,
}

/// The extraction of one archive.
pub(crate) struct Extraction<'a> {
    into: Into<'a>,
    /// The directories of the last entry, from the one in the base on.
    open: Vec<Open<'a>>,
    /// Directories that get their attributes at the end, by their path.
    directories: BTreeMap<Vec<u8>, (Ino, Attributes)>,
    /// Directories that get times at the end, because what is made in them changes them.
    passed: BTreeMap<Ino, Passed>,
    /// The directories in both.
    settled: HashSet<Ino>,
    piece: Vec<u8>,
}

impl<'a> Extraction<'a> {
    pub(crate) fn new(into: Into<'a>) -> Self {
        Self {
            into,
            open: Vec::new(),
            directories: BTreeMap::new(),
            passed: BTreeMap::new(),
            settled: HashSet::new(),
            piece: vec![0; PIECE],
        }
    }

    /// Makes every entry.
    ///
    /// # Errors
    /// [`ArchiveError`]; what was extracted until then stays.
    pub(crate) fn run(
        mut self,
        entries: &mut dyn Entries,
        progress: &mut OnProgress<'_>,
    ) -> Result<()> {
        let mut done = 0;
        let made = loop {
            let made = match entries.next() {
                Ok(Some(entry)) => self.entry(entry, entries),
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            };
            if let Err(error) = made {
                break Err(error);
            }
            done += 1;
            let phase = "extract";
            progress(Progress::Done { phase, done });
        };
        // Also after a failure, as their modes are provisional.
        let finished = self.finish_directories();
        made.and(finished)
    }

    /// The directory that was entered last.
    fn top(&self) -> &Node<'a> {
        self.open.last().map_or(&self.into.base, |open| &open.node)
    }

    /// Its path below the base.
    fn top_path(&self) -> Vec<u8> {
        let names: Vec<&[u8]> = self.open.iter().map(|open| open.name.as_slice()).collect();
        names.join(&b'/')
    }

    /// Makes one entry.
    fn entry(&mut self, entry: Entry, content: &mut dyn Entries) -> Result<()> {
        let changes = self.into.changes;
        let Entry {
            path: named,
            kind,
            mut attributes,
            size,
        } = entry;
        let parts = components(&named)?;
        let below = parts.join(&b'/');
        let hides = self.into.layer && parts.last().is_some_and(|name| whiteouts::is_one(name));
        if hides || changes.excludes(&below) {
            return Ok(());
        }
        if let Some(kind) = kind.kind() {
            changes.apply(&below, kind, &mut attributes);
        }
        let Some((name, parents)) = parts.split_last() else {
            if kind != EntryKind::Directory {
                return Err(ArchiveError::Root(path(&named)));
            }
            let ino = self.into.base.ino();
            self.settled.insert(ino);
            self.passed.remove(&ino);
            self.directories.insert(below, (ino, attributes));
            return Ok(());
        };
        if let EntryKind::Link(target) = &kind {
            return self.link(target, name, parents, &named, (size, attributes), content);
        }
        self.reach(parents, &named, true)?;
        if kind == EntryKind::Directory {
            let made = self.directory(name, &attributes).map_err(failed(&named))?;
            self.directories.insert(below, (made, attributes));
            return Ok(());
        }
        let node = self.make(&kind, name, &attributes, &named, size, content)?;
        self.finish(&node, &attributes, &named)
            .map_err(failed(&named))
    }

    /// Makes a directory in the top one, and enters it. One that exists stays.
    fn directory(&mut self, name: &[u8], attributes: &Attributes) -> vfs::Result<Ino> {
        let found = self.child(name)?;
        let node = match found.filter(Node::is_dir) {
            Some(node) => node,
            None => {
                let who = credentials(attributes);
                self.create(
                    &who,
                    name,
                    NewInode::Directory,
                    attributes.perm & 0o777 | 0o700,
                )?
            }
        };
        let (name, ino) = (name.to_vec(), node.ino());
        // Its own times come from its entry.
        self.passed.remove(&ino);
        self.settled.insert(ino);
        self.open.push(Open { name, node });
        Ok(ino)
    }

    /// Enters the directory `parts` below the base. One that is missing is made, or else not
    /// entered: false.
    fn reach(&mut self, parts: &[&[u8]], named: &[u8], make: bool) -> Result<bool> {
        let same = parts
            .iter()
            .zip(&self.open)
            .take_while(|(part, open)| **part == open.name.as_slice())
            .count();
        self.open.truncate(same);
        for depth in same..parts.len() {
            let Some((name, above)) = parts.get(..=depth).and_then(<[_]>::split_last) else {
                break;
            };
            let Some(node) = self.enter(name, above, named, make)? else {
                return Ok(false);
            };
            let name = name.to_vec();
            self.open.push(Open { name, node });
        }
        Ok(true)
    }

    fn enter(
        &mut self,
        name: &[u8],
        above: &[&[u8]],
        named: &[u8],
        make: bool,
    ) -> Result<Option<Node<'a>>> {
        let failed = failed(named);
        let Some(found) = self.child(name).map_err(&failed)? else {
            return match make {
                true => self.enter_new(name, above).map_err(failed).map(Some),
                false => Ok(None),
            };
        };
        match found.attr().kind {
            FileKind::Directory => Ok(Some(found)),
            FileKind::Symlink if self.into.through_links => {
                let path = [above, &[name]].concat().join(&b'/');
                match tree::resolve(self.into.fs, &path, true) {
                    Ok(dir) if dir.is_dir() => Ok(Some(dir)),
                    Ok(_) => Err(failed(Error::NotDirectory)),
                    Err(Error::NotFound | Error::SymlinkLoop) if !make => Ok(None),
                    Err(error) => Err(failed(error)),
                }
            }
            FileKind::Symlink => Err(ArchiveError::ThroughLink(path(named))),
            _ if !make => Ok(None),
            _ => Err(failed(Error::NotDirectory)),
        }
    }

    /// Makes a directory that is not in the archive.
    fn enter_new(&mut self, name: &[u8], above: &[&[u8]]) -> vfs::Result<Node<'a>> {
        let creator = self.into.creator;
        let node = self.create(&creator, name, NewInode::Directory, 0o777)?;
        if let Some(time) = self.into.building {
            let path = [above, &[name]].concat().join(&b'/');
            let mut attributes = Attributes {
                perm: node.attr().perm,
                uid: creator.uid,
                gid: creator.gid,
                mtime: time,
                xattrs: Vec::new(),
            };
            let changes = self.into.changes;
            changes.label(&path, FileKind::Directory, &mut attributes.xattrs);
            self.settled.insert(node.ino());
            self.directories.insert(path, (node.ino(), attributes));
        }
        Ok(node)
    }

    /// Remembers the times of the top directory, which are about to change.
    fn pass(&mut self) {
        let attr = *self.top().attr();
        if self.into.building.is_none() || !self.settled.insert(attr.ino) {
            return;
        }
        let passed = Passed {
            path: self.top_path(),
            atime: attr.atime,
            mtime: attr.mtime,
        };
        self.passed.insert(attr.ino, passed);
    }

    /// What a name in the top directory leads to; of a symbolic link the link itself.
    fn child(&self, name: &[u8]) -> vfs::Result<Option<Node<'a>>> {
        match self.top().child(name) {
            Ok(node) => Ok(Some(node)),
            Err(Error::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes an inode in the top directory, in place of what has the name.
    fn create(
        &mut self,
        who: &Credentials,
        name: &[u8],
        what: NewInode<'_>,
        perm: u32,
    ) -> vfs::Result<Node<'a>> {
        self.pass();
        let (fs, dir) = (self.into.fs, self.top().ino());
        let made = match fs.create(who, dir, name, what, perm) {
            Err(Error::Exists) => {
                self.vacate(name)?;
                fs.create(who, dir, name, what, perm)
            }
            other => other,
        };
        Ok(Node::new(fs, made?))
    }

    /// Removes what has a name in the top directory. A directory must be empty, unless a layer
    /// replaces it.
    fn vacate(&mut self, name: &[u8]) -> vfs::Result<()> {
        let Some(node) = self.child(name)? else {
            return Ok(());
        };
        let dir = self.top().ino();
        match node.is_dir() {
            false => self.into.fs.unlink(dir, name),
            true if self.into.layer => self.remove(name),
            true => {
                self.into.fs.rmdir(dir, name)?;
                self.forget_below(name);
                Ok(())
            }
        }
    }

    /// Removes a name with everything below it, if something has it.
    fn remove(&mut self, name: &[u8]) -> vfs::Result<()> {
        let Some(node) = self.child(name)? else {
            return Ok(());
        };
        match node.is_dir() {
            false => self.into.fs.unlink(self.top().ino(), name),
            true => {
                let removed = tree::remove_all(self.top(), node, name, &mut |_| Ok(()));
                self.forget_below(name);
                removed.map_err(|(_, error)| error)
            }
        }
    }

    /// A directory in the top one is gone: it gets no attributes.
    fn forget_below(&mut self, name: &[u8]) {
        let mut gone = self.top_path();
        if !gone.is_empty() {
            gone.push(b'/');
        }
        gone.extend_from_slice(name);
        let below = [&gone, &b"/"[..]].concat();
        self.directories
            .retain(|path, _| *path != gone && !path.starts_with(&below));
    }

    /// Adds a name to what another entry made. `brings`: content of an archive that has it with the
    /// last name.
    fn link(
        &mut self,
        target: &[u8],
        name: &[u8],
        parents: &[&[u8]],
        named: &[u8],
        brings: (u64, Attributes),
        content: &mut dyn Entries,
    ) -> Result<()> {
        let none = || ArchiveError::NoTarget {
            path: path(named),
            target: path(target),
        };
        let parts = components(target)?;
        let (old, old_parents) = parts.split_last().ok_or_else(none)?;
        let entered = self.reach(old_parents, target, false)?;
        let found = if entered { self.child(old) } else { Ok(None) };
        let node = found.map_err(failed(named))?.ok_or_else(none)?;
        let from = self.top().ino();
        self.reach(parents, named, true)?;
        let dir = self.top().ino();
        if (from, *old) != (dir, name) {
            self.pass();
            let fs = self.into.fs;
            let linked = match fs.link(node.ino(), dir, name) {
                Err(Error::Exists) => self
                    .vacate(name)
                    .and_then(|()| fs.link(node.ino(), dir, name)),
                other => other,
            };
            fs.forget(linked.map_err(failed(named))?.ino(), 1);
        }
        let (size, mut attributes) = brings;
        if size > 0 {
            let kind = node.attr().kind;
            self.into
                .changes
                .apply(&parts.join(&b'/'), kind, &mut attributes);
            self.content(&node, size, None, named, content)?;
            self.finish(&node, &attributes, named)
                .map_err(failed(named))?;
        }
        Ok(())
    }

    /// Makes what is neither a directory nor a further name, with its content.
    fn make(
        &mut self,
        kind: &EntryKind,
        name: &[u8],
        attributes: &Attributes,
        named: &[u8],
        size: u64,
        content: &mut dyn Entries,
    ) -> Result<Node<'a>> {
        let what = match kind {
            EntryKind::Symlink(target) => NewInode::Symlink(target),
            EntryKind::Special(FileKind::CharDevice, number) => NewInode::CharDevice(*number),
            EntryKind::Special(FileKind::BlockDevice, number) => NewInode::BlockDevice(*number),
            EntryKind::Special(FileKind::Socket, _) => NewInode::Socket,
            EntryKind::Special(..) => NewInode::Fifo,
            _ => NewInode::Regular,
        };
        let perm = match kind {
            EntryKind::Symlink(_) => 0o777,
            _ => attributes.perm & 0o1777,
        };
        // Read first: nothing is made of a small file that the archive does not have in whole.
        let first = match what {
            NewInode::Regular if size > 0 => Some(content.read(&mut self.piece)?),
            _ => None,
        };
        let made = self.create(&credentials(attributes), name, what, perm);
        let node = made.map_err(failed(named))?;
        if size > 0 && what == NewInode::Regular {
            let written = self.content(&node, size, first, named, content);
            if let Err(error) = written {
                // The error that is reported is the first one.
                let _ = self.into.fs.unlink(self.top().ino(), name);
                return Err(error);
            }
        }
        Ok(node)
    }

    /// Writes the content of a file. Zeros become holes. `first`: the piece that was read already.
    fn content(
        &mut self,
        node: &Node<'a>,
        size: u64,
        first: Option<(u64, usize)>,
        named: &[u8],
        content: &mut dyn Entries,
    ) -> Result<()> {
        let (fs, ino) = (self.into.fs, node.ino());
        let mut end = 0;
        let mut next = first;
        loop {
            let (at, count) = match next.take() {
                Some(piece) => piece,
                None => content.read(&mut self.piece)?,
            };
            let data = self.piece.get(..count).unwrap_or_default();
            if data.is_empty() {
                break;
            }
            if data.iter().any(|byte| *byte != 0) {
                let written = fs.write(ino, at, data, WriteMode::default());
                end = written.map_err(failed(named))?;
            }
        }
        if end < size {
            let changes = SetAttr {
                size: Some(size),
                ..SetAttr::default()
            };
            fs.setattr(ino, &changes).map_err(failed(named))?;
        }
        Ok(())
    }

    /// Gives an inode its attributes: the owner first, because a change of it drops capabilities.
    fn finish(&self, node: &Node<'a>, attributes: &Attributes, named: &[u8]) -> vfs::Result<()> {
        let (fs, now) = (self.into.fs, node.attr());
        let owner = SetAttr {
            uid: (attributes.uid != now.uid).then_some(attributes.uid),
            gid: (attributes.gid != now.gid).then_some(attributes.gid),
            ..SetAttr::default()
        };
        let mut changes = SetAttr {
            perm: (now.kind != FileKind::Symlink).then_some(attributes.perm),
            atime: Some(SetTime::To(attributes.mtime)),
            mtime: Some(SetTime::To(attributes.mtime)),
            ..SetAttr::default()
        };
        if attributes.xattrs.is_empty() {
            (changes.uid, changes.gid) = (owner.uid, owner.gid);
            return fs.setattr(node.ino(), &changes).map(drop);
        }
        if owner.uid.or(owner.gid).is_some() {
            fs.setattr(node.ino(), &owner)?;
        }
        for (name, value) in &attributes.xattrs {
            match fs.setxattr(node.ino(), name, value, SetXattrMode::Any) {
                // An attribute of another kind of system means nothing here.
                Err(Error::NotSupported) => {
                    let (named, name) = (crate::shown::name(named), crate::shown::name(name));
                    log::warn!("{named}: the attribute {name} is left out");
                }
                other => other?,
            }
        }
        fs.setattr(node.ino(), &changes).map(drop)
    }

    fn finish_directories(&mut self) -> Result<()> {
        let mut listed = HashSet::new();
        // Those inside first: the mode of one may forbid to look names up in it.
        for (named, (ino, attributes)) in std::mem::take(&mut self.directories).into_iter().rev() {
            let parts: Vec<&[u8]> = components(&named)?;
            if self.reach(&parts, &named, false)? && self.top().ino() == ino {
                listed.insert(ino);
                self.finish(self.top(), &attributes, &named)
                    .map_err(failed(&named))?;
            }
        }
        for (ino, passed) in std::mem::take(&mut self.passed) {
            let parts = components(&passed.path)?;
            if listed.contains(&ino) || !self.reach(&parts, &passed.path, false)? {
                continue;
            }
            let times = SetAttr {
                atime: Some(SetTime::To(passed.atime)),
                mtime: Some(SetTime::To(passed.mtime)),
                ..SetAttr::default()
            };
            if self.top().ino() == ino {
                let set = self.into.fs.setattr(ino, &times);
                set.map_err(failed(&passed.path))?;
            }
        }
        Ok(())
    }
}

fn credentials(attributes: &Attributes) -> Credentials {
    Credentials {
        uid: attributes.uid,
        gid: attributes.gid,
        umask: 0,
        keep_setgid: true,
    }
}

fn failed(named: &[u8]) -> impl Fn(Error) -> ArchiveError {
    let named = path(named);
    move |source| ArchiveError::Inode {
        path: named.clone(),
        source,
    }
}

/// The names of a path below the directory that an archive is put into.
pub(crate) fn components(named: &[u8]) -> Result<Vec<&[u8]>> {
    let mut parts = Vec::new();
    for part in named.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return Err(ArchiveError::Outside(path(named))),
            name if name.contains(&0) => return Err(ArchiveError::NulInName(path(named))),
            name => parts.push(name),
        }
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_inside() {
        let parts = |named: &'static str| components(named.as_bytes());
        assert!(matches!(parts("./a//b/"), Ok(parts) if parts == [&b"a"[..], b"b"]));
        assert!(matches!(parts("/etc"), Ok(parts) if parts == [&b"etc"[..]]));
        assert!(matches!(parts("./"), Ok(parts) if parts.is_empty()));
        assert!(matches!(parts("a/../b"), Err(ArchiveError::Outside(_))));
        assert!(matches!(parts("a\0b"), Err(ArchiveError::NulInName(_))));
    }
}
