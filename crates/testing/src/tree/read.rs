//! Reading a tree, through a [`FileSystem`] or through a mount.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, OsStr};
use std::fs::{self, File};
use std::io;
use std::ops::ControlFlow;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::io::Errno;
use sapwood_vfs::{Attr, Error, FileKind, FileSystem, Ino, SeekFrom, Timestamp};
use sha2::{Digest, Sha256};

use super::{Detail, OBJECTID, Owner, PLACEHOLDER, Times, Tree, TreeInode, shown};

type Result<T> = std::result::Result<T, String>;

/// Reads this much of a file at once.
const PIECE: usize = 1 << 20;
/// Greatest size of a file whose bytes are kept.
const LARGEST: u64 = 64 << 20;
/// Bytes that are read at either end of a long hole.
const BORDER: u64 = 64 << 10;
/// The middle of a long hole counts as this many zeros at most.
const ZEROS: u64 = 64 << 20;

/// The source of a tree.
trait Source {
    /// An inode to which a reference is held.
    type At;

    fn root(&self) -> Result<Self::At>;
    /// The inode behind a name.
    fn find(&self, dir: &Self::At, name: &[u8]) -> Result<Self::At>;
    fn names(&self, dir: &Self::At) -> Result<Vec<Vec<u8>>>;
    /// Attributes as a [`FileSystem`] has them, device, and flags if known.
    fn stat(&self, at: &Self::At) -> Result<Stat>;
    fn readlink(&self, at: &Self::At) -> Result<Vec<u8>>;
    fn xattrs(&self, at: &Self::At) -> Result<BTreeMap<Vec<u8>, Vec<u8>>>;
    fn read(&self, at: &Self::At, offset: u64, buffer: &mut [u8]) -> Result<usize>;
    /// `None` past the last data.
    fn seek(&self, at: &Self::At, from: SeekFrom) -> Result<Option<u64>>;
}

/// The attributes of an inode.
struct Stat {
    /// Device and inode number.
    id: (u64, u64),
    /// Type; `size`, `blocks`, `flags` and the rest are set, the content is not.
    node: TreeInode,
}

impl Tree {
    /// Reads everything in a file system.
    ///
    /// # Errors
    /// An unreadable or contradictory file, with its path.
    pub fn of(fs: &dyn FileSystem, detail: Detail) -> Result<Self> {
        read(&Library { fs, detail }, detail)
    }

    /// Reads everything that is mounted on a directory.
    ///
    /// # Errors
    /// An unreadable file, with its path.
    pub fn of_mount(top: &Path, detail: Detail) -> Result<Self> {
        read(&Mounted { top, detail }, detail)
    }

    /// Reads everything below a directory of a file system.
    ///
    /// # Errors
    /// An unreadable or contradictory file, with its path.
    pub fn of_directory(fs: &dyn FileSystem, dir: Ino, detail: Detail) -> Result<Self> {
        let library = Library { fs, detail };
        read_below(&library, library.held(dir), detail)
    }

    /// Adds those held inodes that have no name.
    ///
    /// # Errors
    /// The error of the file system.
    pub fn add_held(&mut self, fs: &dyn FileSystem, held: impl Iterator<Item = Ino>) -> Result<()> {
        let library = Library {
            fs,
            detail: Detail::Bytes,
        };
        for ino in held.filter(|ino| !self.nodes.contains_key(ino)) {
            let at = library.held(ino);
            let stat = library.stat(&at)?;
            let node = filled(&library, &at, stat.node, Detail::Bytes)?;
            self.nameless.insert(ino, node);
        }
        Ok(())
    }
}

/// A directory, and the names in it that are still to be read.
struct Level<A> {
    at: A,
    ino: Ino,
    path: String,
    names: Vec<Vec<u8>>,
    entries: BTreeMap<Vec<u8>, Ino>,
}

fn read<S: Source>(source: &S, detail: Detail) -> Result<Tree> {
    read_below(source, source.root()?, detail)
}

