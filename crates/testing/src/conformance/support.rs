//! The tools of the cases: the mounted file system, inodes that drop their reference automatically,
//! and checks that report where they failed.

use std::fmt::{Debug, Display};
use std::ops::ControlFlow;
use std::panic::Location;
use std::sync::{Arc, Barrier};

use parking_lot::Mutex;

use super::case::{Capabilities, Target, panic_text};
use sapwood_vfs::{
    AllocMode, Attr, CopyMode, Credentials, DirEntry, Entry, Error, FileSystem, Ino, InodeFlags,
    NewInode, RenameMode, Result, SeekFrom, SetAttr, SetTime, SetXattrMode, Subvolumes, Timestamp,
    WriteMode,
};

/// Why a case failed, and where.
#[derive(Debug)]
pub(super) struct Fault {
    text: String,
    at: &'static Location<'static>,
}

impl Fault {
    #[track_caller]
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            at: Location::caller(),
        }
    }
}

impl Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}: {}", self.at.file(), self.at.line(), self.text)
    }
}

impl From<Error> for Fault {
    #[track_caller]
    fn from(error: Error) -> Self {
        Self::new(format!("unexpected error: {error:?}"))
    }
}

pub(super) type Outcome<T = ()> = std::result::Result<T, Fault>;

/// Fails with `text` unless `holds`.
#[track_caller]
pub(super) fn check(holds: bool, text: impl Display) -> Outcome {
    if holds {
        Ok(())
    } else {
        Err(Fault::new(text.to_string()))
    }
}

/// Fails unless both are equal.
#[track_caller]
pub(super) fn same<T: Debug + PartialEq<U>, U: Debug>(got: T, want: U) -> Outcome {
    check(got == want, format_args!("got {got:?}, want {want:?}"))
}

/// Fails unless both hold the same bytes, and reports the first difference.
#[track_caller]
pub(super) fn same_bytes(got: &[u8], want: &[u8]) -> Outcome {
    let lengths = got.len() == want.len();
    check(
        lengths,
        format_args!("{} bytes, not {}", got.len(), want.len()),
    )?;
    match got.iter().zip(want).position(|(got, want)| got != want) {
        None => Ok(()),
        Some(at) => Err(Fault::new(format!(
            "byte {at} is {:#04x}, not {:#04x}",
            got[at], want[at]
        ))),
    }
}

/// Fails unless the call failed with exactly this error.
#[track_caller]
pub(super) fn refused<T>(result: Result<T>, want: Error) -> Outcome {
    match result {
        Ok(_) => Err(Fault::new(format!("succeeded, want {want:?}"))),
        Err(got) => check(
            got == want,
            format_args!("failed with {got:?}, want {want:?}"),
        ),
    }
}

/// Fails if the call succeeded.
#[track_caller]
pub(super) fn fails<T>(result: Result<T>) -> Outcome {
    check(result.is_err(), "succeeded, want an error")
}

/// Runs `body` in `count` threads that start together, and passes each its number.
#[track_caller]
pub(super) fn parallel(count: usize, body: impl Fn(usize) -> Outcome + Sync) -> Outcome {
    let barrier = Barrier::new(count);
    std::thread::scope(|scope| {
        let (barrier, body) = (&barrier, &body);
        let start = |number| {
            scope.spawn(move || {
                barrier.wait();
                body(number)
            })
        };
        let workers: Vec<_> = (0..count).map(start).collect();
        let ends: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        for end in ends {
            end.map_err(|payload| Fault::new(format!("panicked: {}", panic_text(&*payload))))??;
        }
        Ok(())
    })
}

/// `len` bytes that depend on `seed` and on their position.
pub(super) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut bytes = vec![0; len];
    random.fill(&mut bytes);
    bytes
}

/// An ordinary user without capabilities, in group `gid`.
pub(super) fn user(uid: u32, gid: u32) -> Credentials {
    Credentials {
        uid,
        gid,
        umask: 0,
        keep_setgid: false,
    }
}

/// A time in 2001, long before every test run.
pub(super) const LONG_AGO: Timestamp = Timestamp {
    sec: 1_000_000_000,
    nsec: 123_456_789,
};

