//! [`Rescued`]: a damaged file system behind the interface that commands and mounts use.

use std::ops::ControlFlow;

use sapwood_vfs::{
    AllocMode, Attr, Content, CopyMode, Credentials, DirEntry, Entry, Error, FileKind, FileSystem,
    FsStat, Fsxattr, Ino, InodeFlags, NewInode, RenameMode, Result, SeekFrom, SetAttr,
    SetXattrMode, Subvolumes, SyncKind, WriteMode,
};

/// Names and values of extended attributes.
pub type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// The files of a damaged image. Every method may fail with `Corrupt`, whose cause is a
/// [`Lost`](crate::Lost), or with `Io`.
pub trait Tree: Send + Sync {
    /// Kind of file system: `btrfs`, `ext4`.
    fn kind(&self) -> &'static str;

    /// The root directory.
    fn root(&self) -> Ino;

    /// Size of the file system. The free space of a damaged image is not known, and is 0.
    fn statfs(&self) -> FsStat;

    /// Attributes of an inode.
    ///
    /// # Errors
    /// `Stale` if nothing of the inode is left.
    fn attr(&self, ino: Ino) -> Result<Attr>;

    /// Lists a directory from a position on. Damage of the directory is the error of a call that
    /// lists no entry, so that a caller gets all entries before it.
    ///
    /// # Errors
    /// `NotDirectory`.
    fn entries(
        &self,
        dir: Ino,
        from: u64,
        sink: &mut dyn FnMut(DirEntry) -> ControlFlow<()>,
    ) -> Result<()>;

    /// The inode of a name.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`.
    fn find(&self, dir: Ino, name: &[u8]) -> Result<Ino> {
        let mut found = None;
        let mut from = 0;
        loop {
            let before = from;
            let listed = self.entries(dir, from, &mut |entry| {
                from = entry.next;
                if entry.name == name {
                    found = Some(entry.ino);
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(())
            });
            if let Some(ino) = found {
                return Ok(ino);
            }
            listed?;
            if from == before {
                return Err(Error::NotFound);
            }
        }
    }

    /// The directory that contains a directory.
    ///
    /// # Errors
    /// `NotDirectory`.
    fn parent(&self, dir: Ino) -> Result<Ino>;

    /// Target of a symbolic link.
    ///
    /// # Errors
    /// `Invalid` for another kind of inode.
    fn link_target(&self, ino: Ino) -> Result<Vec<u8>>;

    /// Reads a file. The number of bytes is smaller than asked for only at the end of the file.
    ///
    /// # Errors
    /// `Invalid` for another kind of inode. Any damage in the range fails all of it.
    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize>;

    /// Finds data or a hole. The start of a lost range counts as a hole, too.
    ///
    /// # Errors
    /// `NoSuchOffset`; `Corrupt` in a lost range.
    fn seek(&self, ino: Ino, from: SeekFrom) -> Result<u64>;

    /// All extended attributes.
    ///
    /// # Errors
    /// Neither format returns an error. A lost attribute is left out.
    fn xattrs(&self, ino: Ino) -> Result<Xattrs>;

    /// Further facts about the state that was opened, as a JSON object.
    fn stats_json(&self) -> String {
        "{}".to_owned()
    }
}

/// A read-only file system over a [`Tree`]. Inodes need no references.
pub struct Rescued(Box<dyn Tree>);

impl Rescued {
    /// The file system of a tree.
    #[must_use]
    pub fn new(tree: impl Tree + 'static) -> Self {
        Self(Box::new(tree))
    }

    fn entry(&self, ino: Ino) -> Result<Entry> {
        Ok(Entry {
            attr: self.0.attr(ino)?,
        })
    }
}

impl std::fmt::Debug for Rescued {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Rescued({})", self.0.kind())
    }
}