fn read_below<S: Source>(source: &S, top: S::At, detail: Detail) -> Result<Tree> {
    let stat = source.stat(&top)?;
    let root = Ino(stat.id.1);
    let mut tree = Tree::empty(root);
    let mut known = HashMap::from([(stat.id, root)]);
    let node = filled(source, &top, stat.node, detail)?;
    tree.nodes.insert(root, node);
    let names = source.names(&top)?;
    let mut open = vec![level(top, root, String::new(), names)?];
    while let Some(at) = open.last_mut() {
        let Some(name) = at.names.pop() else {
            let Some(done) = open.pop() else { break };
            if let Some(node) = tree.nodes.get_mut(&done.ino) {
                node.entries = Arc::new(done.entries);
            }
            continue;
        };
        let path = if at.path.is_empty() {
            name.escape_ascii().to_string()
        } else {
            format!("{}/{}", at.path, name.escape_ascii())
        };
        let failed = |why: String| format!("{}: {why}", shown(&path));
        let found = source.find(&at.at, &name).map_err(failed)?;
        let stat = source.stat(&found).map_err(failed)?;
        let directory = stat.node.is_dir();
        let ino = match known.get(&stat.id).copied() {
            Some(ino) if !directory => {
                at.entries.insert(name, ino);
                continue;
            }
            // The kernel gives all these directories one number.
            Some(ino) if stat.node.number != PLACEHOLDER || ino == root => {
                return Err(failed(format!("directory {ino} has two names")));
            }
            _ if tree.nodes.contains_key(&Ino(stat.id.1)) => {
                Ino(u64::MAX - tree.nodes.len() as u64)
            }
            _ => Ino(stat.id.1),
        };
        known.insert(stat.id, ino);
        let node = filled(source, &found, stat.node, detail).map_err(failed)?;
        at.entries.insert(name, ino);
        tree.nodes.insert(ino, node);
        if directory {
            let names = source.names(&found).map_err(failed)?;
            open.push(level(found, ino, path, names)?);
        }
    }
    Ok(tree)
}

fn level<A>(at: A, ino: Ino, path: String, mut names: Vec<Vec<u8>>) -> Result<Level<A>> {
    names.sort_unstable();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        let name = twice[0].escape_ascii();
        return Err(format!("{}: lists {name} twice", shown(&path)));
    }
    Ok(Level {
        at,
        ino,
        path,
        names,
        entries: BTreeMap::new(),
    })
}

/// Adds content and extended attributes to an inode.
fn filled<S: Source>(
    source: &S,
    at: &S::At,
    mut node: TreeInode,
    detail: Detail,
) -> Result<TreeInode> {
    match node.kind {
        FileKind::Regular if detail == Detail::Bytes => {
            node.content = bytes(source, at, node.size)?.into();
        }
        FileKind::Regular => {
            // Before it is read: unwritten blocks that are in memory count as data.
            let data = data_map(source, at, node.size)?;
            node.content = sum(source, at, node.size, &in_pages(node.size, &data))?.into();
            node.data = Some(data.into());
        }
        FileKind::Symlink => node.content = source.readlink(at)?.into(),
        _ => {}
    }
    node.xattrs = Arc::new(source.xattrs(at)?);
    Ok(node)
}

fn bytes<S: Source>(source: &S, at: &S::At, size: u64) -> Result<Vec<u8>> {
    if size > LARGEST {
        return Err(format!("has size {size}"));
    }
    // One more than there must be: nothing may follow the end.
    let mut content = vec![0; size as usize + 1];
    let mut end = 0;
    while end < content.len() {
        match source.read(at, end as u64, &mut content[end..])? {
            0 => break,
            n => end += n,
        }
    }
    if end as u64 != size {
        return Err(format!("ends at {end} of {size}"));
    }
    content.truncate(end);
    Ok(content)
}

