//! Files of several trees, under paths of their own.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::sync::Arc;

use sapwood_vfs::{Attr, DirEntry, Error, FileKind, FsStat, Ino, Result, SeekFrom};

use crate::tree::{Tree, Xattrs, nameless_directory};

/// Number of the root directory.
const ROOT: usize = 0;
/// Most bytes of a name.
const NAME_MAX: usize = 255;

enum Node {
    Directory {
        parent: usize,
        names: BTreeMap<Vec<u8>, usize>,
    },
    File {
        tree: Arc<dyn Tree>,
        ino: Ino,
    },
}

/// A tree of files that are in other trees. Its directories are made up.
pub struct Collected {
    kind: &'static str,
    nodes: Vec<Node>,
    /// The next number of a name that its directory has, by directory and name.
    next: HashMap<(usize, Vec<u8>), u64>,
    /// The directory that a name stands for, where another node has the name itself.
    renamed: HashMap<(usize, Vec<u8>), usize>,
}

impl Collected {
    /// An empty one. `kind`: the format of the trees.
    #[must_use]
    pub fn new(kind: &'static str) -> Self {
        Self {
            kind,
            nodes: vec![Node::Directory {
                parent: ROOT,
                names: BTreeMap::new(),
            }],
            next: HashMap::new(),
            renamed: HashMap::new(),
        }
    }

    /// Number of files.
    #[must_use]
    pub fn len(&self) -> usize {
        let files = self.nodes.iter();
        files
            .filter(|node| matches!(node, Node::File { .. }))
            .count()
    }

    /// Whether there are no files.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a file. If another one has its path, it gets a number: `name~2`.
    pub fn add(&mut self, path: &[u8], tree: &Arc<dyn Tree>, ino: Ino) {
        let mut names: Vec<&[u8]> = path
            .split(|byte| *byte == b'/')
            .filter(|name| !name.is_empty())
            .collect();
        let Some(last) = names.pop() else { return };
        let mut at = ROOT;
        for name in names {
            at = self.directory(at, name);
        }
        let tree = Arc::clone(tree);
        self.insert(at, last, Node::File { tree, ino });
    }

    /// The directory of a name, which is made if there is none.
    fn directory(&mut self, at: usize, name: &[u8]) -> usize {
        let there = self.names(at).and_then(|names| names.get(name)).copied();
        if let Some(own) = there.filter(|there| self.names(*there).is_some()) {
            return own;
        }
        let key = (at, name.to_vec());
        if let Some(renamed) = self.renamed.get(&key) {
            return *renamed;
        }
        let names = BTreeMap::new();
        let made = self.insert(at, name, Node::Directory { parent: at, names });
        if there.is_some() || name.len() > NAME_MAX {
            self.renamed.insert(key, made);
        }
        made
    }

    fn names(&self, at: usize) -> Option<&BTreeMap<Vec<u8>, usize>> {
        match self.nodes.get(at)? {
            Node::Directory { names, .. } => Some(names),
            Node::File { .. } => None,
        }
    }

    /// Adds a node under a name, or under the name with the first number that is free.
    fn insert(&mut self, at: usize, name: &[u8], node: Node) -> usize {
        let number = self.nodes.len();
        if let Some(Node::Directory { names, .. }) = self.nodes.get_mut(at) {
            let mut free = cut(name, NAME_MAX).to_vec();
            if names.contains_key(&free) {
                let next = self.next.entry((at, free.clone())).or_insert(2);
                while names.contains_key(&free) {
                    let end = format!("~{next}");
                    free = [cut(name, NAME_MAX - end.len()), end.as_bytes()].concat();
                    *next += 1;
                }
            }
            names.insert(free, number);
        }
        self.nodes.push(node);
        number
    }

    fn node(&self, ino: Ino) -> Result<&Node> {
        let index = usize::try_from(ino.0).ok().and_then(|at| at.checked_sub(1));
        index.and_then(|at| self.nodes.get(at)).ok_or(Error::Stale)
    }

    fn directory_of(&self, ino: Ino) -> Result<(usize, &BTreeMap<Vec<u8>, usize>)> {
        match self.node(ino)? {
            Node::Directory { parent, names } => Ok((*parent, names)),
            Node::File { .. } => Err(Error::NotDirectory),
        }
    }

    fn file(&self, ino: Ino) -> Result<(&dyn Tree, Ino)> {
        match self.node(ino)? {
            Node::File { tree, ino } => Ok((&**tree, *ino)),
            Node::Directory { .. } => Err(Error::IsDirectory),
        }
    }
}

