//! [`Session`]: applies operations to a file system.

mod filled;

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use sapwood_vfs::acl::{self, Acl, AclEntry, Tag as AclTag};
use sapwood_vfs::{
    Attr, CopyMode, Entry, Error, FileKind, FileSystem, Ino, InodeFlags, NewInode, RenameMode,
    Result, SeekFrom, SetXattrMode, SyncKind, WriteMode,
};

use super::{Fill, Op, Outcome, SLOTS, Seen, Target, Who, attribute};

fn done(_: ()) -> Outcome {
    Outcome::Done
}

/// Applies operations below one directory, and holds references between them. Dropping the session
/// drops the references.
pub struct Session<'a> {
    fs: &'a dyn FileSystem,
    base: Ino,
    held: [Option<Ino>; SLOTS],
    opened: Option<&'a BTreeMap<String, Ino>>,
    /// Files that a session with opened paths created, with a reference to each.
    created: Vec<Ino>,
    /// The inode that the last operation created.
    new: Option<Ino>,
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.release_all();
        for ino in self.created.drain(..) {
            self.fs.forget(ino, 1);
        }
    }
}

impl<'a> Session<'a> {
    /// A session whose paths begin at `base`; the caller keeps a reference to `base`.
    #[must_use]
    pub fn new(fs: &'a dyn FileSystem, base: Ino) -> Self {
        Self {
            fs,
            base,
            held: [None; SLOTS],
            opened: None,
            created: Vec::new(),
            new: None,
        }
    }

    /// A session in which a path stands for the inode that the caller opened under it, so that each
    /// operation is one call of the engine. `@0` is the file that the session created last; the
    /// session holds all files that it creates. A file that was not opened or created is `Stale`.
    #[must_use]
    pub fn on_opened(fs: &'a dyn FileSystem, opened: &'a BTreeMap<String, Ino>) -> Self {
        let mut session = Self::new(fs, fs.root());
        session.opened = Some(opened);
        session
    }

    /// Applies one operation.
    pub fn apply(&mut self, op: &Op) -> Outcome {
        self.new = None;
        match op {
            Op::Create { .. }
            | Op::Filled { .. }
            | Op::Mkdir { .. }
            | Op::Symlink { .. }
            | Op::Mknod { .. }
            | Op::Tmpfile { .. }
            | Op::Hold { .. }
            | Op::Release { .. } => self.inodes(op).into(),
            Op::Link { .. }
            | Op::Unlink { .. }
            | Op::Rmdir { .. }
            | Op::Rename { .. }
            | Op::Exchange { .. } => self.names(op).into(),
            Op::Stat { .. } | Op::Parent { .. } | Op::Readlink { .. } | Op::List { .. } => {
                self.looks(op).into()
            }
            Op::Subvolume { .. }
            | Op::Snapshot { .. }
            | Op::DeleteSubvolume { .. }
            | Op::SetReadOnly { .. } => self.subvolumes(op).into(),
            _ => self.content(op).into(),
        }
    }

    /// Applies one operation, if only its success counts.
    ///
    /// # Errors
    /// The error of the file system; `Invalid` for an empty slot.
    pub fn perform(&mut self, op: &Op) -> Result<()> {
        self.apply(op).success()
    }

    /// The inode that a target names now. The caller gets no reference.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`; `Invalid` for an empty slot.
    pub fn ino(&self, target: &Target) -> Result<Ino> {
        match target {
            Target::Held(slot) => self.slot(*slot)?.ok_or(Error::Invalid),
            Target::Path(path) => self.walk(path, Ok),
        }
    }

    /// Attributes of the inode that a target names now.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `Stale`; `Invalid` for an empty slot.
    pub fn attr(&self, target: &Target) -> Result<Attr> {
        match target {
            Target::Held(_) => self.fs.getattr(self.ino(target)?),
            Target::Path(path) => self.walk(path, |ino| self.fs.getattr(ino)),
        }
    }

    /// The inode that a slot holds.
    #[must_use]
    pub fn held(&self, slot: usize) -> Option<Ino> {
        self.held.get(slot).copied().flatten()
    }

    /// The file that a session with opened paths created last.
    #[must_use]
    pub fn last_created(&self) -> Option<Ino> {
        self.created.last().copied()
    }

    /// The inode that the last operation created.
    #[must_use]
    pub fn new_inode(&self) -> Option<Ino> {
        self.new
    }

    /// Takes the files that a session with opened paths created, with their references.
    pub fn take_created(&mut self) -> Vec<Ino> {
        std::mem::take(&mut self.created)
    }

