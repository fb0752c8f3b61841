//! A file system with a planted bug, which the conformance suite and the model must find.

use std::ops::ControlFlow;

use sapwood_testing::MemoryFs;
use sapwood_vfs::{
    AllocMode, Attr, Content, CopyMode, Credentials, DirEntry, Entry, Error, FileSystem, FsStat,
    Fsxattr, Ino, InodeFlags, NewInode, RenameMode, Result, SeekFrom, SetAttr, SetXattrMode,
    Subvolumes, SyncKind, WriteMode,
};

/// The planted bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bug {
    /// A write that crosses a sector's end, and does not start at one, loses its last byte.
    WriteDropsTail,
    /// A truncation keeps the rest of the last sector.
    TruncateKeepsTail,
    /// `RENAME_NOREPLACE` replaces.
    NoReplaceReplaces,
    /// `RENAME_EXCHANGE` replaces.
    ExchangeIsRename,
    /// `RENAME_WHITEOUT` leaves nothing.
    WhiteoutIsForgotten,
    /// A new page of a listing skips one entry.
    ListingSkips,
    /// The last attribute is not listed.
    XattrNotListed,
    /// Setting an ACL does not change the mode.
    AclKeepsMode,
    /// Punching a hole does not zero partial sectors.
    PunchSparesEdges,
    /// A copy ends a sector early and reports the full length.
    CopyIsShort,
    /// The sticky bit gets lost.
    ChmodDropsSticky,
    /// `SEEK_DATA` finds the second sector of data.
    SeekSkipsData,
    /// An inode that lost its last name can get a new one.
    LinkRevives,
    /// References are not counted: the first `forget` drops all.
    ForgetTakesAll,
    /// A panic in `rmdir`.
    RmdirPanics,
}

/// All of them.
pub(crate) const BUGS: [Bug; 15] = [
    Bug::WriteDropsTail,
    Bug::TruncateKeepsTail,
    Bug::NoReplaceReplaces,
    Bug::ExchangeIsRename,
    Bug::WhiteoutIsForgotten,
    Bug::ListingSkips,
    Bug::XattrNotListed,
    Bug::AclKeepsMode,
    Bug::PunchSparesEdges,
    Bug::CopyIsShort,
    Bug::ChmodDropsSticky,
    Bug::SeekSkipsData,
    Bug::LinkRevives,
    Bug::ForgetTakesAll,
    Bug::RmdirPanics,
];

const SECTOR: u64 = 4096;

/// [`MemoryFs`] with a bug.
pub(crate) struct Faulty {
    inner: MemoryFs,
    bug: Bug,
}

impl Faulty {
    pub(crate) fn new(bug: Bug) -> Self {
        let inner = MemoryFs::new();
        Self { inner, bug }
    }

    pub(crate) fn inner(&self) -> &MemoryFs {
        &self.inner
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == bug
    }

    /// Number of bytes after `size` in the last sector.
    fn tail(&self, ino: Ino, size: u64) -> u64 {
        let mut buf = vec![0; (SECTOR - size % SECTOR) as usize];
        self.inner.read(ino, size, &mut buf).unwrap_or(0) as u64
    }
}

/// Implements methods by calls of the inner file system.
macro_rules! delegate {
    ($(fn $name:ident(&self $(, $arg:ident: $type:ty)*) $(-> $result:ty)?;)*) => {$(
        fn $name(&self $(, $arg: $type)*) $(-> $result)? {
            self.inner.$name($($arg),*)
        }
    )*};
}

