//! Access to a file system by path, without a mount: inodes that release their reference, path
//! lookup, walks, and listings of whole directories.

use std::collections::{HashSet, VecDeque};
use std::fmt::Display;
use std::ops::ControlFlow;

use sapwood_vfs::{Attr, DirEntry, Entry, Error, FileKind, FileSystem, Ino, Result, read_full};

use crate::kind::Kind;
use crate::shown;

/// Bytes of two files that are compared at a time.
const PIECE: usize = 128 * 1024;

/// Most symbolic links that one path may lead through.
pub(crate) const LINKS_MAX: u32 = 40;

/// A held inode; dropping it releases the reference.
pub(crate) struct HeldInode<'a> {
    fs: &'a dyn FileSystem,
    attr: Attr,
    counted: bool,
}

/// The directory of a path, and its last name. A path of one name is in the directory with the empty
/// path.
pub(crate) fn split_last(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(end) => (
            path.get(..end).unwrap_or_default(),
            path.get(end + 1..).unwrap_or_default(),
        ),
        None => (b"", path),
    }
}

impl<'a> HeldInode<'a> {
    /// Takes over the reference of an entry.
    #[must_use]
    pub(crate) fn new(fs: &'a dyn FileSystem, entry: Entry) -> Self {
        Self {
            fs,
            attr: entry.attr,
            counted: true,
        }
    }

    /// The root directory.
    ///
    /// # Errors
    /// The errors of reading its attributes.
    pub(crate) fn root(fs: &'a dyn FileSystem) -> Result<Self> {
        let attr = fs.getattr(fs.root())?;
        Ok(Self {
            fs,
            attr,
            counted: false,
        })
    }

    /// An inode that the file system has in memory.
    ///
    /// # Errors
    /// [`Stale`](crate::vfs::Error::Stale); the errors of reading its attributes.
    #[cfg(feature = "fuse")]
    pub(crate) fn held(fs: &'a dyn FileSystem, ino: Ino) -> Result<Self> {
        if ino == fs.root() {
            Self::root(fs)
        } else {
            Ok(Self::new(fs, fs.reference(ino)?))
        }
    }

    /// The file system of the inode.
    #[must_use]
    pub(crate) fn file_system(&self) -> &'a dyn FileSystem {
        self.fs
    }

    /// Its identity.
    #[must_use]
    pub(crate) fn ino(&self) -> Ino {
        self.attr.ino
    }

    /// Its attributes at the time of its lookup.
    #[must_use]
    pub(crate) fn attr(&self) -> &Attr {
        &self.attr
    }

    /// True for a directory.
    #[must_use]
    pub(crate) fn is_dir(&self) -> bool {
        self.attr.kind == FileKind::Directory
    }

    /// Finds a name in this directory.
    ///
    /// # Errors
    /// The errors of [`FileSystem::lookup`].
    pub(crate) fn child(&self, name: &[u8]) -> Result<Self> {
        Ok(Self::new(self.fs, self.fs.lookup(self.ino(), name)?))
    }

    /// The target of a symbolic link.
    pub(crate) fn target(&self) -> Result<Vec<u8>> {
        self.fs.readlink(self.ino())
    }

    /// All extended attributes, sorted by name.
    pub(crate) fn xattrs(&self) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut all = Vec::new();
        for name in self.fs.listxattr(self.ino())? {
            let value = self.fs.getxattr(self.ino(), &name)?;
            all.push((name, value));
        }
        all.sort();
        Ok(all)
    }

    /// Whether another file of the same size has the same bytes.
    pub(crate) fn has_content_of(&self, other: &HeldInode<'_>) -> Result<bool> {
        let (mut one, mut two) = (vec![0; PIECE], vec![0; PIECE]);
        let mut at = 0;
        while at < self.attr.size {
            let count = self.fill(at, &mut one)?;
            if count == 0 || count != other.fill(at, &mut two)? {
                return Ok(false);
            }
            if one.get(..count) != two.get(..count) {
                return Ok(false);
            }
            at += count as u64;
        }
        Ok(true)
    }

    /// Reads until the buffer is full or the file ends.
    fn fill(&self, at: u64, buf: &mut [u8]) -> Result<usize> {
        read_full(self.fs, self.ino(), at, buf)
    }

    /// The directory that holds this one.
    fn parent(&self) -> Result<Self> {
        Ok(Self::new(self.fs, self.fs.parent(self.ino())?))
    }
}