    fn slot(&self, slot: usize) -> Result<Option<Ino>> {
        match self.opened {
            Some(_) => self.last_created().ok_or(Error::Stale).map(Some),
            None => Ok(self.held(slot)),
        }
    }

    /// Empties all slots.
    pub fn release_all(&mut self) {
        for ino in self.held.iter_mut().filter_map(Option::take) {
            self.fs.forget(ino, 1);
        }
    }

    fn hold(&mut self, slot: usize, entry: Entry) -> Outcome {
        match self.held.get_mut(slot) {
            Some(held) => {
                let old = held.replace(entry.ino());
                old.into_iter().for_each(|old| self.fs.forget(old, 1));
            }
            None => self.fs.forget(entry.ino(), 1),
        }
        Outcome::Inode(Seen::from(&entry.attr))
    }

    /// The visible state of a new inode; drops its reference, unless the session keeps its files.
    fn made(&mut self, entry: Entry) -> Outcome {
        self.new = Some(entry.ino());
        if self.opened.is_none() || entry.attr.kind != FileKind::Regular {
            return self.seen(entry);
        }
        self.created.push(entry.ino());
        Outcome::Inode(Seen::from(&entry.attr))
    }

    /// The visible state of an entry; drops its reference.
    fn seen(&self, entry: Entry) -> Outcome {
        self.fs.forget(entry.ino(), 1);
        Outcome::Inode(Seen::from(&entry.attr))
    }

