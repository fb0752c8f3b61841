//! Applying operations.

use std::ops::ControlFlow;

use super::generate::SLOTS;
use super::{Op, Place, Subject};
use sapwood_vfs::{
    Attr, Entry, Error, FileKind, FileSystem, Ino, InodeFlags, Result, SeekFrom, Subvolumes,
    WriteMode,
};

/// The visible attributes of an inode that are the same on every engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Type.
    pub kind: FileKind,
    /// Permission, set-id and sticky bits.
    pub perm: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of names; of a directory only whether it has any.
    pub nlink: u32,
    /// Device number.
    pub rdev: u64,
    /// Length in bytes; 0 for a directory.
    pub size: u64,
    /// Inode flags.
    pub flags: InodeFlags,
}

impl From<&Attr> for Seen {
    fn from(attr: &Attr) -> Self {
        let is_dir = attr.kind == FileKind::Directory;
        Self {
            kind: attr.kind,
            perm: attr.perm,
            uid: attr.uid,
            gid: attr.gid,
            nlink: if is_dir {
                attr.nlink.min(1)
            } else {
                attr.nlink
            },
            rdev: attr.rdev,
            size: if is_dir { 0 } else { attr.size },
            flags: attr.flags,
        }
    }
}

/// The result of an operation, as far as it must be the same on every engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It succeeded.
    Done,
    /// It found or changed an inode that looks like this.
    Inode(Seen),
    /// Bytes that were read, the target of a link, or the value of an attribute.
    Bytes(Vec<u8>),
    /// Offset after a write, or number of bytes copied.
    Number(u64),
    /// Names and types in a directory, sorted.
    Entries(Vec<(Vec<u8>, FileKind)>),
    /// Names of extended attributes, sorted.
    Names(Vec<Vec<u8>>),
    /// The slot is empty.
    Empty,
    /// It failed with this error.
    Failed(Error),
    /// It failed, and the trait does not define the error.
    Refused,
    /// The file system contradicts itself: always a failure.
    Wrong(String),
}

impl From<Result<Outcome>> for Outcome {
    fn from(result: Result<Outcome>) -> Self {
        result.unwrap_or_else(Outcome::Failed)
    }
}

fn done(_: ()) -> Outcome {
    Outcome::Done
}

/// Applies operations below one directory, and holds references between them. Dropping the session
/// drops the references.
pub struct Session<'a> {
    fs: &'a dyn FileSystem,
    base: Ino,
    held: [Option<Ino>; SLOTS],
}

impl std::fmt::Debug for Session<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = f.debug_struct("Session");
        out.field("base", &self.base).field("held", &self.held);
        out.finish_non_exhaustive()
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.release_all();
    }
}

impl<'a> Session<'a> {
    /// A session whose places are below `base`; the caller keeps a reference to `base`.
    #[must_use]
    pub fn new(fs: &'a dyn FileSystem, base: Ino) -> Self {
        Self {
            fs,
            base,
            held: [None; SLOTS],
        }
    }

    /// Applies one operation.
    pub fn apply(&mut self, op: &Op) -> Outcome {
        match op {
            Op::Create { .. }
            | Op::Tmpfile { .. }
            | Op::Link { .. }
            | Op::Unlink(_)
            | Op::Rmdir(_)
            | Op::Rename { .. }
            | Op::Hold { .. }
            | Op::Release(_) => self.names(op).into(),
            Op::Stat(_) | Op::Parent(_) | Op::Readlink(_) | Op::List { .. } => {
                self.looks(op).into()
            }
            Op::CreateSubvolume(_)
            | Op::Snapshot { .. }
            | Op::DeleteSubvolume(_)
            | Op::SetReadOnly { .. } => self.subvolumes(op).into(),
            Op::SetXattr { .. }
            | Op::GetXattr { .. }
            | Op::RemoveXattr { .. }
            | Op::ListXattr(_)
            | Op::SetFlags { .. }
            | Op::SetAttr { .. } => self.attributes(op).into(),
            _ => self.content(op).into(),
        }
    }