impl FileSystem for Rescued {
    fn kind(&self) -> &'static str {
        self.0.kind()
    }

    fn root(&self) -> Ino {
        self.0.root()
    }

    fn read_only(&self) -> bool {
        true
    }

    fn statfs(&self) -> Result<FsStat> {
        Ok(self.0.statfs())
    }

    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Entry> {
        self.entry(self.0.find(dir, name)?)
    }

    fn reference(&self, ino: Ino) -> Result<Entry> {
        self.entry(ino)
    }

    fn parent(&self, dir: Ino) -> Result<Entry> {
        self.entry(self.0.parent(dir)?)
    }

    fn forget(&self, _ino: Ino, _count: u64) {}

    fn referenced(&self) -> Vec<Ino> {
        Vec::new()
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.0.attr(ino)
    }

    fn setattr(&self, _ino: Ino, _changes: &SetAttr) -> Result<Attr> {
        Err(Error::ReadOnly)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.0.link_target(ino)
    }

    fn create(
        &self,
        _who: &Credentials,
        _dir: Ino,
        _name: &[u8],
        _what: NewInode<'_>,
        _perm: u32,
    ) -> Result<Entry> {
        Err(Error::ReadOnly)
    }

    fn most_filled(&self) -> u64 {
        0
    }

    fn create_filled(
        &self,
        _who: &Credentials,
        _dir: Ino,
        _name: &[u8],
        _perm: u32,
        _content: &Content<'_>,
    ) -> Result<Option<Entry>> {
        Err(Error::ReadOnly)
    }

    fn tmpfile(&self, _who: &Credentials, _dir: Ino, _perm: u32) -> Result<Entry> {
        Err(Error::ReadOnly)
    }

    fn link(&self, _ino: Ino, _dir: Ino, _name: &[u8]) -> Result<Entry> {
        Err(Error::ReadOnly)
    }

    fn unlink(&self, _dir: Ino, _name: &[u8]) -> Result<()> {
        Err(Error::ReadOnly)
    }

    fn rmdir(&self, _dir: Ino, _name: &[u8]) -> Result<()> {
        Err(Error::ReadOnly)
    }

    fn rename(
        &self,
        _from_dir: Ino,
        _from_name: &[u8],
        _to_dir: Ino,
        _to_name: &[u8],
        _mode: RenameMode,
    ) -> Result<()> {
        Err(Error::ReadOnly)
    }

    fn readdir(
        &self,
        dir: Ino,
        from: u64,
        sink: &mut dyn FnMut(DirEntry) -> ControlFlow<()>,
    ) -> Result<()> {
        self.0.entries(dir, from, sink)
    }

    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.0.read(ino, offset, buf)
    }

    fn write(&self, _ino: Ino, _offset: u64, _data: &[u8], _mode: WriteMode) -> Result<u64> {
        Err(Error::ReadOnly)
    }

    fn fallocate(&self, _ino: Ino, _offset: u64, _len: u64, _mode: AllocMode) -> Result<()> {
        Err(Error::ReadOnly)
    }

    fn seek(&self, ino: Ino, from: SeekFrom) -> Result<u64> {
        self.0.seek(ino, from)
    }

    fn copy_range(
        &self,
        _from: Ino,
        _from_offset: u64,
        _to: Ino,
        _to_offset: u64,
        _len: u64,
        _mode: CopyMode,
    ) -> Result<u64> {
        Err(Error::ReadOnly)
    }

    fn fsync(&self, _ino: Ino, _kind: SyncKind) -> Result<()> {
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let all = self.0.xattrs(ino)?;
        let found = all.into_iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value).ok_or(Error::NoAttribute)
    }

    fn setxattr(&self, _: Ino, _: &[u8], _: &[u8], _: SetXattrMode) -> Result<()> {
        Err(Error::ReadOnly)
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let all = self.0.xattrs(ino)?;
        Ok(all.into_iter().map(|(name, _)| name).collect())
    }

    fn removexattr(&self, _ino: Ino, _name: &[u8]) -> Result<()> {
        Err(Error::ReadOnly)
    }

    fn set_flags(&self, _ino: Ino, _flags: InodeFlags) -> Result<()> {
        Err(Error::ReadOnly)
    }

    fn forgo_checksums(&self, _ino: Ino) -> Result<()> {
        Err(Error::ReadOnly)
    }

    fn fsxattr(&self, _ino: Ino) -> Result<Fsxattr> {
        Ok(Fsxattr::default())
    }

    fn set_fsxattr(&self, _ino: Ino, _value: &Fsxattr) -> Result<()> {
        Err(Error::ReadOnly)
    }

    fn subvolumes(&self) -> Option<&dyn Subvolumes> {
        None
    }

    fn stats_json(&self) -> String {
        self.0.stats_json()
    }

    fn first_error(&self) -> Option<String> {
        None
    }

    fn unmount(&self) -> Result<()> {
        Ok(())
    }
}

/// Attributes of a directory of which only the entries are known.
pub(crate) fn nameless_directory(ino: Ino) -> Attr {
    Attr {
        ino,
        kind: FileKind::Directory,
        perm: 0o755,
        nlink: 2,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        allocated: 0,
        atime: sapwood_vfs::Timestamp::default(),
        mtime: sapwood_vfs::Timestamp::default(),
        ctime: sapwood_vfs::Timestamp::default(),
        btime: sapwood_vfs::Timestamp::default(),
        generation: 0,
        blksize: 4096,
        flags: InodeFlags::empty(),
        layout: 0,
    }
}
