//! [`Tree`]: the visible state of a file system, by inode.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::ControlFlow;
use std::sync::Arc;

use sapwood_vfs::{Attr, Error, FileKind, FileSystem, Ino, Result, Timestamp};

/// Owner and mode of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// Permission bits.
    pub perm: u32,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number.
    pub rdev: u64,
}

/// Times of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Creation.
    pub btime: Timestamp,
}

impl Times {
    /// The times of an inode.
    #[must_use]
    pub fn of(attr: &Attr) -> Self {
        Self {
            atime: attr.atime,
            mtime: attr.mtime,
            ctime: attr.ctime,
            btime: attr.btime,
        }
    }

    /// Each time with its name.
    #[must_use]
    pub fn named(&self) -> [(&'static str, Timestamp); 4] {
        [
            ("atime", self.atime),
            ("mtime", self.mtime),
            ("ctime", self.ctime),
            ("btime", self.btime),
        ]
    }
}

/// One inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Type.
    pub kind: FileKind,
    /// Owner and mode.
    pub owner: Owner,
    /// Link count of the inode.
    pub nlink: u32,
    /// Content of a file or target of a symbolic link; empty for other kinds.
    pub content: Arc<[u8]>,
    /// Extended attributes.
    pub xattrs: Arc<BTreeMap<Vec<u8>, Vec<u8>>>,
    /// Names in a directory.
    pub entries: Arc<BTreeMap<Vec<u8>, Ino>>,
    /// Its times, if they are known.
    pub times: Option<Times>,
}

/// The visible state of a file system, from its root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// Inode of the root.
    pub root: Ino,
    /// All inodes that have a name, and the root.
    pub nodes: BTreeMap<Ino, Node>,
    /// Inodes without a name that are held open.
    pub nameless: BTreeMap<Ino, Node>,
    /// When its recovery began, if it was recovered. The recovery set every later time.
    pub recovered: Option<Timestamp>,
}

/// A time with its name; `None` if the recovery set it.
type Named = (&'static str, Option<Timestamp>);

/// Directory and name.
pub type Place = (Ino, Vec<u8>);

impl Tree {
    /// Reads everything.
    ///
    /// # Errors
    /// The error of the file system. `Corrupt` for a directory that is reached twice.
    pub fn of(fs: &dyn FileSystem) -> Result<Self> {
        let root = fs.root();
        let mut nodes = BTreeMap::new();
        let mut open = vec![(root, fs.getattr(root)?)];
        while let Some((dir, attr)) = open.pop() {
            let mut entries = BTreeMap::new();
            for name in names(fs, dir)? {
                let entry = fs.lookup(dir, &name)?;
                let ino = entry.ino();
                entries.insert(name, ino);
                let known = nodes.contains_key(&ino) || open.iter().any(|(open, _)| *open == ino);
                if entry.attr.kind == FileKind::Directory {
                    if known || ino == dir {
                        return Err(Error::corrupt(format!("directory {ino} has two names")));
                    }
                    open.push((ino, entry.attr));
                } else {
                    let node = (!known).then(|| Node::of(fs, &entry.attr)).transpose();
                    fs.forget(ino, 1);
                    nodes.extend(node?.map(|node| (ino, node)));
                }
            }
            let mut node = Node::of(fs, &attr)?;
            node.entries = Arc::new(entries);
            nodes.insert(dir, node);
            if dir != root {
                fs.forget(dir, 1);
            }
        }
        Ok(Self {
            root,
            nodes,
            nameless: BTreeMap::new(),
            recovered: None,
        })
    }

    /// Adds those held inodes that have no name.
    ///
    /// # Errors
    /// The error of the file system.
    pub fn add_held(&mut self, fs: &dyn FileSystem, held: impl Iterator<Item = Ino>) -> Result<()> {
        for ino in held {
            if !self.nodes.contains_key(&ino) {
                let node = Node::of(fs, &fs.getattr(ino)?)?;
                self.nameless.insert(ino, node);
            }
        }
        Ok(())
    }

    /// Names of all inodes.
    #[must_use]
    pub fn names(&self) -> BTreeMap<Ino, Vec<Place>> {
        let mut all: BTreeMap<Ino, Vec<Place>> = BTreeMap::new();
        for (dir, node) in &self.nodes {
            for (name, ino) in node.entries.iter() {
                all.entry(*ino).or_default().push((*dir, name.clone()));
            }
        }
        all
    }

    /// The part of the tree below a directory.
    #[must_use]
    pub fn below(&self, root: Ino) -> Self {
        let mut nodes = BTreeMap::new();
        let mut open = vec![root];
        while let Some(ino) = open.pop() {
            if let Some(node) = self.nodes.get(&ino) {
                open.extend(node.entries.values());
                nodes.insert(ino, node.clone());
            }
        }
        Self {
            root,
            nodes,
            nameless: BTreeMap::new(),
            recovered: self.recovered,
        }
    }

    /// An inode with a name, or a held one.
    #[must_use]
    pub fn node(&self, ino: Ino) -> Option<&Node> {
        self.nodes.get(&ino).or_else(|| self.nameless.get(&ino))
    }

    /// The inode that a name leads to.
    #[must_use]
    pub fn find(&self, dir: Ino, name: &[u8]) -> Option<Ino> {
        self.nodes.get(&dir)?.entries.get(name).copied()
    }

    /// The same tree with other inode numbers, without the inodes that the map lacks.
    #[must_use]
    pub fn renumbered(&self, map: &BTreeMap<Ino, Ino>) -> Self {
        let new = |ino: &Ino| map.get(ino).copied();
        let renumber = |node: &Node| {
            let entries = node.entries.iter();
            let entries = entries.filter_map(|(name, ino)| Some((name.clone(), new(ino)?)));
            Node {
                entries: Arc::new(entries.collect()),
                ..node.clone()
            }
        };
        let all = |nodes: &BTreeMap<Ino, Node>| {
            let nodes = nodes.iter();
            nodes
                .filter_map(|(ino, node)| Some((new(ino)?, renumber(node))))
                .collect()
        };
        Self {
            root: new(&self.root).unwrap_or(self.root),
            nodes: all(&self.nodes),
            nameless: all(&self.nameless),
            recovered: self.recovered,
        }
    }

    /// All paths, sorted, each with its inode.
    #[must_use]
    pub fn paths(&self) -> BTreeMap<String, Ino> {
        let mut paths = BTreeMap::from([(".".to_owned(), self.root)]);
        let mut open = vec![(String::new(), self.root)];
        while let Some((path, dir)) = open.pop() {
            let Some(node) = self.nodes.get(&dir) else {
                continue;
            };
            for (name, ino) in node.entries.iter() {
                let path = format!("{path}{}", name.escape_ascii());
                open.push((format!("{path}/"), *ino));
                paths.insert(path, *ino);
            }
        }
        paths
    }

    /// The first difference to another tree of the same file system, by paths. Times are compared
    /// if both trees have them.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Option<String> {
        let (mine, others) = (self.paths(), other.paths());
        if let Some(path) = mine.keys().find(|path| !others.contains_key(*path)) {
            return Some(format!("{path} is missing in the second"));
        }
        if let Some(path) = others.keys().find(|path| !mine.contains_key(*path)) {
            return Some(format!("{path} is missing in the first"));
        }
        let nodes = mine.iter().zip(others.values());
        nodes
            .filter_map(|((path, a), b)| Some((path, self.nodes.get(a)?, other.nodes.get(b)?)))
            .find_map(|(path, a, b)| {
                let why = a.difference(b).or_else(|| {
                    let (mine, others) = (self.stored(a.times?), other.stored(b.times?));
                    let mut pairs = mine.into_iter().zip(others);
                    // The oracle decides whether our recovery may set a time. The kernel's recovery
                    // sets ctime also for inodes in the log.
                    let set = |(a, b): &(Named, Named)| a.1.is_none() || b.1.is_none();
                    let ((name, a), (_, b)) = pairs.find(|pair| !set(pair) && pair.0 != pair.1)?;
                    Some(differ(name, &a, &b))
                })?;
                Some(format!("{path}: {why}"))
            })
    }

    /// Times with their names; `None` for one that the recovery set.
    fn stored(&self, times: Times) -> [Named; 4] {
        let stored = |time: Timestamp| self.recovered.is_none_or(|recovered| time < recovered);
        times
            .named()
            .map(|(name, time)| (name, stored(time).then_some(time)))
    }
}

