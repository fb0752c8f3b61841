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
//! A layer of a container image replaces inodes of the layers below it, also whole directories by
//! files. Its whiteouts are applied before any of its entries is made.
//!
//! An archive is extracted by the owner of an image, or for a [`Client`] of a mounted file system
//! (`gate`). For a client, as with tar(1), an entry that the client has no right to make is
//! reported and left out. Owners are restored if the client may change owners, else its umask
//! counts, and no set-id bit is set. A copy for a client follows the rules of `copy`: it keeps
//! modes, replaces no directory, and leaves out everything below a directory that it cannot make.
//!
//! An inode has the ACLs of its entry alone if an image is built, in a copy, and if the entry has
//! any. Else it inherits the default ACL of its directory, as with tar(1).
//!
//! A file whose content ends too early, or finds no space, is removed again.

mod directories;
mod held;
mod inode;
mod whiteouts;

use super::entry::{Attributes, Entries, Entry, EntryKind};
use super::error::{ArchiveError, Result, path};
use super::gate::{Change, Client, Gate};
use crate::changes::Changes;
use crate::progress::{OnProgress, Progress};
use crate::tree::{self, HeldInode};
use crate::vfs::{
    self, Content, Credentials, Error, FileKind, FileSystem, Ino, NewInode, Timestamp,
};

use directories::Remembered;
use held::Held;
pub(crate) use whiteouts::is_one as is_whiteout;

/// Bytes in which content is copied, and which become a hole if all are zero.
pub(crate) const PIECE: usize = 64 * 1024;
/// Treatment of an entry with the name of a whiteout (`.wh.NAME`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whiteouts {
    /// The archive is a layer of a container image. Its whiteouts were applied before, and are left
    /// out.
    Applied,
    /// Such an entry is a file of that name.
    Files,
    /// An error if it is empty, because the archive seems to be a layer.
    Refused,
}

/// The place into which an archive is extracted.
pub(crate) struct Into<'a> {
    pub(crate) fs: &'a dyn FileSystem,
    /// The directory.
    pub(crate) base: HeldInode<'a>,
    /// Symbolic links in names are followed: the directory is the root of an image.
    pub(crate) through_links: bool,
    /// Path of the directory that the archive is put into, below `base`. A symbolic link that has
    /// this path is followed, not replaced.
    pub(crate) at: &'a [u8],
    /// Owner and umask of directories that are not in the archive.
    pub(crate) creator: Credentials,
    /// Attributes that replace the archive's, and entries that are left out.
    pub(crate) changes: &'a Changes,
    /// An image is built: directories that are not in the archive have this time, and those that
    /// exist keep theirs.
    pub(crate) building: Option<Timestamp>,
    pub(crate) whiteouts: Whiteouts,
    /// The process that it is extracted for.
    pub(crate) client: Option<Client<'a>>,
}

/// Counters of an extraction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[must_use]
pub(crate) struct Extracted {
    /// Entries that were extracted or left out.
    pub(crate) done: u64,
    /// Entries that were reported and left out.
    pub(crate) left_out: u64,
}

/// The extraction of one archive.
pub(crate) struct Extraction<'a> {
    into: Into<'a>,
    gate: Gate<'a>,
    held: Held<'a>,
    remembered: Remembered,
    /// A directory that a copy could not make.
    shut: Option<Vec<u8>>,
    piece: Vec<u8>,
}