impl Drop for HeldInode<'_> {
    fn drop(&mut self) {
        if self.counted {
            self.fs.forget(self.attr.ino, 1);
        }
    }
}

/// The path of a name in a directory.
pub(crate) fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    match dir {
        b"" => name.to_vec(),
        dir if dir.ends_with(b"/") => [dir, name].concat(),
        dir => [dir, b"/", name].concat(),
    }
}

/// Whether a name at the root of an image belongs to its format: an empty `lost+found` of ext4.
pub(crate) fn is_of_format(kind: Kind, dir: &HeldInode<'_>, name: &[u8]) -> Result<bool> {
    let fs = dir.file_system();
    if kind != Kind::Ext4 || dir.ino() != fs.root() || name != b"lost+found" {
        return Ok(false);
    }
    let found = dir.child(name)?;
    Ok(found.is_dir() && Names::default().next(fs, found.ino())?.is_none())
}

/// The names of a path.
pub(crate) fn components(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|byte| *byte == b'/')
        .filter(|part| !part.is_empty())
        .map(<[u8]>::to_vec)
        .collect()
}

/// Finds `path` from the root. Symbolic links on the way are followed within the file system;
/// one at the end only if `follow`.
///
/// # Errors
/// `NotFound`, `NotDirectory`, `SymlinkLoop`.
pub(crate) fn resolve<'a>(
    fs: &'a dyn FileSystem,
    path: &[u8],
    follow: bool,
) -> Result<HeldInode<'a>> {
    let mut at = HeldInode::root(fs)?;
    let mut rest = components(path);
    rest.reverse();
    let mut links = 0;
    while let Some(name) = rest.pop() {
        match name.as_slice() {
            b"." => continue,
            b".." => {
                at = at.parent()?;
                continue;
            }
            _ => {}
        }
        let next = at.child(&name)?;
        if next.attr.kind != FileKind::Symlink || (rest.is_empty() && !follow) {
            at = next;
            continue;
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(Error::SymlinkLoop);
        }
        let target = fs.readlink(next.ino())?;
        if target.first() == Some(&b'/') {
            at = HeldInode::root(fs)?;
        }
        rest.extend(components(&target).into_iter().rev());
    }
    Ok(at)
}

/// Finds the directory of `path` and the last name in it.
///
/// # Errors
/// The errors of [`resolve`]; `Invalid` if the path has no last name.
pub(crate) fn resolve_parent<'a>(
    fs: &'a dyn FileSystem,
    path: &[u8],
) -> Result<(HeldInode<'a>, Vec<u8>)> {
    let mut parts = components(path);
    let name = parts.pop().ok_or(Error::Invalid)?;
    if name == b"." || name == b".." {
        return Err(Error::Invalid);
    }
    let dir = resolve(fs, &parts.join(&b'/'), true)?;
    if !dir.is_dir() {
        return Err(Error::NotDirectory);
    }
    Ok((dir, name))
}

/// The names of one directory, read a batch at a time.
#[derive(Debug, Default)]
pub(crate) struct Names {
    batch: VecDeque<DirEntry>,
    /// Position after the last name that was taken.
    next: u64,
}

impl Names {
    /// Names of a batch.
    const BATCH: usize = 1024;

