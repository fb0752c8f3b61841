//! The files of a FAT volume.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::geometry::ENTRY;
use super::names::{self, ShortNames, StoredName};
use super::{FatError, FatWidth, Result};
use crate::fs::{FileSystem, FileType};
use crate::vfs::FileKind;

/// Most bytes of a file.
const LARGEST: u64 = u32::MAX as u64;
/// Most bytes of a directory.
const DIRECTORY: u64 = 65_536 * ENTRY;

/// A file or directory. The first one of a tree is the root directory.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) path: PathBuf,
    pub(super) name: StoredName,
    pub(super) modified: SystemTime,
    /// The directory that it is in; the root is in itself.
    pub(super) parent: usize,
    pub(super) content: Content,
}

#[derive(Debug)]
pub(super) enum Content {
    /// Bytes of a file.
    File(u64),
    /// The places of the files of a directory in the tree, by their names.
    Directory(Vec<usize>),
}

/// Files with the names that a volume stores. A directory precedes its files.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) nodes: Vec<Node>,
    /// Whether the root directory has an entry with a label.
    pub(super) labelled: bool,
}

impl Tree {
    /// All files of a file system.
    ///
    /// # Errors
    /// FAT cannot store a file, or a file cannot be read.
    pub(super) fn read(fs: Option<&FileSystem>, labelled: bool) -> Result<Self> {
        let root = Node {
            path: "/".into(),
            name: ShortNames::default().store(""),
            modified: UNIX_EPOCH,
            parent: 0,
            content: Content::Directory(Vec::new()),
        };
        let nodes = vec![root];
        let mut tree = Self { nodes, labelled };
        let Some(fs) = fs else {
            return Ok(tree);
        };
        // Files are added at the end, so all directories are met.
        let mut at = 0;
        while let Some(node) = tree.nodes.get(at) {
            if let Content::Directory(_) = node.content {
                let found = directory(fs, &node.path, at)?;
                let first = tree.nodes.len();
                let places = (first..first + found.len()).collect();
                tree.nodes.extend(found);
                if let Some(node) = tree.nodes.get_mut(at) {
                    node.content = Content::Directory(places);
                }
                if tree.bytes(at) > DIRECTORY {
                    return Err(FatError::TooManyNames(tree.nodes[at].path.clone()));
                }
            }
            at += 1;
        }
        Ok(tree)
    }

    /// The newest time of a file.
    pub(super) fn newest(&self) -> SystemTime {
        let times = self.nodes.iter().map(|node| node.modified);
        times.max().unwrap_or(UNIX_EPOCH)
    }

    /// Directory entries of the root directory.
    pub(super) fn root_entries(&self) -> u64 {
        self.bytes(0) / ENTRY
    }

    /// Bytes of the content of a file or directory.
    pub(super) fn bytes(&self, at: usize) -> u64 {
        match self.nodes.get(at).map(|node| &node.content) {
            Some(Content::File(bytes)) => *bytes,
            Some(Content::Directory(files)) => {
                let names = files.iter().filter_map(|file| self.nodes.get(*file));
                let names: u64 = names.map(|node| node.name.entries()).sum();
                // A label in the root, `.` and `..` elsewhere.
                let own = if at == 0 { u64::from(self.labelled) } else { 2 };
                (names + own) * ENTRY
            }
            None => 0,
        }
    }

    /// Clusters of the content of a file or directory in a volume with such clusters.
    pub(super) fn clusters_of(&self, at: usize, width: FatWidth, cluster: u64) -> u64 {
        match (at, width) {
            (0, FatWidth::Fat12 | FatWidth::Fat16) => 0,
            // The root directory of FAT32 has a cluster even without a name.
            (0, FatWidth::Fat32) => self.bytes(0).div_ceil(cluster).max(1),
            _ => self.bytes(at).div_ceil(cluster),
        }
    }

    /// Clusters of all files.
    pub(super) fn clusters(&self, width: FatWidth, cluster: u64) -> u64 {
        let each = (0..self.nodes.len()).map(|at| self.clusters_of(at, width, cluster));
        each.sum()
    }
}

/// The files of a directory, in the order of their names.
fn directory(fs: &FileSystem, path: &Path, parent: usize) -> Result<Vec<Node>> {
    let mut found = Vec::new();
    for entry in fs.read_dir(path)? {
        let entry = entry?;
        let (name, path) = (entry.file_name(), entry.path());
        let Some(name) = name.to_str().map(str::to_owned) else {
            let why = "FAT has no names that are not UTF-8";
            return Err(FatError::Name { path, why });
        };
        if let Some(why) = names::flaw(&name) {
            return Err(FatError::Name { path, why });
        }
        found.push((name, path, entry.metadata()?));
    }
    found.sort_by(|(one, ..), (other, ..)| one.cmp(other));
    let (mut short, mut seen) = (ShortNames::default(), HashSet::new());
    let mut nodes = Vec::new();
    for (name, path, metadata) in found {
        if !seen.insert(name.to_uppercase()) {
            return Err(FatError::Case(path));
        }
        let content = if metadata.is_dir() {
            Content::Directory(Vec::new())
        } else if metadata.is_file() {
            Content::File(metadata.len())
        } else {
            let what = kind(metadata.file_type());
            return Err(FatError::Kind { path, what });
        };
        if let Content::File(size) = content
            && size > LARGEST
        {
            return Err(FatError::TooLarge { path, size });
        }
        nodes.push(Node {
            path,
            name: short.store(&name),
            modified: metadata.modified(),
            parent,
            content,
        });
    }
    Ok(nodes)
}

/// The name of a kind of file that FAT cannot store.
fn kind(kind: FileType) -> &'static str {
    match kind.kind() {
        FileKind::Symlink => "symbolic links",
        FileKind::Fifo => "pipes",
        FileKind::Socket => "sockets",
        _ => "device nodes",
    }
}
