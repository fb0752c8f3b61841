//! Metadata of files from a list: BSD mtree, or the dump format of composefs.
//!
//! A list changes owners, modes, times and attributes of the sources' files, and creates files that
//! an ordinary user's source cannot have: device nodes, and other files without content.

mod composefs;
mod mtree;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::archive::{Final, Gate, components, new_inode, path as path_of};
use crate::changes::{Changes, Xattrs};
use crate::fs::FileSystem;
use crate::path_table::PathId;
use crate::shown;
use crate::tree::HeldInode;
use crate::vfs::{
    self, Credentials, Error, FileKind, Ino, NewInode, SetAttr, SetTime, Timestamp, WriteMode,
};

/// Most bytes of a list.
const LIMIT: u64 = 1 << 30;

/// Why a list was not read or applied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManifestError {
    /// It cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The list.
        path: PathBuf,
        /// Error of the host.
        source: io::Error,
    },
    /// A line makes no sense.
    #[error("{}: line {line}: {what} makes no sense", path.display())]
    Line {
        /// The list.
        path: PathBuf,
        /// Number of the line.
        line: usize,
        /// The wrong part.
        what: &'static str,
    },
    /// A regular file that no source has.
    #[error("{}: is in the list, and in no source", shown(.0))]
    Missing(PathBuf),
    /// A source has a file of another kind with that name.
    #[error("{}: is a {} in the list, and a {} in a source", shown(path), shown::kind(*listed), shown::kind(*found))]
    Kind {
        /// The file.
        path: PathBuf,
        /// Kind in the list.
        listed: FileKind,
        /// Kind in a source.
        found: FileKind,
    },
    /// A file could not be made or changed.
    #[error("{}: {source}", shown(path))]
    Inode {
        /// The file.
        path: PathBuf,
        /// Error of the file system.
        source: Error,
    },
}

type Result<T, E = ManifestError> = std::result::Result<T, E>;

/// Most bytes of a path, as in a system call.
const PATH_MAX: usize = 4095;
/// The error of a longer path.
const LONG: &str = "a path of more than 4095 bytes";

/// The directory in which the path of an item begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Above {
    /// The item of the directory.
    item: usize,
    /// Number of such directories above it.
    depth: usize,
}

/// A file in the list. Fields that it leaves out stay as they are.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Item {
    /// The directory that the path begins in; `None` is the root.
    above: Option<Above>,
    path: Vec<u8>,
    kind: Option<ItemKind>,
    perm: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    mtime: Option<Timestamp>,
    xattrs: Xattrs,
    /// The whole content of a file.
    content: Option<Vec<u8>>,
    /// It is an error if it does not exist, unless this is set.
    optional: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum ItemKind {
    Regular,
    Directory,
    Symlink(Vec<u8>),
    /// A hard link to the file with this path.
    Link(Vec<u8>),
    Special(FileKind, u64),
}

impl ItemKind {
    fn kind(&self) -> Option<FileKind> {
        Some(match self {
            Self::Regular => FileKind::Regular,
            Self::Directory => FileKind::Directory,
            Self::Symlink(_) => FileKind::Symlink,
            Self::Special(kind, _) => *kind,
            Self::Link(_) => return None,
        })
    }
}

/// A list of files with their metadata.
#[derive(Debug)]
pub(crate) struct Manifest(Vec<Item>);