impl Node {
    fn of(fs: &dyn FileSystem, attr: &Attr) -> Result<Self> {
        let ino = attr.ino;
        let content = match attr.kind {
            FileKind::Regular => read(fs, ino, attr.size)?,
            FileKind::Symlink => fs.readlink(ino)?,
            _ => Vec::new(),
        };
        let mut xattrs = BTreeMap::new();
        for name in fs.listxattr(ino)? {
            let value = fs.getxattr(ino, &name)?;
            xattrs.insert(name, value);
        }
        Ok(Self {
            kind: attr.kind,
            owner: Owner {
                perm: attr.perm,
                uid: attr.uid,
                gid: attr.gid,
                rdev: attr.rdev,
            },
            nlink: attr.nlink,
            content: content.into(),
            xattrs: Arc::new(xattrs),
            entries: Arc::default(),
            times: Some(Times::of(attr)),
        })
    }

    /// The first difference. Names in a directory, inode numbers and times are not compared.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Option<String> {
        let differ = |what, a: &dyn Debug, b: &dyn Debug| Some(differ(what, a, b));
        if self.kind != other.kind {
            return differ("kind", &self.kind, &other.kind);
        }
        if self.owner != other.owner {
            return differ("owner", &self.owner, &other.owner);
        }
        if self.nlink != other.nlink && self.kind != FileKind::Directory {
            return differ("link count", &self.nlink, &other.nlink);
        }
        if self.content.len() != other.content.len() {
            return differ("size", &self.content.len(), &other.content.len());
        }
        if self.content != other.content {
            let mut bytes = self.content.iter().zip(other.content.iter());
            let at = bytes.position(|(a, b)| a != b).unwrap_or_default();
            return Some(format!("content differs from byte {at} on"));
        }
        if self.xattrs != other.xattrs {
            let names = |node: &Self| -> Vec<String> {
                let names = node.xattrs.keys();
                names.map(|name| name.escape_ascii().to_string()).collect()
            };
            return differ("attributes", &names(self), &names(other));
        }
        None
    }
}

fn differ(what: &str, a: &dyn Debug, b: &dyn Debug) -> String {
    format!("{what} is {a:?} in the first, {b:?} in the second")
}

fn names(fs: &dyn FileSystem, dir: Ino) -> Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        names.push(entry.name);
        ControlFlow::Continue(())
    })?;
    Ok(names)
}

fn read(fs: &dyn FileSystem, ino: Ino, size: u64) -> Result<Vec<u8>> {
    /// Files of workloads are small; no file had a greater size than this.
    const LARGEST: u64 = 16 << 20;
    if size > LARGEST {
        return Err(Error::corrupt(format!("inode {ino} has size {size}")));
    }
    let mut content = vec![0; size as usize];
    let mut at = 0;
    while at < content.len() {
        match fs.read(ino, at as u64, &mut content[at..])? {
            0 => {
                return Err(Error::corrupt(format!(
                    "inode {ino} ends at {at} of {size}"
                )));
            }
            n => at += n,
        }
    }
    Ok(content)
}