/// The mounted file system of a case.
pub(super) struct Fixture {
    pub(super) capabilities: Capabilities,
    /// Locked so that threads of a case can share the fixture.
    target: Mutex<Box<dyn Target>>,
    mounted: Option<Arc<dyn FileSystem>>,
}

impl Fixture {
    pub(super) fn new(
        capabilities: Capabilities,
        mut target: Box<dyn Target>,
    ) -> std::result::Result<Self, String> {
        let mounted = target.mount(false)?;
        Ok(Self {
            capabilities,
            target: Mutex::new(target),
            mounted: Some(mounted),
        })
    }

    /// Unmounts unless that was done already, and lets the target check itself.
    pub(super) fn finish(mut self) -> std::result::Result<(), String> {
        if let Some(fs) = self.mounted.take() {
            fs.unmount()
                .map_err(|error| format!("unmount at the end: {error:?}"))?;
        }
        self.target.get_mut().check()
    }

    #[track_caller]
    pub(super) fn shared(&self) -> Arc<dyn FileSystem> {
        match &self.mounted {
            Some(fs) => Arc::clone(fs),
            None => panic!("the case uses a file system that it unmounted"),
        }
    }

    #[track_caller]
    pub(super) fn fs(&self) -> &dyn FileSystem {
        match &self.mounted {
            Some(fs) => fs.as_ref(),
            None => panic!("the case uses a file system that it unmounted"),
        }
    }

    /// The root directory, which needs no reference.
    pub(super) fn root(&self) -> HeldInode<'_> {
        HeldInode {
            fs: self.fs(),
            ino: self.fs().root(),
            held: false,
        }
    }

    /// The inode of an entry; the node takes over the reference of the entry.
    pub(super) fn node(&self, entry: Entry) -> HeldInode<'_> {
        HeldInode::of(self.fs(), entry)
    }

    /// The operations on subvolumes.
    pub(super) fn subvolumes(&self) -> Outcome<&dyn Subvolumes> {
        let subvolumes = self.fs().subvolumes();
        subvolumes.ok_or_else(|| Fault::new("no subvolumes, though the engine should have them"))
    }

    pub(super) fn unmount(&mut self) -> Outcome {
        if let Some(fs) = self.mounted.take() {
            fs.unmount()?;
        }
        Ok(())
    }

    /// Unmounts and mounts again. The compiler ensures that every [`HeldInode`] was dropped, because
    /// each one borrows the fixture.
    pub(super) fn remount(&mut self, read_only: bool) -> Outcome {
        self.unmount()?;
        let mounted = self.target.get_mut().mount(read_only).map_err(Fault::new)?;
        self.mounted = Some(mounted);
        Ok(())
    }
}

/// An inode with a reference, which is dropped with this value.
pub(super) struct HeldInode<'a> {
    fs: &'a dyn FileSystem,
    ino: Ino,
    held: bool,
}

impl Drop for HeldInode<'_> {
    fn drop(&mut self) {
        if self.held {
            self.fs.forget(self.ino, 1);
        }
    }
}

impl<'a> HeldInode<'a> {
    pub(super) fn of(fs: &'a dyn FileSystem, entry: Entry) -> Self {
        Self {
            fs,
            ino: entry.ino(),
            held: true,
        }
    }

    pub(super) fn ino(&self) -> Ino {
        self.ino
    }