/// SHA-256 of a file's bytes. The middle of a long hole is not read.
fn sum<S: Source>(source: &S, at: &S::At, size: u64, data: &[(u64, u64)]) -> Result<[u8; 32]> {
    static NOTHING: [u8; PIECE] = [0; PIECE];
    let mut hasher = Sha256::new();
    let room = usize::try_from(size).unwrap_or(PIECE).min(PIECE - 1) + 1;
    let mut buffer = vec![0; room];
    let mut part = |hasher: &mut Sha256, from: u64, to: u64| {
        let mut offset = from;
        while offset < to {
            let want = usize::try_from(to - offset).unwrap_or(room).min(room);
            let len = source.read(at, offset, &mut buffer[..want])?;
            if len == 0 {
                break;
            }
            hasher.update(&buffer[..len]);
            offset += len as u64;
        }
        Ok::<_, String>(())
    };
    let mut hole = 0;
    for (from, to) in data.iter().copied().chain([(size, size)]) {
        if from - hole > 4 * BORDER {
            part(&mut hasher, hole, hole + BORDER)?;
            let mut middle = (from - hole - 2 * BORDER).min(ZEROS);
            while middle > 0 {
                let len = middle.min(PIECE as u64);
                hasher.update(&NOTHING[..len as usize]);
                middle -= len;
            }
            part(&mut hasher, from - BORDER, from)?;
        } else {
            part(&mut hasher, hole, from)?;
        }
        part(&mut hasher, from, to)?;
        hole = to;
    }
    // Nothing may follow the end.
    part(&mut hasher, size, size + 1)?;
    Ok(hasher.finalize().into())
}

fn data_map<S: Source>(source: &S, file: &S::At, size: u64) -> Result<Vec<(u64, u64)>> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    let mut at = 0;
    while at < size {
        let Some(from) = source.seek(file, SeekFrom::Data(at))? else {
            break;
        };
        let to = source.seek(file, SeekFrom::Hole(from))?;
        let to = to.unwrap_or(size).min(size);
        match ranges.last_mut() {
            Some(last) if last.1 == from => last.1 = to,
            _ => ranges.push((from, to)),
        }
        if to <= at {
            break;
        }
        at = to;
    }
    Ok(ranges)
}

/// Ranges of data, grown to whole pages: FUSE's cache writes whole pages, where blocks are smaller.
pub(super) fn in_pages(size: u64, data: &[(u64, u64)]) -> Vec<(u64, u64)> {
    const PAGE: u64 = 4096;
    let mut pages: Vec<(u64, u64)> = Vec::new();
    for (from, to) in data {
        let (from, to) = (from / PAGE * PAGE, to.next_multiple_of(PAGE).min(size));
        match pages.last_mut() {
            Some(last) if last.1 >= from => last.1 = last.1.max(to),
            _ => pages.push((from, to)),
        }
    }
    pages
}

fn node(attr: &Attr, btime: Option<Timestamp>, flags: Option<u32>) -> TreeInode {
    let owner = Owner {
        perm: attr.perm,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
    };
    TreeInode {
        nlink: attr.nlink,
        size: attr.size,
        blocks: Some(attr.allocated.div_ceil(512)),
        flags,
        times: Some(Times {
            btime,
            ..Times::of(attr)
        }),
        ..TreeInode::new(attr.ino.0 & OBJECTID, attr.kind, owner)
    }
}

/// A file system without a mount.
struct Library<'a> {
    fs: &'a dyn FileSystem,
    detail: Detail,
}

/// An inode of a [`Library`]. Dropping it drops the reference.
struct Held<'a> {
    fs: &'a dyn FileSystem,
    ino: Ino,
    references: u64,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.references > 0 {
            self.fs.forget(self.ino, self.references);
        }
    }
}

impl<'a> Library<'a> {
    /// An inode to which the caller holds a reference.
    fn held(&self, ino: Ino) -> Held<'a> {
        Held {
            fs: self.fs,
            ino,
            references: 0,
        }
    }
}

fn say(error: Error) -> String {
    error.to_string()
}

impl<'a> Source for Library<'a> {
    type At = Held<'a>;

    fn root(&self) -> Result<Self::At> {
        Ok(self.held(self.fs.root()))
    }