    /// The next name in `dir`, which is the same directory at every call.
    ///
    /// # Errors
    /// The errors of [`FileSystem::readdir`].
    pub(crate) fn next(&mut self, fs: &dyn FileSystem, dir: Ino) -> Result<Option<DirEntry>> {
        if self.batch.is_empty() {
            let batch = &mut self.batch;
            fs.readdir(dir, self.next, &mut |entry| {
                batch.push_back(entry);
                if batch.len() < Self::BATCH {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            })?;
        }
        let entry = self.batch.pop_front();
        if let Some(entry) = &entry {
            self.next = entry.next;
        }
        Ok(entry)
    }

    /// Drops the names that were read and not taken; they are read again. A walk calls it before it
    /// enters a directory, which keeps its memory small even if it is deep.
    pub(crate) fn shed(&mut self) {
        const KEPT: usize = 64;
        if self.batch.len() > KEPT {
            self.batch.truncate(KEPT);
            self.batch.shrink_to_fit();
        }
    }
}

/// The error of a walk that reaches a directory for the second time, by this name.
#[must_use]
pub(crate) fn directory_loop(name: &[u8]) -> Error {
    let name = String::from_utf8_lossy(name);
    Error::corrupt(format!(
        "directory loop: {} is reached a second time",
        name.escape_debug()
    ))
}

/// A directory that a walk is in. All but the top hold a reference.
#[derive(Debug)]
struct Level {
    dir: Ino,
    names: Names,
    /// Bytes of the path to it.
    path: usize,
    /// A name was found in it.
    entered: bool,
}

/// The state of a walk over everything below a directory, depth first, directories before their
/// contents.
///
/// An image can contain a directory below itself, or in two places. The walk enters no directory
/// twice (an empty one aside), so it ends. It holds a few names for each level, and the number of
/// each directory.
///
/// It holds references to inodes: call [`end`](Self::end) before it is dropped.
#[derive(Debug)]
pub(crate) struct Walker {
    entered: HashSet<Ino>,
    open: Vec<Level>,
    /// Most levels below the top whose names are walked.
    deepest: usize,
    /// Path of the last found file: the top, as the caller names it, then the names below it.
    path: Vec<u8>,
    /// Bytes of the path of the top.
    top: usize,
    /// Number of names in the last found path below the top.
    depth: usize,
}

impl Walker {
    /// A walk below `top`, to which the caller holds a reference until the walk ends.
    #[must_use]
    pub(crate) fn new(top: Ino) -> Self {
        Self::named(top, b"")
    }

    /// Like [`new`](Self::new), below a directory whose path is known.
    #[must_use]
    pub(crate) fn named(top: Ino, path: &[u8]) -> Self {
        let level = Level {
            dir: top,
            names: Names::default(),
            path: path.len(),
            entered: true,
        };
        Self {
            entered: HashSet::from([top]),
            open: vec![level],
            deepest: usize::MAX,
            path: path.to_owned(),
            top: path.len(),
            depth: 0,
        }
    }

    /// Ends the walk at names that are `depth` components long.
    pub(crate) fn limit(&mut self, depth: usize) {
        self.deepest = depth;
        if depth == 0 {
            self.open.clear();
        }
    }

    /// Path of the last found file, relative to the top.
    #[must_use]
    pub(crate) fn path(&self) -> &[u8] {
        let below = self.path.get(self.top..).unwrap_or_default();
        match self.top {
            0 => below,
            _ => below.strip_prefix(b"/").unwrap_or(below),
        }
    }

    /// Path of the last found file, after the path of the top.
    #[must_use]
    pub(crate) fn whole_path(&self) -> &[u8] {
        &self.path
    }

