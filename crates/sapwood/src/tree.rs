//! Walking a mounted file system by path, without a mount: inodes that give their reference
//! back, path lookup, and whole-directory listings.

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

/// What [`walk`] calls: path relative to the top, entry, attributes.
pub type Visit<'v, E> = dyn FnMut(&[u8], &DirEntry, &Attr) -> std::result::Result<(), E> + 'v;

/// Calls `visit` for everything below `top`, depth first, directories before what is in them,
/// with the path relative to `top`.
///
/// # Errors
/// The first error of the walk or of `visit`.
pub fn walk<E: From<Error>>(
    fs: &dyn FileSystem,
    top: &Node<'_>,
    visit: &mut Visit<'_, E>,
) -> std::result::Result<(), E> {
    let mut open: Vec<(Node<'_>, Vec<u8>, std::vec::IntoIter<DirEntry>)> = Vec::new();
    open.push((top.duplicate()?, Vec::new(), top.list()?.into_iter()));
    while let Some((dir, path, entries)) = open.last_mut() {
        let Some(entry) = entries.next() else {
            open.pop();
            continue;
        };
        let node = Node::new(fs, fs.lookup(dir.ino(), &entry.name)?);
        let mut below = path.clone();
        if !below.is_empty() {
            below.push(b'/');
        }
        below.extend_from_slice(&entry.name);
        visit(&below, &entry, node.attr())?;
        if node.is_dir() {
            let list = node.list()?.into_iter();
            open.push((node, below, list));
        }
    }
    Ok(())
}