impl FileSystem for Faulty {
    delegate! {
        fn kind(&self) -> &'static str;
        fn root(&self) -> Ino;
        fn read_only(&self) -> bool;
        fn statfs(&self) -> Result<FsStat>;
        fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Entry>;
        fn reference(&self, ino: Ino) -> Result<Entry>;
        fn parent(&self, dir: Ino) -> Result<Entry>;
        fn referenced(&self) -> Vec<Ino>;
        fn is_crowded(&self, ino: Ino) -> bool;
        fn crowd(&self) -> Vec<Ino>;
        fn getattr(&self, ino: Ino) -> Result<Attr>;
        fn readlink(&self, ino: Ino) -> Result<Vec<u8>>;
        fn create(&self, who: &Credentials, dir: Ino, name: &[u8], what: NewInode<'_>, perm: u32)
            -> Result<Entry>;
        fn most_filled(&self) -> u64;
        fn create_filled(&self, who: &Credentials, dir: Ino, name: &[u8], perm: u32,
            content: &Content<'_>) -> Result<Option<Entry>>;
        fn tmpfile(&self, who: &Credentials, dir: Ino, perm: u32) -> Result<Entry>;
        fn unlink(&self, dir: Ino, name: &[u8]) -> Result<()>;
        fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize>;
        fn fsync(&self, ino: Ino, kind: SyncKind) -> Result<()>;
        fn sync(&self) -> Result<()>;
        fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>>;
        fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()>;
        fn set_flags(&self, ino: Ino, flags: InodeFlags) -> Result<()>;
        fn forgo_checksums(&self, ino: Ino) -> Result<()>;
        fn fsxattr(&self, ino: Ino) -> Result<Fsxattr>;
        fn set_fsxattr(&self, ino: Ino, value: &Fsxattr) -> Result<()>;
        fn subvolumes(&self) -> Option<&dyn Subvolumes>;
        fn stats_json(&self) -> String;
        fn first_error(&self) -> Option<String>;
        fn unmount(&self) -> Result<()>;
    }

    fn forget(&self, ino: Ino, count: u64) {
        let count = if self.has(Bug::ForgetTakesAll) {
            u64::MAX
        } else {
            count
        };
        self.inner.forget(ino, count);
    }

    fn setattr(&self, ino: Ino, changes: &SetAttr) -> Result<Attr> {
        let mut changes = *changes;
        if self.has(Bug::ChmodDropsSticky) {
            changes.perm = changes.perm.map(|perm| perm & !0o1000);
        }
        if self.has(Bug::TruncateKeepsTail)
            && let Some(size) = changes.size
        {
            changes.size = Some(size + self.tail(ino, size));
        }
        self.inner.setattr(ino, &changes)
    }

    fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Entry> {
        match self.inner.link(ino, dir, name) {
            Err(Error::NotFound) if self.has(Bug::LinkRevives) => {
                let what = NewInode::Regular;
                self.inner
                    .create(&Credentials::ROOT, dir, name, what, 0o644)
            }
            other => other,
        }
    }

    fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<()> {
        assert!(!self.has(Bug::RmdirPanics), "a planted panic");
        self.inner.rmdir(dir, name)
    }

    fn rename(
        &self,
        from_dir: Ino,
        from_name: &[u8],
        to_dir: Ino,
        to_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        let mode = match (self.bug, mode) {
            (Bug::NoReplaceReplaces, RenameMode::NoReplace) => RenameMode::Replace,
            (Bug::ExchangeIsRename, RenameMode::Exchange) => RenameMode::Replace,
            (Bug::WhiteoutIsForgotten, RenameMode::Whiteout { replace: true, .. }) => {
                RenameMode::Replace
            }
            (Bug::WhiteoutIsForgotten, RenameMode::Whiteout { replace: false, .. }) => {
                RenameMode::NoReplace
            }
            (_, mode) => mode,
        };
        self.inner
            .rename(from_dir, from_name, to_dir, to_name, mode)
    }

    fn readdir(
        &self,
        dir: Ino,
        from: u64,
        sink: &mut dyn FnMut(DirEntry) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut skip = from != 0 && self.has(Bug::ListingSkips);
        self.inner.readdir(dir, from, &mut |entry| {
            if std::mem::replace(&mut skip, false) {
                ControlFlow::Continue(())
            } else {
                sink(entry)
            }
        })
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8], mode: WriteMode) -> Result<u64> {
        let end = self.inner.write(ino, offset, data, mode)?;
        let start = end - data.len() as u64;
        let crosses = !start.is_multiple_of(SECTOR) && (end - 1) / SECTOR > start / SECTOR;
        if self.has(Bug::WriteDropsTail) && !data.is_empty() && crosses {
            self.inner.write(ino, end - 1, &[0], mode)?;
        }
        Ok(end)
    }

    fn fallocate(&self, ino: Ino, offset: u64, len: u64, mode: AllocMode) -> Result<()> {
        if self.has(Bug::PunchSparesEdges) && mode == AllocMode::PunchHole {
            let start = offset.next_multiple_of(SECTOR);
            let end = (offset + len) / SECTOR * SECTOR;
            if start >= end {
                return self.inner.getattr(ino).map(drop);
            }
            return self.inner.fallocate(ino, start, end - start, mode);
        }
        self.inner.fallocate(ino, offset, len, mode)
    }

    fn seek(&self, ino: Ino, from: SeekFrom) -> Result<u64> {
        match (self.inner.seek(ino, from)?, from) {
            (at, SeekFrom::Data(_)) if self.has(Bug::SeekSkipsData) => {
                self.inner.seek(ino, SeekFrom::Data(at + SECTOR))
            }
            (at, _) => Ok(at),
        }
    }

    fn copy_range(
        &self,
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        len: u64,
        mode: CopyMode,
    ) -> Result<u64> {
        let inner = &self.inner;
        if self.has(Bug::CopyIsShort) && len > SECTOR {
            let len = len - SECTOR;
            let copied = inner.copy_range(from, from_offset, to, to_offset, len, mode)?;
            return Ok(copied + SECTOR);
        }
        inner.copy_range(from, from_offset, to, to_offset, len, mode)
    }

    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: SetXattrMode) -> Result<()> {
        let before = self.inner.getattr(ino)?;
        self.inner.setxattr(ino, name, value, mode)?;
        if self.has(Bug::AclKeepsMode) && name == sapwood_vfs::acl::ACCESS {
            let back = SetAttr {
                perm: Some(before.perm),
                ..SetAttr::default()
            };
            self.inner.setattr(ino, &back)?;
        }
        Ok(())
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let mut names = self.inner.listxattr(ino)?;
        if self.has(Bug::XattrNotListed) {
            names.pop();
        }
        Ok(names)
    }
}