impl<'a> Extraction<'a> {
    pub(crate) fn new(into: Into<'a>) -> Self {
        Self {
            gate: Gate::new(into.fs, into.client),
            into,
            held: Held::default(),
            remembered: Remembered::default(),
            shut: None,
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
    ) -> Result<Extracted> {
        let mut extracted = Extracted::default();
        let made = self.entries(entries, &mut extracted, progress);
        // Also after a failure, as their modes are provisional.
        let finished = self.finish_directories(&mut extracted, progress);
        made.and(finished).map(|()| extracted)
    }

    /// Makes the directory `at`, with those above it, unless it exists.
    ///
    /// # Errors
    /// [`ArchiveError`]: the path leads through a file, or through a link where none is followed;
    /// an error of the file system.
    pub(crate) fn make_directory(mut self, at: &[u8], progress: &mut OnProgress<'_>) -> Result<()> {
        let reached = self.reach(&components(at)?, at, true);
        let finished = self.finish_directories(&mut Extracted::default(), progress);
        reached.and(finished)
    }

    fn entries(
        &mut self,
        entries: &mut dyn Entries,
        extracted: &mut Extracted,
        progress: &mut OnProgress<'_>,
    ) -> Result<()> {
        while let Some(entry) = entries.next()? {
            let made = self.entry(entry, entries);
            self.settle(made, extracted, progress)?;
            extracted.done += 1;
            let (phase, done) = ("extract", extracted.done);
            progress(Progress::Done { phase, done });
            if self.remembered.kept > directories::MOST_KEPT {
                self.finish_directories(extracted, progress)?;
            }
        }
        Ok(())
    }

    /// Reports an entry that a client has no right to make, or that the image cannot have. Any
    /// other failure ends the extraction.
    fn settle(
        &self,
        made: Result<()>,
        extracted: &mut Extracted,
        progress: &mut OnProgress<'_>,
    ) -> Result<()> {
        let Err(error) = made else {
            return Ok(());
        };
        match self.into.client {
            Some(client) if client.continues_after(&error) => {
                // The client knows what it could not read.
                if !matches!(error, ArchiveError::Truncated(_)) {
                    extracted.left_out += 1;
                    progress(Progress::Failed(&error));
                }
                Ok(())
            }
            _ => Err(error),
        }
    }

    /// The directory that was entered last.
    fn top(&self) -> &HeldInode<'a> {
        self.held.top().unwrap_or(&self.into.base)
    }

    /// Makes one entry.
    fn entry(&mut self, entry: Entry, content: &mut dyn Entries) -> Result<()> {
        let changes = self.into.changes;
        let has_content = entry.has_content();
        let Entry {
            path: named,
            kind,
            mut attributes,
            size,
        } = entry;
        let parts = components(&named)?;
        let below = parts.join(&b'/');
        if self.is_shut(&below) {
            return Ok(());
        }
        if changes.excludes(&below) {
            return Ok(());
        }
        if parts.last().is_some_and(|name| is_whiteout(name)) {
            match self.into.whiteouts {
                Whiteouts::Applied => return Ok(()),
                Whiteouts::Files => {}
                Whiteouts::Refused if has_content => {}
                Whiteouts::Refused => return Err(ArchiveError::OfLayer(path(&named))),
            }
        }
        if let Some(kind) = kind.kind() {
            changes.apply(&below, kind, &mut attributes);
        }
        let Some((name, parents)) = parts.split_last() else {
            if kind != EntryKind::Directory {
                return Err(ArchiveError::Root(path(&named)));
            }
            let ino = self.into.base.ino();
            self.remembered.settled.insert(ino);
            self.remembered.passed.remove(&ino);
            self.held.leave(0);
            self.keep_for_the_end((ino, true), attributes);
            return Ok(());
        };
        if let EntryKind::Link(target) = &kind {
            return self.link(target, name, parents, &named, (size, attributes), content);
        }
        if kind == EntryKind::Directory && self.into.through_links && below == self.into.at {
            self.reach(&parts, &named, true)?;
            let ino = self.top().ino();
            self.remembered.settled.insert(ino);
            self.remembered.passed.remove(&ino);
            self.keep_for_the_end((ino, true), attributes);
            return Ok(());
        }
        self.reach(parents, &named, true)?;
        if kind == EntryKind::Directory {
            let made = self.directory(name, &attributes);
            if made.is_err() && self.is_copy() {
                self.shut = Some(below);
            }
            let made = made.map_err(failed(&named))?;
            self.keep_for_the_end(made, attributes);
            return Ok(());
        }
        let (node, filled) = self.make(&kind, name, &attributes, &named, size, content)?;
        let finished = if filled {
            self.finish_filled(&node, &attributes, &named)
        } else {
            self.finish(&node, &attributes, &named, false)
        };
        self.gate.changed(Change::Name(self.top().ino(), name));
        self.gate.changed(Change::Attributes(node.ino()));
        finished.map_err(failed(&named))
    }