impl Manifest {
    /// Reads a list. The dump of composefs begins with its root directory.
    ///
    /// # Errors
    /// [`ManifestError::Read`], [`ManifestError::Line`].
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let failed = |source| ManifestError::Read {
            path: path.to_owned(),
            source,
        };
        let mut text = Vec::new();
        let file = std::fs::File::open(path).map_err(failed)?;
        let mut limited = io::Read::take(file, LIMIT);
        io::Read::read_to_end(&mut limited, &mut text).map_err(failed)?;
        let parsed = if text.starts_with(b"/ ") {
            composefs::parse(&text)
        } else {
            mtree::parse(&text)
        };
        parsed.map(Self).map_err(|wrong| ManifestError::Line {
            path: path.to_owned(),
            line: wrong.line,
            what: wrong.what,
        })
    }

    /// Number of files.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds the owners and groups of the files that have both.
    pub(crate) fn add_owners(&self, changes: &mut Changes) {
        let mut places: Vec<PathId> = Vec::with_capacity(self.len());
        for item in &self.0 {
            let above = item.above.and_then(|above| places.get(above.item));
            let place = changes.place(above.copied(), &item.path);
            places.push(place);
            if let (Some(uid), Some(gid)) = (item.uid, item.gid) {
                changes.set_owner(place, (uid, gid));
            }
        }
    }

    /// Applies the list to the files of an image.
    ///
    /// # Errors
    /// [`ManifestError`].
    pub(crate) fn apply(&self, fs: &FileSystem, changes: &Changes, time: Timestamp) -> Result<()> {
        let mut work = Work {
            fs: &**fs.engine(),
            gate: Gate::new(&**fs.engine(), None),
            changes,
            time,
            passed: BTreeMap::new(),
            items: &self.0,
            held: Vec::new(),
        };
        let at = |item| move |wrong: Cause| wrong.at(&whole_path(&self.0, item));
        let mut directories = Vec::new();
        for item in &self.0 {
            let Some((node, made)) = work.reach(item).map_err(at(item))? else {
                continue;
            };
            let content = work.content(item, &node, made);
            content.map_err(Cause::from).map_err(at(item))?;
            let (ino, kind) = (node.ino(), node.attr().kind);
            if node.is_dir() {
                directories.push((ino, item, made))
            } else {
                work.finish(ino, kind, item, made).map_err(at(item))?
            }
        }
        for (ino, item, made) in directories.into_iter().rev() {
            work.passed.remove(&ino);
            let finished = work.finish(ino, FileKind::Directory, item, made);
            finished.map_err(at(item))?;
        }
        work.end().map_err(|cause| Cause::from(cause).at(b"/"))
    }
}

/// The whole path of an item.
fn whole_path(items: &[Item], item: &Item) -> Vec<u8> {
    let mut parts = vec![item.path.as_slice()];
    let mut next = item.above;
    while let Some(above) = next.and_then(|above| items.get(above.item)) {
        parts.push(&above.path);
        next = above.above;
    }
    parts.reverse();
    parts.join(&b'/')
}

/// Why an item was not applied.
enum Cause {
    Missing,
    Kind { listed: FileKind, found: FileKind },
    Failed(Error),
}

impl From<Error> for Cause {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Cause {
    /// The error of the item of this path.
    fn at(self, path: &[u8]) -> ManifestError {
        let path = path_of(path);
        match self {
            Self::Missing => ManifestError::Missing(path),
            Self::Kind { listed, found } => ManifestError::Kind {
                path,
                listed,
                found,
            },
            Self::Failed(source) => ManifestError::Inode { path, source },
        }
    }
}

/// A list that is being applied.
struct Work<'a> {
    fs: &'a dyn vfs::FileSystem,
    gate: Gate<'a>,
    changes: &'a Changes,
    /// Time of files that the list creates without one.
    time: Timestamp,
    /// Times of directories in which something is made.
    passed: BTreeMap<Ino, (Timestamp, Timestamp)>,
    items: &'a [Item],
    /// The directory of the last item, and the directories above it, with the numbers of their
    /// items.
    held: Vec<(usize, Rc<HeldInode<'a>>)>,
}

fn directory(node: HeldInode<'_>) -> vfs::Result<HeldInode<'_>> {
    if node.is_dir() {
        Ok(node)
    } else {
        Err(Error::NotDirectory)
    }
}

impl<'a> Work<'a> {
    /// Finds the directory of a path from the root, and the last name.
    fn parent<'p>(&self, path: &'p [u8]) -> vfs::Result<(Rc<HeldInode<'a>>, Option<&'p [u8]>)> {
        self.below(Rc::new(HeldInode::root(self.fs)?), path)
    }

    /// The [`parent`](Self::parent) of a path below a directory.
    fn below<'p>(
        &self,
        top: Rc<HeldInode<'a>>,
        path: &'p [u8],
    ) -> vfs::Result<(Rc<HeldInode<'a>>, Option<&'p [u8]>)> {
        let mut at = top;
        let parts = components(path).map_err(|_| Error::Invalid)?;
        let Some((name, above)) = parts.split_last() else {
            return Ok((at, None));
        };
        for part in above {
            at = Rc::new(directory(at.child(part)?)?);
        }
        Ok((at, Some(name)))
    }