    fn release_all(&mut self) {
        for ino in self.held.iter_mut().filter_map(Option::take) {
            self.fs.forget(ino, 1);
        }
    }

    fn hold(&mut self, slot: usize, entry: Entry) -> Outcome {
        match self.held.get_mut(slot) {
            Some(held) => {
                if let Some(old) = held.replace(entry.ino()) {
                    self.fs.forget(old, 1);
                }
            }
            None => self.fs.forget(entry.ino(), 1),
        }
        Outcome::Inode(Seen::from(&entry.attr))
    }

    /// The visible state of an entry; drops its reference.
    fn seen(&self, entry: Entry) -> Outcome {
        self.fs.forget(entry.ino(), 1);
        Outcome::Inode(Seen::from(&entry.attr))
    }

    /// Runs `body` on the inode at the end of `names`.
    fn walk<T>(&self, names: &[&str], body: impl FnOnce(Ino) -> Result<T>) -> Result<T> {
        let (mut at, mut held) = (self.base, None);
        for name in names {
            let found = self.fs.lookup(at, name.as_bytes());
            if let Some(last) = held.take() {
                self.fs.forget(last, 1);
            }
            at = found?.ino();
            held = Some(at);
        }
        let result = body(at);
        if let Some(last) = held {
            self.fs.forget(last, 1);
        }
        result
    }

    /// Runs `body` on the directory of a place, with the name in it.
    fn within<T>(&self, place: &Place, body: impl FnOnce(Ino, &[u8]) -> Result<T>) -> Result<T> {
        let Some((name, dirs)) = place.0.split_last() else {
            return Err(Error::Busy);
        };
        self.walk(dirs, |dir| body(dir, name.as_bytes()))
    }

    fn on(&self, subject: &Subject, body: impl FnOnce(Ino) -> Result<Outcome>) -> Result<Outcome> {
        match subject {
            Subject::At(place) => self.walk(&place.0, body),
            Subject::Held(slot) => match self.held.get(*slot).copied().flatten() {
                Some(ino) => body(ino),
                None => Ok(Outcome::Empty),
            },
        }
    }

    fn is_file(&self, ino: Ino) -> bool {
        let attr = self.fs.getattr(ino);
        attr.is_ok_and(|attr| attr.kind == FileKind::Regular)
    }

    fn names(&mut self, op: &Op) -> Result<Outcome> {
        let fs = self.fs;
        match op {
            Op::Create {
                at,
                kind,
                perm,
                who,
            } => {
                let who = who.credentials();
                let made = |dir, name: &[u8]| fs.create(&who, dir, name, kind.new_inode(), *perm);
                self.within(at, made).map(|entry| self.seen(entry))
            }
            Op::Tmpfile {
                dir,
                perm,
                who,
                slot,
            } => {
                let who = who.credentials();
                let made = self.walk(&dir.0, |dir| fs.tmpfile(&who, dir, *perm))?;
                Ok(self.hold(*slot, made))
            }
            Op::Link { subject, to } => self.on(subject, |ino| {
                let linked = self.within(to, |dir, name| fs.link(ino, dir, name));
                linked.map(|entry| self.seen(entry))
            }),
            Op::Unlink(at) => self.within(at, |dir, name| fs.unlink(dir, name)).map(done),
            Op::Rmdir(at) => {
                // The directory may be a subvolume, and the trait does not define what happens to
                // its held inodes.
                self.release_all();
                self.within(at, |dir, name| fs.rmdir(dir, name)).map(done)
            }
            Op::Rename { from, to, mode } => {
                let renamed = self.within(from, |from_dir, from_name| {
                    self.within(to, |to_dir, to_name| {
                        fs.rename(from_dir, from_name, to_dir, to_name, *mode)
                    })
                });
                renamed.map(done)
            }
            Op::Hold { at, slot } => {
                let found = self.within(at, |dir, name| fs.lookup(dir, name))?;
                Ok(self.hold(*slot, found))
            }
            Op::Release(slot) => Ok(match self.held.get_mut(*slot).and_then(Option::take) {
                Some(ino) => {
                    fs.forget(ino, 1);
                    Outcome::Done
                }
                None => Outcome::Empty,
            }),
            _ => Ok(Outcome::Empty),
        }
    }

