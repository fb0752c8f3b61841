//! Metadata of files from a list: BSD mtree, or the dump format of composefs.
//!
//! A list gives the files that sources made their owners, modes, times and attributes, and makes
//! what a source of an ordinary user cannot have: device nodes, and whatever else has no content.

mod composefs;
mod mtree;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use crate::acls;
use crate::archive::{components, path as path_of};
use crate::changes::{Changes, Xattrs};
use crate::fs::FileSystem;
use crate::shown;
use crate::tree::Node;
use crate::vfs::{
    self, Credentials, Error, FileKind, Ino, NewInode, SetAttr, SetTime, SetXattrMode, Timestamp,
    WriteMode,
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
        /// What the host says.
        source: io::Error,
    },
    /// A line makes no sense.
    #[error("{}: line {line}: {what} makes no sense", path.display())]
    Line {
        /// The list.
        path: PathBuf,
        /// Number of the line.
        line: usize,
        /// What of it.
        what: &'static str,
    },
    /// A regular file that no source has.
    #[error("{}: is in the list, and in no source", shown(.0))]
    Missing(PathBuf),
    /// A source has something else of that name.
    #[error("{}: is a {} in the list, and a {} in a source", shown(path), shown::kind(*listed), shown::kind(*found))]
    Kind {
        /// The file.
        path: PathBuf,
        /// What the list has.
        listed: FileKind,
        /// What a source has.
        found: FileKind,
    },
    /// A file could not be made or changed.
    #[error("{}: {source}", shown(path))]
    Inode {
        /// The file.
        path: PathBuf,
        /// What the file system says.
        source: Error,
    },
}

type Result<T> = std::result::Result<T, ManifestError>;

/// What a list says of a file. What it does not say stays as it is.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Item {
    /// Below the root.
    pub(crate) path: Vec<u8>,
    kind: Option<ItemKind>,
    perm: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    mtime: Option<Timestamp>,
    xattrs: Xattrs,
    /// The whole content of a file.
    content: Option<Vec<u8>>,
    /// It need not exist.
    optional: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum ItemKind {
    Regular,
    Directory,
    Symlink(Vec<u8>),
    /// A further name of the file of this path.
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
        let parsed = match text.starts_with(b"/ ") {
            true => composefs::parse(&text),
            false => mtree::parse(&text),
        };
        parsed.map(Self).map_err(|wrong| ManifestError::Line {
            path: path.to_owned(),
            line: wrong.line,
            what: wrong.what,
        })
    }

    /// What it says of each file.
    pub(crate) fn items(&self) -> &[Item] {
        &self.0
    }

    /// Applies it to the files of an image.
    ///
    /// # Errors
    /// [`ManifestError`].
    pub(crate) fn apply(&self, fs: &FileSystem, changes: &Changes, time: Timestamp) -> Result<()> {
        let mut work = Work {
            fs: &**fs.engine(),
            changes,
            time,
            passed: BTreeMap::new(),
        };
        let mut directories = Vec::new();
        for item in &self.0 {
            let Some((node, made)) = work.reach(item)? else {
                continue;
            };
            work.content(item, &node, made)?;
            match node.is_dir() {
                // What is made in a directory changes its times.
                true => directories.push((node.ino(), item, made)),
                false => work.finish(node.ino(), node.attr().kind, item, made)?,
            }
        }
        for (ino, item, made) in directories.into_iter().rev() {
            work.passed.remove(&ino);
            work.finish(ino, FileKind::Directory, item, made)?;
        }
        work.end()
    }
}

/// A list that is being applied.
struct Work<'a> {
    fs: &'a dyn vfs::FileSystem,
    changes: &'a Changes,
    /// Of what the list makes without a time.
    time: Timestamp,
    /// Times of directories in which something is made.
    passed: BTreeMap<Ino, (Timestamp, Timestamp)>,
}

fn failed(path: &[u8]) -> impl Fn(Error) -> ManifestError {
    let path = path_of(path);
    move |source| ManifestError::Inode {
        path: path.clone(),
        source,
    }
}