    /// Whether the entries are a copy for a client.
    fn is_copy(&self) -> bool {
        self.into.client.is_some_and(|client| client.copies)
    }

    /// Whether a path is a directory that could not be made, or is below one.
    fn is_shut(&self, path: &[u8]) -> bool {
        let below = self
            .shut
            .as_ref()
            .and_then(|shut| path.strip_prefix(shut.as_slice()));
        below.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
    }

    /// Makes a directory in the top one, and enters it. One that exists stays: true.
    fn directory(&mut self, name: &[u8], attributes: &Attributes) -> vfs::Result<(Ino, bool)> {
        let there = self.child(name)?.filter(HeldInode::is_dir);
        let found = there.is_some();
        let node = match there {
            Some(node) => node,
            None => {
                let (who, perm) = self.credentials(attributes);
                let perm = perm & 0o777 | 0o700;
                let made = self.create(&who, name, NewInode::Directory, perm)?;
                self.gate.changed(Change::Name(self.top().ino(), name));
                made
            }
        };
        let ino = node.ino();
        // Its own times come from its entry.
        self.remembered.passed.remove(&ino);
        self.remembered.settled.insert(ino);
        self.held.enter(name, node);
        Ok((ino, found))
    }

    /// Enters the directory `parts` below the base. One that is missing is made, or else not
    /// entered: false.
    fn reach(&mut self, parts: &[&[u8]], named: &[u8], make: bool) -> Result<bool> {
        let same = self.held.common(parts);
        self.held.leave(same);
        for name in parts.iter().skip(same) {
            if !self.enter(name, Some(named), make)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Enters a directory in the top one. One that is missing is made, or else not entered: false.
    /// `named`: the entry that is named in errors; `None` is the directory.
    fn enter(&mut self, name: &[u8], named: Option<&[u8]>, make: bool) -> Result<bool> {
        self.try_enter(name, make).map_err(|barred| {
            let path = path(&named.map_or_else(|| self.held.path_of(name), <[u8]>::to_vec));
            match barred {
                Barred::Link => ArchiveError::ThroughLink(path),
                Barred::Failed(source) => ArchiveError::Inode { path, source },
            }
        })
    }

    fn try_enter(&mut self, name: &[u8], make: bool) -> std::result::Result<bool, Barred> {
        let Some(found) = self.child(name)? else {
            if make {
                self.enter_new(name)?;
            }
            return Ok(make);
        };
        let node = match found.attr().kind {
            FileKind::Directory => found,
            FileKind::Symlink if self.into.through_links => {
                match tree::resolve(self.into.fs, &self.held.path_of(name), true) {
                    Ok(dir) if dir.is_dir() => dir,
                    Err(Error::NotFound | Error::SymlinkLoop) if !make => return Ok(false),
                    Ok(_) => return Err(Error::NotDirectory.into()),
                    Err(error) => return Err(error.into()),
                }
            }
            FileKind::Symlink => return Err(Barred::Link),
            _ if !make => return Ok(false),
            _ => return Err(Error::NotDirectory.into()),
        };
        self.held.enter(name, node);
        Ok(true)
    }

    /// Makes a directory that is not in the archive, and enters it.
    fn enter_new(&mut self, name: &[u8]) -> vfs::Result<()> {
        let creator = self.into.creator;
        let node = self.create(&creator, name, NewInode::Directory, 0o777)?;
        self.gate.changed(Change::Name(self.top().ino(), name));
        let (ino, perm) = (node.ino(), node.attr().perm);
        self.held.enter(name, node);
        if let Some(time) = self.into.building {
            let mut attributes = Attributes {
                // An earlier source may have given its directory a default ACL.
                perm: perm & !0o777 | 0o777 & !creator.umask,
                uid: creator.uid,
                gid: creator.gid,
                mtime: time,
                atime: None,
                xattrs: Vec::new(),
            };
            let changes = self.into.changes;
            changes.label(
                self.held.path(),
                FileKind::Directory,
                &mut attributes.xattrs,
            );
            self.remembered.settled.insert(ino);
            self.keep_for_the_end((ino, false), attributes);
        }
        Ok(())
    }

    /// The inode of a name in the top directory. A symbolic link is not followed.
    fn child(&self, name: &[u8]) -> vfs::Result<Option<HeldInode<'a>>> {
        self.gate.child(self.top(), name)
    }

    /// Makes an inode in the top directory. It replaces a file or empty directory of this name.
    fn create(
        &mut self,
        who: &Credentials,
        name: &[u8],
        what: NewInode<'_>,
        perm: u32,
    ) -> vfs::Result<HeldInode<'a>> {
        self.pass();
        match self.gate.create(who, self.top(), name, what, perm) {
            Err(Error::Exists) => {
                self.vacate(name, what == NewInode::Directory)?;
                self.gate.create(who, self.top(), name, what, perm)
            }
            other => other,
        }
    }