    /// Runs `body` on the inode at the end of a path.
    fn walk<T>(&self, path: &str, body: impl FnOnce(Ino) -> Result<T>) -> Result<T> {
        if let Some(opened) = self.opened {
            return body(*opened.get(path).ok_or(Error::Stale)?);
        }
        let (mut at, mut held) = (self.base, None);
        for name in path.split('/').filter(|name| !matches!(*name, "" | ".")) {
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

    /// Runs `body` on the directory of a path, with the name in it.
    fn within<T>(&self, path: &str, body: impl FnOnce(Ino, &[u8]) -> Result<T>) -> Result<T> {
        let (dir, name) = path.rsplit_once('/').unwrap_or((".", path));
        match name {
            "" | "." => Err(Error::Busy),
            name => self.walk(dir, |dir| body(dir, name.as_bytes())),
        }
    }

    fn on(&self, target: &Target, body: impl FnOnce(Ino) -> Result<Outcome>) -> Result<Outcome> {
        match target {
            Target::Path(path) => self.walk(path, body),
            Target::Held(slot) => self.slot(*slot)?.map_or(Ok(Outcome::Empty), body),
        }
    }

    fn is_file(&self, ino: Ino) -> bool {
        let attr = self.fs.getattr(ino);
        attr.is_ok_and(|attr| attr.kind == FileKind::Regular)
    }

    fn create(&mut self, at: &str, what: NewInode<'_>, perm: u32, who: Who) -> Result<Outcome> {
        let (fs, who) = (self.fs, who.credentials());
        let made = self.within(at, |dir, name| fs.create(&who, dir, name, what, perm))?;
        Ok(self.made(made))
    }

    fn inodes(&mut self, op: &Op) -> Result<Outcome> {
        let fs = self.fs;
        match op {
            Op::Create { at, perm, who } => self.create(at, NewInode::Regular, *perm, *who),
            Op::Filled { .. } => self.filled(op),
            Op::Mkdir { at, perm, who } => self.create(at, NewInode::Directory, *perm, *who),
            Op::Symlink {
                target,
                at,
                perm,
                who,
            } => {
                let what = NewInode::Symlink(target.as_bytes());
                self.create(at, what, *perm, *who)
            }
            Op::Mknod {
                at,
                kind,
                perm,
                who,
            } => self.create(at, kind.new_inode(), *perm, *who),
            Op::Tmpfile {
                dir,
                slot,
                perm,
                who,
            } => {
                let who = who.credentials();
                let made = self.walk(dir, |dir| fs.tmpfile(&who, dir, *perm))?;
                Ok(self.hold(*slot, made))
            }
            Op::Hold { at, slot } => {
                let found = self.within(at, |dir, name| fs.lookup(dir, name))?;
                Ok(self.hold(*slot, found))
            }
            Op::Release { slot } => {
                let held = self.held.get_mut(*slot).and_then(Option::take);
                held.iter().for_each(|ino| fs.forget(*ino, 1));
                Ok(held.map_or(Outcome::Empty, |_| Outcome::Done))
            }
            _ => Err(Error::NotSupported),
        }
    }

    fn names(&self, op: &Op) -> Result<Outcome> {
        let fs = self.fs;
        match op {
            Op::Link { from, to } => self.on(from, |ino| {
                let linked = self.within(to, |dir, name| fs.link(ino, dir, name));
                linked.map(|entry| self.seen(entry))
            }),
            Op::Unlink { at } => self.within(at, |dir, name| fs.unlink(dir, name)).map(done),
            Op::Rmdir { at } => self.within(at, |dir, name| fs.rmdir(dir, name)).map(done),
            _ => match op.renaming() {
                Some((from, to, mode)) => self.rename(from, to, mode),
                None => Err(Error::NotSupported),
            },
        }
    }

    fn rename(&self, from: &str, to: &str, mode: RenameMode) -> Result<Outcome> {
        let renamed = self.within(from, |from_dir, from_name| {
            self.within(to, |to_dir, to_name| {
                self.fs.rename(from_dir, from_name, to_dir, to_name, mode)
            })
        });
        renamed.map(done)
    }

    fn looks(&self, op: &Op) -> Result<Outcome> {
        let fs = self.fs;
        match op {
            Op::Stat { on } => self.on(on, |ino| Ok(Outcome::Inode(Seen::from(&fs.getattr(ino)?)))),
            Op::Parent { at } => {
                let parent = self.walk(at, |ino| fs.parent(ino))?;
                Ok(self.seen(parent))
            }
            Op::Readlink { on } => self.on(on, |ino| fs.readlink(ino).map(Outcome::Bytes)),
            Op::List { dir, page } => self.walk(dir, |dir| self.list(dir, *page)),
            _ => Err(Error::NotSupported),
        }
    }

    fn list(&self, dir: Ino, page: usize) -> Result<Outcome> {
        let (mut all, mut at) = (Vec::new(), 0);
        loop {
            let before = all.len();
            self.fs.readdir(dir, at, &mut |entry| {
                at = entry.next;
                all.push(entry);
                if all.len() - before < page {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
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
        if let Some((file, offset, len, mode)) = op.allocation() {
            return self.on(file, |ino| {
                let is_file = self.is_file(ino);
                or_refused(is_file, fs.fallocate(ino, offset, len, mode).map(done))
            });
        }
        let write = |file: &Target, offset, content: (u64, u64, Fill), mode| {
            let (at, len, fill) = content;
            let data = fill.bytes(at, len);
            self.on(file, |ino| {
                fs.write(ino, offset, &data, mode).map(Outcome::Number)
            })
        };
        match op {
            Op::Read { file, offset, len } => self.on(file, |ino| {
                let mut buf = vec![0xa5; *len as usize];
                let got = fs.read(ino, *offset, &mut buf)?;
                buf.truncate(got);
                Ok(Outcome::Bytes(buf))
            }),
            Op::Write {
                file,
                offset,
                len,
                fill,
                kill_setid,
            } => {
                let mode = WriteMode {
                    kill_setid: *kill_setid,
                    ..WriteMode::default()
                };
                write(file, *offset, (*offset, *len, *fill), mode)
            }
            Op::Append {
                file,
                len,
                fill,
                offset,
                kill_setid,
            } => {
                let mode = WriteMode {
                    append: true,
                    kill_setid: *kill_setid,
                    ..WriteMode::default()
                };
                write(file, *offset, (0, *len, *fill), mode)
            }
            Op::SeekData { file, offset } => self.seek_on(file, SeekFrom::Data(*offset)),
            Op::SeekHole { file, offset } => self.seek_on(file, SeekFrom::Hole(*offset)),
            Op::Reflink { .. } | Op::Copy { .. } => self.copy(op),
            Op::Fsync { on } => self.on(on, |ino| fs.fsync(ino, SyncKind::All).map(done)),
            Op::Fdatasync { on } => self.on(on, |ino| fs.fsync(ino, SyncKind::Data).map(done)),
            Op::Sync {} => fs.sync().map(done),
            _ => self.attributes(op),
        }
    }

    fn copy(&self, op: &Op) -> Result<Outcome> {
        let (from, from_offset, to, to_offset, len, mode) = match op {
            Op::Reflink {
                from,
                from_offset,
                to,
                to_offset,
                len,
            } => (from, from_offset, to, to_offset, len, CopyMode::ShareOnly),
            Op::Copy {
                from,
                from_offset,
                to,
                to_offset,
                len,
            } => (from, from_offset, to, to_offset, len, CopyMode::Any),
            _ => return Err(Error::NotSupported),
        };
        self.on(from, |source| {
            self.on(to, |target| {
                let files = self.is_file(source) && self.is_file(target);
                let fs = self.fs;
                let copied = fs.copy_range(source, *from_offset, target, *to_offset, *len, mode);
                or_refused(files, copied.map(Outcome::Number))
            })
        })
    }

    fn seek_on(&self, file: &Target, from: SeekFrom) -> Result<Outcome> {
        self.on(file, |ino| {
            if self.is_file(ino) {
                self.seek(ino, from)
            } else {
                or_refused(false, self.fs.seek(ino, from).map(Outcome::Number))
            }
        })
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
        if let Some((on, changes)) = op.attributes() {
            return self.on(on, |ino| {
                Ok(Outcome::Inode(Seen::from(&fs.setattr(ino, &changes)?)))
            });
        }
        let set_flags = |on: &Target, flags| self.on(on, |ino| fs.set_flags(ino, flags).map(done));
        match op {
            Op::SetXattr {
                on,
                name,
                len,
                fill,
                create,
                replace,
            } => {
                let mode = xattr_mode(*create, *replace);
                self.set_xattr(on, name, &fill.bytes(0, *len), mode)
            }
            Op::SetValue {
                on,
                name,
                value,
                create,
                replace,
            } => self.set_xattr(on, name, value, xattr_mode(*create, *replace)),
            Op::GetXattr { on, name } => self.on(on, |ino| {
                let name = attribute(name);
                fs.getxattr(ino, name.as_bytes()).map(Outcome::Bytes)
            }),
            Op::RemoveXattr { on, name } => self.on(on, |ino| {
                let name = attribute(name);
                fs.removexattr(ino, name.as_bytes()).map(done)
            }),
            Op::ListXattr { on } => self.on(on, |ino| {
                let mut names = fs.listxattr(ino)?;
                names.sort();
                Ok(Outcome::Names(names))
            }),
            Op::SetAcl { on, uid } => self.on(on, |ino| self.set_acl(ino, *uid)),
            Op::SetFlags { on, flags } => set_flags(on, InodeFlags::from_bits_retain(*flags)),
            Op::Nocow { file } => set_flags(file, InodeFlags::NOCOW),
            Op::Compress { file } => set_flags(file, InodeFlags::COMPRESS),
            _ => Err(Error::NotSupported),
        }
    }

    fn set_xattr(
        &self,
        on: &Target,
        name: &str,
        value: &[u8],
        mode: SetXattrMode,
    ) -> Result<Outcome> {
        let name = attribute(name);
        self.on(on, |ino| {
            let set = self.fs.setxattr(ino, name.as_bytes(), value, mode);
            set.map(done)
        })
    }

    fn set_acl(&self, ino: Ino, uid: u32) -> Result<Outcome> {
        let directory = self.fs.getattr(ino)?.kind == FileKind::Directory;
        let list = [
            (AclTag::UserObj, 7),
            (AclTag::User(uid), 6),
            (AclTag::GroupObj, 5),
            (AclTag::Mask, 7),
            (AclTag::Other, 4),
        ];
        let list = list.map(|(tag, perm)| AclEntry { tag, perm }).to_vec();
        let value = Acl::new(list).map_err(|_| Error::Invalid)?.to_bytes();
        let name = if directory { acl::DEFAULT } else { acl::ACCESS };
        let set = self.fs.setxattr(ino, name, &value, SetXattrMode::Any);
        set.map(done)
    }

    fn subvolumes(&self, op: &Op) -> Result<Outcome> {
        let of = self.fs.subvolumes().ok_or(Error::NotSupported)?;
        match op {
            Op::Subvolume { at } => {
                let made = self.within(at, |dir, name| of.create_subvolume(dir, name));
                made.map(|entry| self.seen(entry))
            }
            Op::Snapshot {
                source,
                at,
                read_only,
            } => self.walk(source, |source| {
                let made = self.within(at, |dir, name| of.snapshot(source, dir, name, *read_only));
                made.map(|entry| self.seen(entry))
            }),
            Op::DeleteSubvolume { at } => self
                .within(at, |dir, name| of.delete_subvolume(dir, name))
                .map(done),
            Op::SetReadOnly { at, read_only } => self
                .walk(at, |root| of.set_read_only(root, *read_only))
                .map(done),
            _ => Err(Error::NotSupported),
        }
    }
}

fn xattr_mode(create: bool, replace: bool) -> SetXattrMode {
    match (create, replace) {
        (true, _) => SetXattrMode::Create,
        (false, true) => SetXattrMode::Replace,
        (false, false) => SetXattrMode::Any,
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