    /// The directory in which the path of an item begins. It stays held for the next item, and so
    /// do the directories above it.
    fn above(&mut self, item: &Item) -> vfs::Result<Rc<HeldInode<'a>>> {
        let mut missing = Vec::new();
        let mut next = item.above;
        while let Some(above) = next {
            let held = self.held.get(above.depth).map(|(number, _)| *number);
            if held == Some(above.item) {
                break;
            }
            missing.push(above.item);
            next = self.items.get(above.item).and_then(|item| item.above);
        }
        if item.above.is_some() {
            self.held.truncate(next.map_or(0, |above| above.depth + 1));
        }
        let mut at = match self.held.last().filter(|_| next.is_some()) {
            Some((_, held)) => Rc::clone(held),
            None => Rc::new(HeldInode::root(self.fs)?),
        };
        for number in missing.into_iter().rev() {
            let path = self.items.get(number).map_or(&[][..], |item| &item.path);
            let (dir, name) = self.below(at, path)?;
            at = match name {
                Some(name) => Rc::new(directory(dir.child(name)?)?),
                None => dir,
            };
            self.held.push((number, Rc::clone(&at)));
        }
        Ok(at)
    }

    /// The inode of an item, and whether it was made for the item. `None`: an optional file that
    /// does not exist.
    fn reach(&mut self, item: &Item) -> Result<Option<(HeldInode<'a>, bool)>, Cause> {
        let above = self.above(item)?;
        let (dir, Some(name)) = self.below(above, &item.path)? else {
            return Ok(Some((HeldInode::root(self.fs)?, false)));
        };
        let found = match dir.child(name) {
            Ok(found) => Some(found),
            Err(Error::NotFound) => None,
            Err(error) => return Err(error.into()),
        };
        if let Some(found) = found {
            let same = self.is_same(item, &found)?;
            match item.kind.as_ref().and_then(ItemKind::kind) {
                Some(listed) if listed != found.attr().kind => {
                    let found = found.attr().kind;
                    return Err(Cause::Kind { listed, found });
                }
                _ if same => return Ok(Some((found, false))),
                _ => {}
            }
            self.pass(&dir);
            self.fs.unlink(dir.ino(), name)?;
        }
        self.make(item, &dir, name)
    }

    /// Whether an existing file needs only other attributes.
    fn is_same(&self, item: &Item, found: &HeldInode<'_>) -> vfs::Result<bool> {
        Ok(match &item.kind {
            Some(ItemKind::Symlink(target)) if found.attr().kind == FileKind::Symlink => {
                self.fs.readlink(found.ino())? == *target
            }
            Some(ItemKind::Special(_, number)) => found.attr().rdev == *number,
            Some(ItemKind::Link(target)) => match self.parent(target) {
                Ok((dir, Some(name))) => dir
                    .child(name)
                    .is_ok_and(|other| other.ino() == found.ino()),
                _ => false,
            },
            _ => true,
        })
    }

    fn make(
        &mut self,
        item: &Item,
        dir: &HeldInode<'a>,
        name: &[u8],
    ) -> Result<Option<(HeldInode<'a>, bool)>, Cause> {
        let what = match &item.kind {
            None | Some(ItemKind::Regular) if item.content.is_none() => {
                return if item.optional {
                    Ok(None)
                } else {
                    Err(Cause::Missing)
                };
            }
            Some(ItemKind::Link(target)) => {
                let (from, Some(old)) = self.parent(target)? else {
                    return Err(Cause::Missing);
                };
                let node = from.child(old)?;
                self.pass(dir);
                self.gate.link(&node, dir, name)?;
                return Ok(None);
            }
            None | Some(ItemKind::Regular) => NewInode::Regular,
            Some(ItemKind::Directory) => NewInode::Directory,
            Some(ItemKind::Symlink(target)) => NewInode::Symlink(target),
            Some(ItemKind::Special(kind, number)) => new_inode(*kind, *number, b""),
        };
        self.pass(dir);
        let who = Credentials {
            uid: item.uid.unwrap_or(0),
            gid: item.gid.unwrap_or(0),
            ..Credentials::ROOT
        };
        let default = match what {
            NewInode::Directory => 0o755,
            NewInode::Symlink(_) => 0o777,
            _ => 0o644,
        };
        let perm = match what {
            NewInode::Symlink(_) => default,
            _ => item.perm.unwrap_or(default) & 0o777,
        };
        let node = self.gate.create(&who, dir, name, what, perm)?;
        // The default ACL of the directory comes from another source.
        let removed = self.gate.remove_other_acls(&node, &item.xattrs)?;
        if removed || node.attr().perm & 0o777 != perm & 0o777 {
            let mode = SetAttr {
                perm: Some(node.attr().perm & !0o777 | perm),
                ..SetAttr::default()
            };
            self.gate.set(node.ino(), &mode)?;
        }
        Ok(Some((node, true)))
    }

    fn content(&self, item: &Item, node: &HeldInode<'_>, made: bool) -> vfs::Result<()> {
        match &item.content {
            Some(content) if made && !content.is_empty() => {
                let mode = WriteMode::default();
                let written = self.fs.write(node.ino(), 0, content, mode);
                written.map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Remembers the times of a directory, which are about to change.
    fn pass(&mut self, dir: &HeldInode<'_>) {
        let attr = dir.attr();
        let times = (attr.atime, attr.mtime);
        self.passed.entry(attr.ino).or_insert(times);
    }

    /// Gives an inode the list's metadata.
    fn finish(&self, ino: Ino, kind: FileKind, item: &Item, made: bool) -> Result<(), Cause> {
        let mut xattrs = item.xattrs.clone();
        let has_label = xattrs.iter().any(|(name, _)| name == b"security.selinux");
        if made && !has_label && self.changes.has_labels() {
            let path = whole_path(self.items, item);
            self.changes.label(&path, kind, &mut xattrs);
        }
        let time = item.mtime.or(made.then_some(self.time));
        let time = time.map(|time| self.changes.time(time));
        let last = Final {
            owner: (item.uid, item.gid),
            perm: item.perm.filter(|_| kind != FileKind::Symlink),
            atime: time,
            mtime: time,
            xattrs: &xattrs,
        };
        let finished = self.gate.finish(ino, &last, &mut |_, error| Err(error));
        finished.map_err(Cause::from)
    }

    /// Restores the times of directories that the list only passed through.
    fn end(self) -> vfs::Result<()> {
        for (ino, (atime, mtime)) in self.passed {
            let changes = SetAttr {
                atime: Some(SetTime::To(atime)),
                mtime: Some(SetTime::To(mtime)),
                ..SetAttr::default()
            };
            self.fs.setattr(ino, &changes)?;
        }
        Ok(())
    }
}

fn shown(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    shown::name(path.as_os_str().as_bytes())
}

/// A line that makes no sense.
#[derive(Debug, PartialEq, Eq)]
struct Wrong {
    line: usize,
    what: &'static str,
}

/// A text with escapes: `\x41`, `\101`, and letters after a backslash, with the meaning that
/// `letter` returns. `None` if an escape is not complete.
fn unescaped(text: &[u8], letter: fn(u8) -> u8) -> Option<Vec<u8>> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        if *byte != b'\\' {
            plain.push(*byte);
            continue;
        }
        let (escape, after) = rest.split_first()?;
        let digits = |text: &[u8], radix| {
            let text = std::str::from_utf8(text).ok()?;
            u8::from_str_radix(text, radix).ok()
        };
        let (byte, after) = match escape {
            b'x' => (digits(after.get(..2)?, 16)?, after.get(2..)?),
            b'0'..=b'7' => (digits(rest.get(..3)?, 8)?, rest.get(3..)?),
            other => (letter(*other), after),
        };
        plain.push(byte);
        rest = after;
    }
    Some(plain)
}

/// A number in digits of a base, without a sign.
fn digits(text: &[u8], radix: u32) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    let sign = text.starts_with(['+', '-']);
    u64::from_str_radix(text, radix).ok().filter(|_| !sign)
}

/// An owner; the largest number means none.
fn id(text: &[u8]) -> Option<u32> {
    let id = u32::try_from(digits(text, 10)?).ok()?;
    (id != u32::MAX).then_some(id)
}