    pub(super) fn fs(&self) -> &'a dyn FileSystem {
        self.fs
    }

    pub(super) fn attr(&self) -> Result<Attr> {
        self.fs.getattr(self.ino)
    }

    pub(super) fn nlink(&self) -> Result<u32> {
        Ok(self.attr()?.nlink)
    }

    pub(super) fn size(&self) -> Result<u64> {
        Ok(self.attr()?.size)
    }

    fn held(&self, entry: Result<Entry>) -> Result<Self> {
        entry.map(|entry| Self::of(self.fs, entry))
    }

    /// One more reference to the same inode.
    pub(super) fn again(&self) -> Result<Self> {
        self.held(self.fs.reference(self.ino))
    }

    pub(super) fn parent(&self) -> Result<Self> {
        self.held(self.fs.parent(self.ino))
    }

    // Names in this directory.

    pub(super) fn find(&self, name: impl AsRef<[u8]>) -> Result<Self> {
        self.held(self.fs.lookup(self.ino, name.as_ref()))
    }

    /// The inode at the end of a path of plain names.
    pub(super) fn walk(&self, path: &str) -> Result<Self> {
        let mut names = path.split('/');
        let mut at = self.find(names.next().unwrap_or_default())?;
        for name in names {
            at = at.find(name)?;
        }
        Ok(at)
    }

    #[track_caller]
    pub(super) fn lacks(&self, name: impl AsRef<[u8]>) -> Outcome {
        refused(self.find(name), Error::NotFound)
    }

    pub(super) fn make_as(
        &self,
        who: &Credentials,
        name: impl AsRef<[u8]>,
        what: NewInode<'_>,
        perm: u32,
    ) -> Result<Self> {
        self.held(self.fs.create(who, self.ino, name.as_ref(), what, perm))
    }

    pub(super) fn make(
        &self,
        name: impl AsRef<[u8]>,
        what: NewInode<'_>,
        perm: u32,
    ) -> Result<Self> {
        self.make_as(&Credentials::ROOT, name, what, perm)
    }

    pub(super) fn file(&self, name: impl AsRef<[u8]>) -> Result<Self> {
        self.make(name, NewInode::Regular, 0o644)
    }

    /// A new file with this content.
    pub(super) fn file_of(&self, name: impl AsRef<[u8]>, content: &[u8]) -> Result<Self> {
        let file = self.file(name)?;
        file.write(0, content)?;
        Ok(file)
    }

    pub(super) fn dir(&self, name: impl AsRef<[u8]>) -> Result<Self> {
        self.make(name, NewInode::Directory, 0o755)
    }

    pub(super) fn symlink(&self, name: impl AsRef<[u8]>, target: &[u8]) -> Result<Self> {
        self.make(name, NewInode::Symlink(target), 0o777)
    }

    pub(super) fn tmpfile(&self, perm: u32) -> Result<Self> {
        self.held(self.fs.tmpfile(&Credentials::ROOT, self.ino, perm))
    }

    /// Gives `inode` one more name in this directory, and drops the reference of the entry.
    pub(super) fn link(&self, inode: &Self, name: impl AsRef<[u8]>) -> Result<()> {
        self.held(self.fs.link(inode.ino, self.ino, name.as_ref()))
            .map(drop)
    }

    pub(super) fn unlink(&self, name: impl AsRef<[u8]>) -> Result<()> {
        self.fs.unlink(self.ino, name.as_ref())
    }

    pub(super) fn rmdir(&self, name: impl AsRef<[u8]>) -> Result<()> {
        self.fs.rmdir(self.ino, name.as_ref())
    }

    pub(super) fn rename_to(
        &self,
        name: impl AsRef<[u8]>,
        to: &Self,
        to_name: impl AsRef<[u8]>,
        mode: RenameMode,
    ) -> Result<()> {
        self.fs
            .rename(self.ino, name.as_ref(), to.ino, to_name.as_ref(), mode)
    }

    /// Renames within this directory and replaces the target.
    pub(super) fn rename(&self, name: impl AsRef<[u8]>, to_name: impl AsRef<[u8]>) -> Result<()> {
        self.rename_to(name, self, to_name, RenameMode::Replace)
    }

    /// Up to `limit` entries, beginning at position `from`.
    pub(super) fn page(&self, from: u64, limit: usize) -> Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        self.fs.readdir(self.ino, from, &mut |entry| {
            entries.push(entry);
            if entries.len() < limit {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })?;
        Ok(entries)
    }

    pub(super) fn list(&self) -> Result<Vec<DirEntry>> {
        self.page(0, usize::MAX)
    }

    /// Names in it, sorted.
    pub(super) fn names(&self) -> Result<Vec<String>> {
        let text = |entry: DirEntry| String::from_utf8_lossy(&entry.name).into_owned();
        let mut names: Vec<_> = self.list()?.into_iter().map(text).collect();
        names.sort();
        Ok(names)
    }

    // Content of this file.

    pub(super) fn write(&self, offset: u64, data: &[u8]) -> Result<u64> {
        self.write_mode(offset, data, WriteMode::default())
    }

    pub(super) fn write_mode(&self, offset: u64, data: &[u8], mode: WriteMode) -> Result<u64> {
        self.fs.write(self.ino, offset, data, mode)
    }

    pub(super) fn append(&self, data: &[u8]) -> Result<u64> {
        let mode = WriteMode {
            append: true,
            ..WriteMode::default()
        };
        self.write_mode(0, data, mode)
    }

    pub(super) fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        // Bytes that the read does not overwrite must not look like zeros of the file.
        let mut buf = vec![0xa5; len];
        let got = self.fs.read(self.ino, offset, &mut buf)?;
        buf.truncate(got);
        Ok(buf)
    }

    /// The whole content, of a file that fits in memory.
    pub(super) fn content(&self) -> Result<Vec<u8>> {
        let size = usize::try_from(self.size()?).map_err(|_| Error::Overflow)?;
        self.read(0, size + 10)
    }

    pub(super) fn truncate(&self, size: u64) -> Result<()> {
        let changes = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        self.set(&changes).map(|_| ())
    }

    pub(super) fn fallocate(&self, offset: u64, len: u64, mode: AllocMode) -> Result<()> {
        self.fs.fallocate(self.ino, offset, len, mode)
    }

    pub(super) fn data_from(&self, offset: u64) -> Result<u64> {
        self.fs.seek(self.ino, SeekFrom::Data(offset))
    }

    pub(super) fn hole_from(&self, offset: u64) -> Result<u64> {
        self.fs.seek(self.ino, SeekFrom::Hole(offset))
    }

    pub(super) fn copy_to(
        &self,
        offset: u64,
        to: &Self,
        to_offset: u64,
        len: u64,
        mode: CopyMode,
    ) -> Result<u64> {
        self.fs
            .copy_range(self.ino, offset, to.ino, to_offset, len, mode)
    }

    // Attributes.

    pub(super) fn set(&self, changes: &SetAttr) -> Result<Attr> {
        self.fs.setattr(self.ino, changes)
    }

    pub(super) fn chmod(&self, perm: u32) -> Result<Attr> {
        self.set(&SetAttr {
            perm: Some(perm),
            ..SetAttr::default()
        })
    }

    pub(super) fn chown(&self, uid: u32, gid: u32) -> Result<Attr> {
        self.set(&SetAttr {
            uid: Some(uid),
            gid: Some(gid),
            ..SetAttr::default()
        })
    }

    /// Sets all times except the time of creation to [`LONG_AGO`], so that a later change shows.
    pub(super) fn age(&self) -> Result<()> {
        let changes = SetAttr {
            atime: Some(SetTime::To(LONG_AGO)),
            mtime: Some(SetTime::To(LONG_AGO)),
            ctime: Some(LONG_AGO),
            ..SetAttr::default()
        };
        self.set(&changes).map(|_| ())
    }

    pub(super) fn set_flags(&self, flags: InodeFlags) -> Result<()> {
        self.fs.set_flags(self.ino, flags)
    }

    pub(super) fn flags(&self) -> Result<InodeFlags> {
        Ok(self.attr()?.flags)
    }

    pub(super) fn xattr(&self, name: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        self.fs.getxattr(self.ino, name.as_ref())
    }

    pub(super) fn set_xattr(&self, name: impl AsRef<[u8]>, value: &[u8]) -> Result<()> {
        self.set_xattr_mode(name, value, SetXattrMode::Any)
    }

    pub(super) fn set_xattr_mode(
        &self,
        name: impl AsRef<[u8]>,
        value: &[u8],
        mode: SetXattrMode,
    ) -> Result<()> {
        self.fs.setxattr(self.ino, name.as_ref(), value, mode)
    }

    pub(super) fn remove_xattr(&self, name: impl AsRef<[u8]>) -> Result<()> {
        self.fs.removexattr(self.ino, name.as_ref())
    }

    /// Names of its extended attributes, sorted.
    pub(super) fn xattrs(&self) -> Result<Vec<String>> {
        let list = self.fs.listxattr(self.ino)?;
        let text = |name: Vec<u8>| String::from_utf8_lossy(&name).into_owned();
        let mut names: Vec<_> = list.into_iter().map(text).collect();
        names.sort();
        Ok(names)
    }
}