    fn find(&self, dir: &Self::At, name: &[u8]) -> Result<Self::At> {
        let found = self.fs.lookup(dir.ino, name).map_err(say)?;
        Ok(Held {
            references: 1,
            ..self.held(found.ino())
        })
    }

    fn names(&self, dir: &Self::At) -> Result<Vec<Vec<u8>>> {
        let mut listed = Vec::new();
        let listing = self.fs.readdir(dir.ino, 0, &mut |entry| {
            listed.push(entry);
            ControlFlow::Continue(())
        });
        listing.map_err(say)?;
        let mut names = Vec::new();
        for entry in listed {
            let found = self.fs.lookup(dir.ino, &entry.name).map_err(say)?;
            self.fs.forget(found.ino(), 1);
            if (found.ino(), found.attr.kind) != (entry.ino, entry.kind) {
                return Err(format!("listed as {entry:?}, found {found:?}"));
            }
            names.push(entry.name);
        }
        Ok(names)
    }

    fn stat(&self, at: &Self::At) -> Result<Stat> {
        let attr = self.fs.getattr(at.ino).map_err(say)?;
        let flags = match (self.detail, attr.kind) {
            (Detail::Bytes, _) => Some(attr.flags.bits()),
            // Files that `lsattr` can open.
            (_, FileKind::Regular | FileKind::Directory) => Some(attr.flags.bits() | attr.layout),
            _ => None,
        };
        Ok(Stat {
            id: (0, attr.ino.0),
            node: node(&attr, Some(attr.btime), flags),
        })
    }

    fn readlink(&self, at: &Self::At) -> Result<Vec<u8>> {
        self.fs.readlink(at.ino).map_err(say)
    }

    fn xattrs(&self, at: &Self::At) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        let mut all = BTreeMap::new();
        for name in self.fs.listxattr(at.ino).map_err(say)? {
            let value = self.fs.getxattr(at.ino, &name).map_err(say)?;
            if all.insert(name, value).is_some() {
                return Err("an attribute is listed twice".to_owned());
            }
        }
        Ok(all)
    }

    fn read(&self, at: &Self::At, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.fs.read(at.ino, offset, buffer).map_err(say)
    }

    fn seek(&self, at: &Self::At, from: SeekFrom) -> Result<Option<u64>> {
        match self.fs.seek(at.ino, from) {
            Ok(found) => Ok(Some(found)),
            Err(Error::NoSuchOffset) => Ok(None),
            Err(error) => Err(say(error)),
        }
    }
}

/// A mount. Every directory is held open and its names are reached through its descriptor
/// (`/proc/self/fd/N/NAME`), so that paths may be longer than one system call takes.
struct Mounted<'a> {
    top: &'a Path,
    detail: Detail,
}

/// An inode of a mount; a directory and a regular file are open.
struct Open {
    place: PathBuf,
    file: Option<File>,
    meta: fs::Metadata,
}

impl Open {
    fn new(place: PathBuf) -> Result<Self> {
        let meta = fs::symlink_metadata(&place).map_err(io)?;
        let opened = (meta.is_dir() || meta.is_file()).then(|| {
            let mut options = fs::OpenOptions::new();
            options.read(true).custom_flags(libc::O_NONBLOCK);
            options.open(&place)
        });
        Ok(Self {
            file: opened.transpose().map_err(io)?,
            place,
            meta,
        })
    }

    fn file(&self) -> Result<&File> {
        self.file.as_ref().ok_or_else(|| "is not open".to_owned())
    }

    fn below(&self, name: &OsStr) -> Result<PathBuf> {
        let fd = self.file()?.as_raw_fd();
        Ok(Path::new(&format!("/proc/self/fd/{fd}")).join(name))
    }
}

fn io(error: impl Into<io::Error>) -> String {
    error.into().to_string()
}