/// The first bytes of a name, at most `most`.
fn cut(name: &[u8], most: usize) -> &[u8] {
    name.get(..most).unwrap_or(name)
}

/// The number of a node.
fn number(at: usize) -> Ino {
    Ino(at as u64 + 1)
}

impl Tree for Collected {
    fn kind(&self) -> &'static str {
        self.kind
    }

    fn root(&self) -> Ino {
        number(ROOT)
    }

    fn statfs(&self) -> FsStat {
        FsStat {
            block_size: 4096,
            inodes: self.nodes.len() as u64,
            name_max: 255,
            ..FsStat::default()
        }
    }

    fn attr(&self, ino: Ino) -> Result<Attr> {
        Ok(match self.node(ino)? {
            Node::Directory { .. } => nameless_directory(ino),
            // Each file has one name here.
            Node::File { tree, ino: there } => Attr {
                ino,
                nlink: 1,
                ..tree.attr(*there)?
            },
        })
    }

    fn entries(
        &self,
        dir: Ino,
        from: u64,
        sink: &mut dyn FnMut(DirEntry) -> ControlFlow<()>,
    ) -> Result<()> {
        let (_, names) = self.directory_of(dir)?;
        let skip = usize::try_from(from).unwrap_or(usize::MAX);
        for (at, (name, node)) in names.iter().enumerate().skip(skip) {
            let ino = number(*node);
            let kind = self.attr(ino).map_or(FileKind::Regular, |attr| attr.kind);
            let entry = DirEntry {
                ino,
                next: at as u64 + 1,
                kind,
                name: name.clone(),
            };
            if sink(entry).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn find(&self, dir: Ino, name: &[u8]) -> Result<Ino> {
        let (_, names) = self.directory_of(dir)?;
        let node = names.get(name).ok_or(Error::NotFound)?;
        Ok(number(*node))
    }

    fn parent(&self, dir: Ino) -> Result<Ino> {
        let (parent, _) = self.directory_of(dir)?;
        Ok(number(parent))
    }

    fn link_target(&self, ino: Ino) -> Result<Vec<u8>> {
        match self.file(ino) {
            Ok((tree, ino)) => tree.link_target(ino),
            Err(_) => Err(Error::Invalid),
        }
    }

    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let (tree, ino) = self.file(ino)?;
        tree.read(ino, offset, buf)
    }

    fn seek(&self, ino: Ino, from: SeekFrom) -> Result<u64> {
        let (tree, ino) = self.file(ino)?;
        tree.seek(ino, from)
    }

    fn xattrs(&self, ino: Ino) -> Result<Xattrs> {
        match self.file(ino) {
            Ok((tree, ino)) => tree.xattrs(ino),
            Err(_) => Ok(Xattrs::new()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A failed unwrap is a failed test.
mod tests {
    use super::*;

    /// A tree that is only referred to.
    fn empty() -> Arc<dyn Tree> {
        Arc::new(Collected::new("ext4"))
    }

    fn names(tree: &Collected, dir: Ino) -> Vec<Vec<u8>> {
        let (_, names) = tree.directory_of(dir).unwrap();
        names.keys().cloned().collect()
    }

    #[test]
    fn a_directory_with_the_name_of_a_file_holds_all_of_its_files() {
        let (mut all, tree) = (Collected::new("ext4"), empty());
        for path in ["/d", "/d/a", "/d/b", "/d", "/d/a"] {
            all.add(path.as_bytes(), &tree, number(ROOT));
        }
        assert_eq!(
            names(&all, all.root()),
            [b"d".to_vec(), b"d~2".to_vec(), b"d~3".to_vec()]
        );
        let dir = all.find(all.root(), b"d~2").unwrap();
        assert_eq!(
            names(&all, dir),
            [b"a".to_vec(), b"a~2".to_vec(), b"b".to_vec()]
        );
    }

    #[test]
    fn equal_names_of_any_number_and_length_have_at_most_255_bytes() {
        let (mut all, tree) = (Collected::new("ext4"), empty());
        let long = [b"/".to_vec(), vec![b'n'; 300]].concat();
        for _ in 0..20_000 {
            all.add(&long, &tree, number(ROOT));
        }
        let names = names(&all, all.root());
        assert_eq!(names.len(), 20_000);
        assert!(names.iter().all(|name| name.len() <= NAME_MAX));
        assert!(names.iter().any(|name| name.ends_with(b"n~20000")));
    }
}