impl<'a> Work<'a> {
    /// The directory of a path, and the last name.
    fn parent<'p>(&self, path: &'p [u8]) -> Result<(Node<'a>, Option<&'p [u8]>)> {
        let failed = failed(path);
        let mut at = Node::root(self.fs).map_err(&failed)?;
        let parts = components(path).map_err(|_| failed(Error::Invalid))?;
        let Some((name, above)) = parts.split_last() else {
            return Ok((at, None));
        };
        for part in above {
            at = at.child(part).map_err(&failed)?;
            if !at.is_dir() {
                return Err(failed(Error::NotDirectory));
            }
        }
        Ok((at, Some(name)))
    }

    /// The inode of an item, and whether it was made for that. `None`: it is not there, and need
    /// not be.
    fn reach(&mut self, item: &Item) -> Result<Option<(Node<'a>, bool)>> {
        let failed = failed(&item.path);
        let (dir, Some(name)) = self.parent(&item.path)? else {
            let root = Node::root(self.fs).map_err(failed)?;
            return Ok(Some((root, false)));
        };
        let found = match dir.child(name) {
            Ok(found) => Some(found),
            Err(Error::NotFound) => None,
            Err(error) => return Err(failed(error)),
        };
        if let Some(found) = found {
            let same = self.is_same(item, &found).map_err(&failed)?;
            match item.kind.as_ref().and_then(ItemKind::kind) {
                Some(listed) if listed != found.attr().kind => {
                    let (path, found) = (path_of(&item.path), found.attr().kind);
                    return Err(ManifestError::Kind {
                        path,
                        listed,
                        found,
                    });
                }
                _ if same => return Ok(Some((found, false))),
                _ => {}
            }
            self.pass(&dir);
            self.fs.unlink(dir.ino(), name).map_err(&failed)?;
        }
        self.make(item, &dir, name)
    }

    /// Whether what exists needs only other attributes.
    fn is_same(&self, item: &Item, found: &Node<'_>) -> vfs::Result<bool> {
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
        dir: &Node<'a>,
        name: &[u8],
    ) -> Result<Option<(Node<'a>, bool)>> {
        let failed = failed(&item.path);
        let missing = || ManifestError::Missing(path_of(&item.path));
        let what = match &item.kind {
            None | Some(ItemKind::Regular) if item.content.is_none() => {
                return match item.optional {
                    true => Ok(None),
                    false => Err(missing()),
                };
            }
            Some(ItemKind::Link(target)) => {
                let (from, Some(old)) = self.parent(target)? else {
                    return Err(missing());
                };
                let node = from.child(old).map_err(&failed)?;
                self.pass(dir);
                let linked = self.fs.link(node.ino(), dir.ino(), name).map_err(failed)?;
                drop(Node::new(self.fs, linked));
                return Ok(None);
            }
            None | Some(ItemKind::Regular) => NewInode::Regular,
            Some(ItemKind::Directory) => NewInode::Directory,
            Some(ItemKind::Symlink(target)) => NewInode::Symlink(target),
            Some(ItemKind::Special(FileKind::CharDevice, number)) => NewInode::CharDevice(*number),
            Some(ItemKind::Special(FileKind::BlockDevice, number)) => {
                NewInode::BlockDevice(*number)
            }
            Some(ItemKind::Special(FileKind::Socket, _)) => NewInode::Socket,
            Some(ItemKind::Special(..)) => NewInode::Fifo,
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
        let made = self.fs.create(&who, dir.ino(), name, what, perm);
        let node = Node::new(self.fs, made.map_err(&failed)?);
        // The default ACL of the directory is that of another source.
        let removed = acls::remove_absent(self.fs, node.attr(), &item.xattrs, || Ok(()));
        let removed = removed.map_err(&failed)?;
        if removed || node.attr().perm & 0o777 != perm & 0o777 {
            let mode = SetAttr {
                perm: Some(node.attr().perm & !0o777 | perm),
                ..SetAttr::default()
            };
            self.fs.setattr(node.ino(), &mode).map_err(failed)?;
        }
        Ok(Some((node, true)))
    }

    fn content(&self, item: &Item, node: &Node<'_>, made: bool) -> Result<()> {
        match &item.content {
            Some(content) if made && !content.is_empty() => {
                let mode = WriteMode::default();
                let written = self.fs.write(node.ino(), 0, content, mode);
                written.map(drop).map_err(failed(&item.path))
            }
            _ => Ok(()),
        }
    }

    /// Remembers the times of a directory, which are about to change.
    fn pass(&mut self, dir: &Node<'_>) {
        let attr = dir.attr();
        let times = (attr.atime, attr.mtime);
        self.passed.entry(attr.ino).or_insert(times);
    }

    /// Gives an inode what the list says: the owner first, because a change of it drops
    /// capabilities.
    fn finish(&self, ino: Ino, kind: FileKind, item: &Item, made: bool) -> Result<()> {
        let set = || {
            let owner = SetAttr {
                uid: item.uid,
                gid: item.gid,
                ..SetAttr::default()
            };
            self.fs.setattr(ino, &owner)?;
            let mut xattrs = item.xattrs.clone();
            if made && !xattrs.iter().any(|(name, _)| name == b"security.selinux") {
                self.changes.label(&item.path, kind, &mut xattrs);
            }
            for (name, value) in &xattrs {
                self.fs.setxattr(ino, name, value, SetXattrMode::Any)?;
            }
            let time = item.mtime.or(made.then_some(self.time));
            let time = time.map(|time| SetTime::To(self.changes.time(time)));
            let changes = SetAttr {
                perm: item.perm.filter(|_| kind != FileKind::Symlink),
                atime: time,
                mtime: time,
                ..SetAttr::default()
            };
            self.fs.setattr(ino, &changes).map(drop)
        };
        set().map_err(failed(&item.path))
    }

    /// Gives directories that the list only passed through their times.
    fn end(self) -> Result<()> {
        for (ino, (atime, mtime)) in self.passed {
            let changes = SetAttr {
                atime: Some(SetTime::To(atime)),
                mtime: Some(SetTime::To(mtime)),
                ..SetAttr::default()
            };
            self.fs.setattr(ino, &changes).map_err(failed(b"/"))?;
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

/// A text with escapes: `\x41`, `\101`, and letters after a backslash, of which `letter` knows the
/// meaning. `None` if an escape is not complete.
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