    fn looks(&self, op: &Op) -> Result<Outcome> {
        let fs = self.fs;
        match op {
            Op::Stat(subject) => self.on(subject, |ino| {
                Ok(Outcome::Inode(Seen::from(&fs.getattr(ino)?)))
            }),
            Op::Parent(at) => {
                let parent = self.walk(&at.0, |ino| fs.parent(ino))?;
                Ok(self.seen(parent))
            }
            Op::Readlink(subject) => self.on(subject, |ino| fs.readlink(ino).map(Outcome::Bytes)),
            Op::List { dir, page } => self.walk(&dir.0, |dir| self.list(dir, *page)),
            _ => Ok(Outcome::Empty),
        }
    }

    fn list(&self, dir: Ino, page: usize) -> Result<Outcome> {
        let (mut all, mut at) = (Vec::new(), 0);
        loop {
            let before = all.len();
            self.fs.readdir(dir, at, &mut |entry| {
                at = entry.next;
                all.push(entry);
                match all.len() - before < page {
                    true => ControlFlow::Continue(()),
                    false => ControlFlow::Break(()),
                }
            })?;
            if all.len() == before {
                break;
            }
        }
        let mut names = Vec::new();
        for entry in all {
            let found = self.fs.lookup(dir, &entry.name)?;
            self.fs.forget(found.ino(), 1);
            if (found.ino(), found.attr.kind) != (entry.ino, entry.kind) {
                let text = format!("readdir shows {entry:?}, lookup {:?}", found.attr);
                return Ok(Outcome::Wrong(text));
            }
            names.push((entry.name, entry.kind));
        }
        names.sort_by(|one, other| one.0.cmp(&other.0));
        Ok(Outcome::Entries(names))
    }

    fn content(&self, op: &Op) -> Result<Outcome> {
        let fs = self.fs;
        match op {
            Op::Read {
                subject,
                offset,
                len,
            } => self.on(subject, |ino| {
                let mut buf = vec![0xa5; *len];
                let got = fs.read(ino, *offset, &mut buf)?;
                buf.truncate(got);
                Ok(Outcome::Bytes(buf))
            }),
            Op::Write {
                subject,
                offset,
                len,
                fill,
                append,
                kill_setid,
            } => {
                let mode = WriteMode {
                    append: *append,
                    kill_setid: *kill_setid,
                    writeback: false,
                };
                let data = fill.bytes(*len);
                let written = |ino| fs.write(ino, *offset, &data, mode).map(Outcome::Number);
                self.on(subject, written)
            }
            Op::Allocate {
                subject,
                offset,
                len,
                mode,
            } => self.on(subject, |ino| {
                let is_file = self.is_file(ino);
                let result = fs.fallocate(ino, *offset, *len, *mode).map(done);
                or_refused(is_file, result)
            }),
            Op::Seek { subject, from } => self.on(subject, |ino| match self.is_file(ino) {
                true => self.seek(ino, *from),
                false => or_refused(false, fs.seek(ino, *from).map(Outcome::Number)),
            }),
            Op::Copy {
                from,
                from_offset,
                to,
                to_offset,
                len,
                mode,
            } => self.on(from, |source| {
                self.on(to, |target| {
                    let files = self.is_file(source) && self.is_file(target);
                    let copied =
                        fs.copy_range(source, *from_offset, target, *to_offset, *len, *mode);
                    or_refused(files, copied.map(Outcome::Number))
                })
            }),
            Op::Fsync { subject, kind } => self.on(subject, |ino| fs.fsync(ino, *kind).map(done)),
            Op::Sync => fs.sync().map(done),
            _ => Ok(Outcome::Empty),
        }
    }