    /// Makes a file together with its content, in place of an existing name like
    /// [`create`](Self::create). `None` if the file system cannot do both at once.
    fn create_filled(
        &mut self,
        who: &Credentials,
        name: &[u8],
        perm: u32,
        content: &Content<'_>,
    ) -> vfs::Result<Option<HeldInode<'a>>> {
        self.pass();
        let create = |this: &Self| (this.gate).create_filled(who, this.top(), name, perm, content);
        match create(self) {
            Err(Error::Exists) => {
                self.vacate(name, false)?;
                create(self)
            }
            other => other,
        }
    }

    /// Removes the inode with this name from the top directory. A directory must be empty, unless a
    /// layer replaces it. `directory`: the new inode is a directory.
    fn vacate(&mut self, name: &[u8], directory: bool) -> vfs::Result<()> {
        let Some(node) = self.child(name)? else {
            return Ok(());
        };
        match node.is_dir() {
            true if self.into.whiteouts == Whiteouts::Applied => self.remove(name),
            true if self.is_copy() => Err(Error::IsDirectory),
            false if directory && self.is_copy() => Err(Error::NotDirectory),
            true => {
                self.gate.remove(self.top(), &node, name)?;
                self.forget_below(name);
                Ok(())
            }
            false => self.gate.remove(self.top(), &node, name),
        }
    }

    /// Removes a name with everything below it, if something has it.
    fn remove(&mut self, name: &[u8]) -> vfs::Result<()> {
        let Some(node) = self.child(name)? else {
            return Ok(());
        };
        if !node.is_dir() {
            self.into.fs.unlink(self.top().ino(), name)
        } else {
            let removed = tree::remove_all(self.top(), node, name, &mut |_| Ok(()));
            self.forget_below(name);
            removed.map_err(|(_, error)| error)
        }
    }

    /// Adds a name to an inode that another entry made. `brings`: size and attributes of the
    /// content, where the archive stores it with the last name.
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
            let linked = match self.gate.link(&node, self.top(), name) {
                Err(Error::Exists) => self
                    .vacate(name, false)
                    .and_then(|()| self.gate.link(&node, self.top(), name)),
                other => other,
            };
            linked.map_err(failed(named))?;
            self.gate.changed(Change::Name(dir, name));
            self.gate.changed(Change::Attributes(node.ino()));
        }
        let (size, mut attributes) = brings;
        if size > 0 {
            let kind = node.attr().kind;
            self.into
                .changes
                .apply(&parts.join(&b'/'), kind, &mut attributes);
            self.content(&node, size, None, named, content)?;
            self.finish(&node, &attributes, named, false)
                .map_err(failed(named))?;
        }
        Ok(())
    }
}

/// Why a directory was not entered.
enum Barred {
    /// A symbolic link has its name, and none may be followed.
    Link,
    Failed(Error),
}

impl From<Error> for Barred {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

fn failed(named: &[u8]) -> impl Fn(Error) -> ArchiveError {
    move |source| ArchiveError::Inode {
        path: path(named),
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
