//! Walking a mounted file system by path, without a mount: inodes that give their reference
//! back, path lookup, and whole-directory listings.

use std::collections::{HashSet, VecDeque};
use std::ops::ControlFlow;

use sapwood_vfs::{Attr, DirEntry, Entry, Error, FileKind, FileSystem, Ino, Result};

/// Most symbolic links that one path may lead through.
const LINKS_MAX: u32 = 40;

/// A held inode; dropping it gives the reference back.
pub struct Node<'a> {
    fs: &'a dyn FileSystem,
    attr: Attr,
    counted: bool,
}

impl<'a> Node<'a> {
    /// Takes over the reference of an entry.
    #[must_use]
    pub fn new(fs: &'a dyn FileSystem, entry: Entry) -> Self {
        Self {
            fs,
            attr: entry.attr,
            counted: true,
        }
    }

    /// The root directory.
    ///
    /// # Errors
    /// What reading its attributes says.
    pub fn root(fs: &'a dyn FileSystem) -> Result<Self> {
        let attr = fs.getattr(fs.root())?;
        Ok(Self {
            fs,
            attr,
            counted: false,
        })
    }

    /// Its identity.
    #[must_use]
    pub fn ino(&self) -> Ino {
        self.attr.ino
    }

    /// Its attributes as they were when it was found.
    #[must_use]
    pub fn attr(&self) -> &Attr {
        &self.attr
    }

    /// True for a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.attr.kind == FileKind::Directory
    }

    /// Finds a name in this directory.
    ///
    /// # Errors
    /// As [`FileSystem::lookup`].
    pub fn child(&self, name: &[u8]) -> Result<Self> {
        Ok(Self::new(self.fs, self.fs.lookup(self.ino(), name)?))
    }

    /// All names in this directory, in the engine's order.
    ///
    /// # Errors
    /// As [`FileSystem::readdir`].
    pub fn list(&self) -> Result<Vec<DirEntry>> {
        let mut all = Vec::new();
        self.fs.readdir(self.ino(), 0, &mut |entry| {
            all.push(entry);
            ControlFlow::Continue(())
        })?;
        Ok(all)
    }

    /// The directory that holds this one.
    fn parent(&self) -> Result<Self> {
        Ok(Self::new(self.fs, self.fs.parent(self.ino())?))
    }

    /// Up to `most` names in this directory after a position.
    fn some(&self, from: u64, most: usize) -> Result<Vec<DirEntry>> {
        let mut some = Vec::new();
        self.fs.readdir(self.ino(), from, &mut |entry| {
            some.push(entry);
            match some.len() < most {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        })?;
        Ok(some)
    }

    fn duplicate(&self) -> Result<Self> {
        match self.counted {
            true => Ok(Self::new(self.fs, self.fs.reference(self.ino())?)),
            false => Self::root(self.fs),
        }
    }
}

impl Drop for Node<'_> {
    fn drop(&mut self) {
        if self.counted {
            self.fs.forget(self.attr.ino, 1);
        }
    }
}

fn components(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|byte| *byte == b'/')
        .filter(|part| !part.is_empty())
        .map(<[u8]>::to_vec)
        .collect()
}

/// Finds `path` from the root. Symbolic links on the way are followed within the file system;
/// one at the end only if `follow`.
///
/// # Errors
/// `NotFound`, `NotDirectory`, `Invalid` for too many links.
pub fn resolve<'a>(fs: &'a dyn FileSystem, path: &[u8], follow: bool) -> Result<Node<'a>> {
    let mut at = Node::root(fs)?;
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
            return Err(Error::Invalid);
        }
        let target = fs.readlink(next.ino())?;
        if target.first() == Some(&b'/') {
            at = Node::root(fs)?;
        }
        rest.extend(components(&target).into_iter().rev());
    }
    Ok(at)
}

/// Finds the directory of `path` and the last name in it.
///
/// # Errors
/// As [`resolve`]; `Invalid` if the path has no last name.
pub fn resolve_parent<'a>(fs: &'a dyn FileSystem, path: &[u8]) -> Result<(Node<'a>, Vec<u8>)> {
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
pub struct Names {
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
    /// As [`FileSystem::readdir`].
    pub fn next(&mut self, dir: &Node<'_>) -> Result<Option<DirEntry>> {
        if self.batch.is_empty() {
            self.batch = dir.some(self.next, Self::BATCH)?.into();
        }
        let entry = self.batch.pop_front();
        if let Some(entry) = &entry {
            self.next = entry.next;
        }
        Ok(entry)
    }

    /// Drops the names that were read and not taken; they are read again. A walk calls it before
    /// it enters a directory, so that its memory grows with its depth by little.
    pub fn shed(&mut self) {
        const KEPT: usize = 64;
        if self.batch.len() > KEPT {
            self.batch.truncate(KEPT);
            self.batch.shrink_to_fit();
        }
    }
}

/// The error of a walk that meets, by this name, a directory that it is in, or was in before.
#[must_use]
pub fn directory_loop(name: &[u8]) -> Error {
    let name = String::from_utf8_lossy(name);
    Error::corrupt(format!(
        "directory loop: {} is reached a second time",
        name.escape_debug()
    ))
}

/// What [`walk`] calls: path relative to the top, entry, attributes.
pub type Visit<'v, E> = dyn FnMut(&[u8], &DirEntry, &Attr) -> std::result::Result<(), E> + 'v;

/// A directory that a walk is in.
struct Level<'a> {
    node: Node<'a>,
    names: Names,
    /// Bytes of the path to it.
    path: usize,
    /// A name was found in it.
    entered: bool,
}

/// Calls `visit` for everything below `top`, depth first, directories before what is in them,
/// with the path relative to `top`.
///
/// An image can contain a directory below itself, or in two places. The walk enters no directory
/// twice (an empty one aside), so it ends. It holds a few names for each level, and the number of
/// each directory.
///
/// # Errors
/// The first error of the walk or of `visit`; `Corrupt` for a directory that is reached twice.
pub fn walk<E: From<Error>>(
    top: &Node<'_>,
    visit: &mut Visit<'_, E>,
) -> std::result::Result<(), E> {
    let mut entered: HashSet<Ino> = HashSet::from([top.ino()]);
    let level = |node, path| Level {
        node,
        names: Names::default(),
        path,
        entered: path == 0,
    };
    let mut open = vec![level(top.duplicate()?, 0)];
    let mut path: Vec<u8> = Vec::new();
    while let Some(last) = open.last_mut() {
        path.truncate(last.path);
        let Some(entry) = last.names.next(&last.node)? else {
            open.pop();
            continue;
        };
        if !last.entered && !entered.insert(last.node.ino()) {
            return Err(directory_loop(&path).into());
        }
        last.entered = true;
        let node = last.node.child(&entry.name)?;
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(&entry.name);
        visit(&path, &entry, node.attr())?;
        if node.is_dir() {
            last.names.shed();
            open.push(level(node, path.len()));
        }
    }
    Ok(())
}