    /// Seeks, and checks the answer against the content: the skipped range must be zeros. The exact
    /// extent of holes is up to the engine.
    fn seek(&self, ino: Ino, from: SeekFrom) -> Result<Outcome> {
        let size = self.fs.getattr(ino)?.size;
        let (SeekFrom::Data(offset) | SeekFrom::Hole(offset)) = from;
        let found = self.fs.seek(ino, from);
        if offset >= size {
            return found.map(Outcome::Number);
        }
        // The range that holds only zeros according to the answer.
        let (zeros, text) = match (from, &found) {
            (SeekFrom::Data(_), Ok(at)) if (offset..size).contains(at) => (offset..*at, "data"),
            (SeekFrom::Data(_), Err(Error::NoSuchOffset)) => (offset..size, "no data"),
            (SeekFrom::Hole(_), Ok(at)) if (offset..=size).contains(at) => {
                (*at..size.min(at.saturating_add(1)), "a hole")
            }
            (_, Err(other)) if *other != Error::NoSuchOffset => return found.map(Outcome::Number),
            _ => {
                let text = format!("{from:?} in {size} bytes: {found:?}");
                return Ok(Outcome::Wrong(text));
            }
        };
        let len = usize::try_from(zeros.end - zeros.start).map_err(|_| Error::Overflow)?;
        let mut buf = vec![0; len];
        self.fs.read(ino, zeros.start, &mut buf)?;
        match buf.iter().position(|byte| *byte != 0) {
            None => Ok(Outcome::Done),
            Some(at) => Ok(Outcome::Wrong(format!(
                "{from:?} finds {text} ({found:?}), but byte {} is not zero",
                zeros.start + at as u64
            ))),
        }
    }

    fn attributes(&self, op: &Op) -> Result<Outcome> {
        let fs = self.fs;
        match op {
            Op::SetAttr { subject, changes } => self.on(subject, |ino| {
                Ok(Outcome::Inode(Seen::from(&fs.setattr(ino, changes)?)))
            }),
            Op::SetXattr {
                subject,
                name,
                value,
                mode,
            } => self.on(subject, |ino| {
                fs.setxattr(ino, name.as_bytes(), value, *mode).map(done)
            }),
            Op::GetXattr { subject, name } => self.on(subject, |ino| {
                fs.getxattr(ino, name.as_bytes()).map(Outcome::Bytes)
            }),
            Op::RemoveXattr { subject, name } => self.on(subject, |ino| {
                fs.removexattr(ino, name.as_bytes()).map(done)
            }),
            Op::ListXattr(subject) => self.on(subject, |ino| {
                let mut names = fs.listxattr(ino)?;
                names.sort();
                Ok(Outcome::Names(names))
            }),
            Op::SetFlags { subject, flags } => {
                self.on(subject, |ino| fs.set_flags(ino, *flags).map(done))
            }
            _ => Ok(Outcome::Empty),
        }
    }

    fn subvolumes(&mut self, op: &Op) -> Result<Outcome> {
        // The trait does not define what happens to held inodes of a subvolume that is deleted.
        self.release_all();
        let of: &dyn Subvolumes = self.fs.subvolumes().ok_or(Error::NotSupported)?;
        match op {
            Op::CreateSubvolume(at) => {
                let made = self.within(at, |dir, name| of.create_subvolume(dir, name));
                made.map(|entry| self.seen(entry))
            }
            Op::Snapshot {
                source,
                to,
                read_only,
            } => self.walk(&source.0, |source| {
                let made = self.within(to, |dir, name| of.snapshot(source, dir, name, *read_only));
                made.map(|entry| self.seen(entry))
            }),
            Op::DeleteSubvolume(at) => self
                .within(at, |dir, name| of.delete_subvolume(dir, name))
                .map(done),
            Op::SetReadOnly { at, read_only } => self
                .walk(&at.0, |root| of.set_read_only(root, *read_only))
                .map(done),
            _ => Ok(Outcome::Empty),
        }
    }
}

/// An operation for regular files fails on other kinds, with an error that the trait does not
/// define.
fn or_refused(is_file: bool, result: Result<Outcome>) -> Result<Outcome> {
    match result {
        Err(_) if !is_file => Ok(Outcome::Refused),
        other => other,
    }
}