impl Source for Mounted<'_> {
    type At = Open;

    fn root(&self) -> Result<Open> {
        Open::new(self.top.to_owned()).map_err(|why| format!("{}: {why}", self.top.display()))
    }

    fn find(&self, dir: &Open, name: &[u8]) -> Result<Open> {
        Open::new(dir.below(OsStr::from_bytes(name))?)
    }

    fn names(&self, dir: &Open) -> Result<Vec<Vec<u8>>> {
        let entries = fs::read_dir(dir.below(OsStr::new("."))?).map_err(io)?;
        let name = |entry: io::Result<fs::DirEntry>| {
            let entry = entry.map_err(io)?;
            Ok(entry.file_name().as_bytes().to_vec())
        };
        entries.map(name).collect()
    }

    fn stat(&self, at: &Open) -> Result<Stat> {
        let meta = &at.meta;
        let time = |sec, nsec: i64| Timestamp {
            sec,
            nsec: nsec as u32,
        };
        let attr = Attr {
            ino: Ino(meta.ino()),
            kind: FileKind::from_mode(meta.mode()).ok_or("is of no kind")?,
            perm: meta.mode() & 0o7777,
            nlink: meta.nlink() as u32,
            uid: meta.uid(),
            gid: meta.gid(),
            rdev: meta.rdev(),
            size: meta.size(),
            allocated: meta.blocks() * 512,
            atime: time(meta.atime(), meta.atime_nsec()),
            mtime: time(meta.mtime(), meta.mtime_nsec()),
            ctime: time(meta.ctime(), meta.ctime_nsec()),
            btime: Timestamp::default(),
            generation: 0,
            blksize: 0,
            flags: sapwood_vfs::InodeFlags::empty(),
            layout: 0,
        };
        let flags = match (self.detail, &at.file) {
            (Detail::Sums, Some(file)) => flags(file)?,
            _ => None,
        };
        Ok(Stat {
            id: (meta.dev(), meta.ino()),
            node: node(&attr, birth(&at.place)?, flags),
        })
    }

    fn readlink(&self, at: &Open) -> Result<Vec<u8>> {
        let target = fs::read_link(&at.place).map_err(io)?;
        Ok(target.as_os_str().as_bytes().to_vec())
    }

    fn xattrs(&self, at: &Open) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        let mut names = vec![0; 128 << 10];
        let len = rustix::fs::llistxattr(&at.place, &mut names[..]).map_err(io)?;
        let mut all = BTreeMap::new();
        for name in names[..len].split_inclusive(|byte| *byte == 0) {
            let name = CStr::from_bytes_with_nul(name).map_err(|error| error.to_string())?;
            let mut value = vec![0; 64 << 10];
            let len = rustix::fs::lgetxattr(&at.place, name, &mut value[..]).map_err(io)?;
            value.truncate(len);
            all.insert(name.to_bytes().to_vec(), value);
        }
        Ok(all)
    }

    fn read(&self, at: &Open, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        at.file()?.read_at(buffer, offset).map_err(io)
    }

    fn seek(&self, at: &Open, from: SeekFrom) -> Result<Option<u64>> {
        let from = match from {
            SeekFrom::Data(at) => rustix::fs::SeekFrom::Data(at),
            SeekFrom::Hole(at) => rustix::fs::SeekFrom::Hole(at),
        };
        match rustix::fs::seek(at.file()?, from) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NXIO) => Ok(None),
            Err(error) => Err(io(error)),
        }
    }
}

fn birth(place: &Path) -> Result<Option<Timestamp>> {
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    let stat = rustix::fs::statx(CWD, place, flags, StatxFlags::BTIME).map_err(io)?;
    let known = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME);
    let time = stat.stx_btime;
    Ok(known.then_some(Timestamp {
        sec: time.tv_sec,
        nsec: time.tv_nsec,
    }))
}

fn flags(file: &File) -> Result<Option<u32>> {
    match rustix::fs::ioctl_getflags(file) {
        Ok(flags) => Ok(Some(flags.bits())),
        Err(Errno::NOTTY | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(None),
        Err(error) => Err(io(error)),
    }
}