    /// Number of names in [`path`](Self::path).
    #[must_use]
    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// The inode of the last found file, before the next step.
    ///
    /// # Errors
    /// The errors of [`FileSystem::lookup`].
    pub(crate) fn found<'f>(&self, fs: &'f dyn FileSystem) -> Result<HeldInode<'f>> {
        let above = self.depth.checked_sub(1);
        let above = above.and_then(|above| self.open.get(above));
        let dir = above.ok_or(Error::NotFound)?.dir;
        let name = self.path.rsplit(|byte| *byte == b'/').next();
        Ok(HeldInode::new(
            fs,
            fs.lookup(dir, name.unwrap_or_default())?,
        ))
    }

    /// The next name and the attributes of its inode; `None` at the end.
    ///
    /// # Errors
    /// The errors of [`FileSystem::readdir`] and [`FileSystem::lookup`]; `Corrupt` for a directory
    /// that is reached twice. The walk cannot continue after an error.
    pub(crate) fn next(&mut self, fs: &dyn FileSystem) -> Result<Option<(DirEntry, Attr)>> {
        while let Some(last) = self.open.last_mut() {
            self.path.truncate(last.path);
            let Some(entry) = last.names.next(fs, last.dir)? else {
                self.leave(fs);
                continue;
            };
            if !last.entered && !self.entered.insert(last.dir) {
                return Err(directory_loop(self.path()));
            }
            last.entered = true;
            let attr = fs.lookup(last.dir, &entry.name)?.attr;
            if !self.path.is_empty() && !self.path.ends_with(b"/") {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(&entry.name);
            self.depth = self.open.len();
            if attr.kind != FileKind::Directory || self.open.len() >= self.deepest {
                fs.forget(attr.ino, 1);
                return Ok(Some((entry, attr)));
            }
            if let Some(last) = self.open.last_mut() {
                last.names.shed();
            }
            self.open.push(Level {
                dir: attr.ino,
                names: Names::default(),
                path: self.path.len(),
                entered: false,
            });
            return Ok(Some((entry, attr)));
        }
        Ok(None)
    }

    fn leave(&mut self, fs: &dyn FileSystem) {
        if let Some(level) = self.open.pop()
            && !self.open.is_empty()
        {
            fs.forget(level.dir, 1);
        }
    }

    /// Releases all references.
    pub(crate) fn end(&mut self, fs: &dyn FileSystem) {
        while !self.open.is_empty() {
            self.leave(fs);
        }
    }
}

/// A directory that is being emptied.
struct Emptied<'a> {
    node: HeldInode<'a>,
    name: Vec<u8>,
    names: Names,
}

/// The path of a removed name from the top.
struct Removed<'r, 'a> {
    /// The directories above it, with the top.
    above: &'r [Emptied<'a>],
    name: &'r [u8],
}

impl Display for Removed<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.above.is_empty() {
            return Ok(());
        }
        for one in self.above.iter().skip(1) {
            write!(f, "/{}", shown::name(&one.name))?;
        }
        write!(f, "/{}", shown::name(self.name))
    }
}

/// Removes the directory `top`, which is `name` in `dir`, and everything below it. Calls `removed`
/// after each name, with its path from `top`. Fails with the path from `top`.
///
/// An image can contain a directory below itself: such a loop is refused before anything in it is
/// removed twice.
pub(crate) fn remove_all<'a>(
    dir: &HeldInode<'a>,
    top: HeldInode<'a>,
    name: &[u8],
    removed: &mut dyn FnMut(&dyn Display) -> Result<()>,
) -> std::result::Result<(), (Vec<u8>, Error)> {
    let fs = dir.fs;
    let mut inside: HashSet<Ino> = HashSet::from([dir.ino(), top.ino()]);
    let mut open = vec![Emptied {
        node: top,
        name: name.to_vec(),
        names: Names::default(),
    }];
    let mut step = |open: &mut Vec<Emptied<'a>>, inside: &mut HashSet<Ino>| -> Result<bool> {
        let Some(last) = open.last_mut() else {
            return Ok(false);
        };
        let Some(entry) = last.names.next(fs, last.node.ino())? else {
            let Some(Emptied { node, name, .. }) = open.pop() else {
                return Ok(false);
            };
            inside.remove(&node.ino());
            let parent = open.last().map_or(dir.ino(), |above| above.node.ino());
            fs.rmdir(parent, &name)?;
            removed(&Removed {
                above: open,
                name: &name,
            })?;
            return Ok(!open.is_empty());
        };
        if entry.kind != FileKind::Directory {
            fs.unlink(last.node.ino(), &entry.name)?;
            removed(&Removed {
                above: open,
                name: &entry.name,
            })?;
            return Ok(true);
        }
        let below = last.node.child(&entry.name)?;
        if !inside.insert(below.ino()) {
            return Err(directory_loop(&entry.name));
        }
        last.names.shed();
        open.push(Emptied {
            node: below,
            name: entry.name,
            names: Names::default(),
        });
        Ok(true)
    };
    loop {
        match step(&mut open, &mut inside) {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(error) => {
                let names = open.iter().skip(1);
                let path = names
                    .flat_map(|one| [b"/", one.name.as_slice()].concat())
                    .collect();
                return Err((path, error));
            }
        }
    }
}
