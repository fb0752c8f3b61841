//! The files of an archive, put into a directory of this machine.
//!
//! The daemon of a Sapwood mount makes them in process (`bulk`). Anywhere else, system calls do.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::error::{CopyCause, CopyError, Result};
use super::local_side::LocalSide;
use super::report::Report;
use super::side::{Meta, New, Rules, Shown, Side, Sink, Take, Xattrs};
use super::{CopyOptions, CopyReport};
use crate::acls;
use crate::archive::{
    ArchiveError, Attributes, Entries, Entry, EntryKind, PIECE, components, is_whiteout, path,
    tar_entries,
};
use crate::progress::{OnProgress, Stop};
use crate::vfs::FileKind;

/// Why an archive was not extracted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UntarError {
    /// The archive.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The directory, or what is made in it.
    #[error(transparent)]
    Copy(#[from] CopyError),
}

/// Extracts a tar archive, which may be compressed, into the directory `dir`, as tar(1). An entry
/// replaces a file of its name, and is added to a directory of its name; no symbolic link below
/// `dir` is followed. If this process may not change owners, its `umask` counts, and set-id bits
/// are not set. In a Sapwood mount the daemon makes the files, with the rights of this process.
///
/// An entry that this process has no right to make is reported to `progress` and left out. The
/// archive is read by a thread that may outlive a failed call.
///
/// # Errors
/// [`UntarError`]; what was extracted until then stays.
pub fn untar(
    dir: &Path,
    archive: impl Read + Send + 'static,
    umask: u32,
    stop: &Stop,
    progress: &mut OnProgress<'_>,
) -> std::result::Result<CopyReport, UntarError> {
    let side = LocalSide::new(PathBuf::new());
    let named = dir.as_os_str().as_bytes();
    let gone = || CopyError::on(side.shown(named), CopyCause::Missing);
    let base = side.sink(named, true)?.ok_or_else(gone)?;
    if base.meta().kind != FileKind::Directory {
        return Err(CopyError::on(base.shown(), CopyCause::NotDirectory).into());
    }
    let report = Report::new(progress, stop.clone());
    #[cfg(feature = "fuse")]
    let archive = match super::send::archive(&*base, archive, umask, &report) {
        Ok(done) => return done.map(|()| report.end()),
        Err(archive) => archive,
    };
    let owner = rustix::process::geteuid().as_raw();
    let unpack = Unpack {
        base,
        open: Vec::new(),
        directories: BTreeMap::new(),
        umask,
        restores: owner == 0,
        rules: Rules {
            inherits: true,
            ..CopyOptions::archive().rules()
        },
        report: &report,
        piece: vec![0; PIECE],
    };
    tar_entries(archive, |entries| unpack.run(entries))?;
    Ok(report.end())
}

const SET_GID: u32 = 0o2000;

/// A directory that is held.
struct Open<'u> {
    name: Vec<u8>,
    node: Sink<'u>,
}

/// The extraction of an archive by system calls.
struct Unpack<'r, 'p, 'u> {
    base: Sink<'u>,
    /// The directories of the last entry.
    open: Vec<Open<'u>>,
    /// Directories that get their attributes at the end.
    directories: BTreeMap<Vec<u8>, Attributes>,
    umask: u32,
    /// Owners and modes come from the archive.
    restores: bool,
    rules: Rules,
    report: &'r Report<'p>,
    piece: Vec<u8>,
}

impl<'u> Unpack<'_, '_, 'u> {
    fn run(mut self, entries: &mut dyn Entries) -> std::result::Result<(), UntarError> {
        let made = self.entries(entries);
        // Also after a failure, as their modes are provisional.
        let finished = self.finish_directories();
        made.and(finished)
    }

    fn entries(&mut self, entries: &mut dyn Entries) -> std::result::Result<(), UntarError> {
        while let Some(entry) = entries.next()? {
            self.report.check_stop()?;
            let made = self.entry(entry, entries);
            self.report.step();
            self.settle(made)?;
        }
        Ok(())
    }

    /// Reports an entry that this process has no right to make. Any other failure ends the
    /// extraction.
    fn settle(
        &self,
        made: std::result::Result<(), UntarError>,
    ) -> std::result::Result<(), UntarError> {
        match made {
            Err(UntarError::Copy(error)) if is_refusal(&error) => {
                self.report.failed(error);
                Ok(())
            }
            other => other,
        }
    }

    fn top(&self) -> &Sink<'u> {
        self.open.last().map_or(&self.base, |open| &open.node)
    }

    fn entry(
        &mut self,
        entry: Entry,
        content: &mut dyn Entries,
    ) -> std::result::Result<(), UntarError> {
        let parts = components(&entry.path)?;
        let below = parts.join(&b'/');
        refuse_whiteout(&entry.path)?;
        let Some((name, parents)) = parts.split_last() else {
            if entry.kind != EntryKind::Directory {
                return Err(ArchiveError::Root(path(&entry.path)).into());
            }
            self.directories.insert(below, entry.attributes);
            return Ok(());
        };
        match &entry.kind {
            EntryKind::Link(target) => {
                self.link(target, name, parents, &entry.path)?;
            }
            EntryKind::Directory => {
                self.reach(parents, &entry.path)?;
                self.directory(name)?;
                self.directories.insert(below, entry.attributes);
            }
            _ => {
                self.reach(parents, &entry.path)?;
                self.make(&entry, name, content)?;
            }
        }
        Ok(())
    }

    /// Enters the directory `parts` below the base. One that is missing is made.
    fn reach(&mut self, parts: &[&[u8]], named: &[u8]) -> std::result::Result<(), UntarError> {
        let pairs = parts.iter().zip(&self.open);
        let same = pairs.take_while(|(part, open)| **part == open.name.as_slice());
        let same = same.count();
        self.open.truncate(same);
        for name in parts.get(same..).unwrap_or_default() {
            match self.top().existing(name)? {
                Some(node) if node.meta().kind == FileKind::Symlink => {
                    return Err(ArchiveError::ThroughLink(path(named)).into());
                }
                Some(node) if node.meta().kind != FileKind::Directory => {
                    return Err(CopyError::on(node.shown(), CopyCause::NotDirectory).into());
                }
                Some(node) => self.enter(name, node),
                None => self.directory(name)?,
            }
        }
        Ok(())
    }

    fn enter(&mut self, name: &[u8], node: Sink<'u>) {
        let name = name.to_vec();
        self.open.push(Open { name, node });
    }

    /// Makes a directory in the top one, and enters it. One that exists stays.
    fn directory(&mut self, name: &[u8]) -> Result<()> {
        let found = self.top().existing(name)?;
        let node = match found {
            Some(node) if node.meta().kind == FileKind::Directory => node,
            found => {
                if found.is_some() {
                    self.top().remove(name)?;
                }
                let meta = Meta {
                    kind: FileKind::Directory,
                    perm: 0o777,
                    ..self.base.meta().clone()
                };
                let new = New {
                    meta: &meta,
                    target: b"",
                };
                let rules = Rules {
                    archive: false,
                    ..self.rules
                };
                self.top().create(name, &rules, &new)?
            }
        };
        self.enter(name, node);
        Ok(())
    }

    /// Makes an inode that is neither a directory nor a hard link.
    fn make(
        &mut self,
        entry: &Entry,
        name: &[u8],
        content: &mut dyn Entries,
    ) -> std::result::Result<(), UntarError> {
        let (target, rdev) = match &entry.kind {
            EntryKind::Symlink(target) => (target.as_slice(), 0),
            EntryKind::Special(_, number) => (&b""[..], *number),
            _ => (&b""[..], 0),
        };
        let mut meta = self.meta(&entry.attributes);
        meta.kind = entry.kind.kind().unwrap_or(FileKind::Regular);
        (meta.rdev, meta.size) = (rdev, entry.size);
        if self.top().existing(name)?.is_some() {
            self.top().remove(name)?;
        }
        let mut rules = self.rules;
        if self.inherits(&entry.attributes.xattrs) {
            rules.archive = false;
            meta.perm = entry.attributes.perm & 0o777;
        }
        let new = New {
            meta: &meta,
            target,
        };
        let node = self.top().create(name, &rules, &new)?;
        if entry.size > 0 {
            let (piece, report) = (&mut self.piece, self.report);
            let mut failed = None;
            let mut fill = |take: &mut Take<'_>| {
                loop {
                    report.check_stop()?;
                    let (at, count) = match content.read(piece) {
                        Ok((_, 0)) => return Ok(entry.size),
                        Ok(read) => read,
                        Err(error) => {
                            failed = Some(error);
                            return Err(CopyError::on("", CopyCause::Ended).that_ends());
                        }
                    };
                    let data = piece.get(..count).unwrap_or_default();
                    if data.iter().any(|byte| *byte != 0) {
                        take(at, data)?;
                    }
                    report.bytes(count as u64);
                }
            };
            let written = node.write(&mut fill);
            if written.is_err() {
                // The error that is reported is the first one.
                let _ = self.top().remove(name);
            }
            match failed {
                Some(error) => return Err(error.into()),
                None => written?,
            }
        }
        self.finish(&node, meta, &entry.attributes.xattrs)?;
        Ok(())
    }

    /// Adds a name to an inode that another entry made.
    fn link(
        &mut self,
        target: &[u8],
        name: &[u8],
        parents: &[&[u8]],
        named: &[u8],
    ) -> std::result::Result<(), UntarError> {
        let none = || ArchiveError::NoTarget {
            path: path(named),
            target: path(target),
        };
        let parts = components(target)?;
        let (old, old_parents) = parts.split_last().ok_or_else(none)?;
        self.reach(old_parents, target)?;
        if self.top().existing(old)?.is_none() {
            return Err(none().into());
        }
        if parents == old_parents && name == *old {
            return Ok(());
        }
        // The directory of the old name stays held while the other one is entered.
        let held = self.open.pop().map(|open| open.node);
        self.reach(parents, named)?;
        if self.top().existing(name)?.is_some() {
            self.top().remove(name)?;
        }
        let from = held.as_ref().unwrap_or(&self.base);
        self.top().link(name, &**from, old)?;
        Ok(())
    }

    /// The metadata that the rules ask for.
    fn meta(&self, attributes: &Attributes) -> Meta {
        let perm = match self.restores {
            true => attributes.perm,
            // An access list decides on the mode; the umask does not apply.
            false if acls::has_access(&attributes.xattrs) => attributes.perm & 0o777,
            false => attributes.perm & 0o777 & !self.umask,
        };
        Meta {
            perm,
            uid: attributes.uid,
            gid: attributes.gid,
            atime: attributes.atime.unwrap_or(attributes.mtime),
            mtime: attributes.mtime,
            ..self.base.meta().clone()
        }
    }

    /// Whether the umask, or the default ACL of the directory, decides on the mode of a new inode.
    fn inherits(&self, xattrs: &Xattrs) -> bool {
        !self.restores && !acls::has_any(xattrs)
    }

    fn finish(&self, node: &Sink<'u>, mut meta: Meta, xattrs: &Xattrs) -> Result<()> {
        if !self.restores {
            let now = node.meta();
            (meta.uid, meta.gid) = (now.uid, now.gid);
            if now.kind == FileKind::Directory {
                // The directory that it is in gave it the bit.
                meta.perm |= now.perm & SET_GID;
            } else if self.inherits(xattrs) {
                meta.perm = now.perm;
            }
        }
        node.finish(&self.rules, &meta, xattrs, true)
    }

    fn finish_directories(&mut self) -> std::result::Result<(), UntarError> {
        // Those inside first: the mode of one may forbid to look names up in it.
        for (named, attributes) in std::mem::take(&mut self.directories).into_iter().rev() {
            let parts = components(&named)?;
            let finished = self.reach(&parts, &named).and_then(|()| {
                let meta = self.meta(&attributes);
                Ok(self.finish(self.top(), meta, &attributes.xattrs)?)
            });
            self.settle(finished)?;
        }
        Ok(())
    }
}

/// Refuses the name of a whiteout, which only a layer in an image may have.
pub(super) fn refuse_whiteout(named: &[u8]) -> std::result::Result<(), ArchiveError> {
    if components(named)?
        .last()
        .is_some_and(|name| is_whiteout(name))
    {
        Err(ArchiveError::OfLayer(path(named)))
    } else {
        Ok(())
    }
}

/// Whether this process lacks a right.
fn is_refusal(error: &CopyError) -> bool {
    use std::io::ErrorKind::PermissionDenied;

    matches!(error.cause(), CopyCause::Host(error) if error.kind() == PermissionDenied)
}
