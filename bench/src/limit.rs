//! The contestant `fuse-limit`: Sapwood's FUSE transport over a file system without work of its
//! own.
//!
//! # How it works [`Nothing`] keeps names, attributes and bytes in memory. It has no device, no
//! transaction and no rules beyond what a load needs. Each inode has a lock of its own, and an
//! operation takes them one after the other. So the time of a row here is a minimum for every file
//! system on this transport, and the ratio to it shows how much of a contestant's time is its own
//! work.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use sapwood_fuse::{Access, Choice, MountOptions};
use sapwood_vfs::{
    AllocMode, Attr, Content, CopyMode, Credentials, DirEntry, Entry, Error, FileKind, FileSystem,
    FsStat, Fsxattr, Ino, InodeFlags, NewInode, RenameMode, Result, SeekFrom, SetAttr, SetTime,
    SetXattrMode, Subvolumes, SyncKind, Timestamp, WriteMode,
};

/// Mounts it on `dir` and serves until the unmount. `options` is a list for `-o`. The supported
/// options are `io_uring`, `polling` and `allow_other`.
///
/// # Errors
/// The mount fails; an unknown option.
pub(crate) fn serve(dir: &Path, options: &str) -> crate::error::Result<()> {
    let mut mount = MountOptions {
        fsname: "fuse-limit".to_owned(),
        ..MountOptions::default()
    };
    for option in options.split(',').filter(|option| !option.is_empty()) {
        match option {
            "io_uring=on" => mount.io_uring = Choice::On,
            "io_uring=off" => mount.io_uring = Choice::Off,
            "polling=on" => mount.polling = Choice::On,
            "polling=off" => mount.polling = Choice::Off,
            "allow_other" => mount.access = Access::All,
            _ => return Err(crate::error::Error::new(format!("no option {option}"))),
        }
    }
    let session = sapwood_fuse::mount(Arc::new(Nothing::new()), dir, &mount)
        .map_err(|error| crate::error::Error::new(error.to_string()))?;
    Ok(session.wait()?)
}

const ROOT: Ino = Ino(1);
/// Locks of the table of inodes.
const SHARDS: u64 = 64;
const BLOCK: u32 = 4096;

/// The file system.
pub(crate) struct Nothing {
    inodes: Vec<RwLock<HashMap<u64, Arc<Mutex<Inode>>>>>,
    next: AtomicU64,
}

struct Inode {
    attr: Attr,
    references: u64,
    /// Content of a file, or target of a symbolic link.
    bytes: Vec<u8>,
    /// Names of a directory with their positions, and the entry at each position.
    positions: HashMap<Vec<u8>, u64>,
    entries: BTreeMap<u64, (Vec<u8>, Ino, FileKind)>,
    next_position: u64,
    parent: Ino,
}

impl Inode {
    fn find(&self, name: &[u8]) -> Result<Ino> {
        let position = self.positions.get(name).ok_or(Error::NotFound)?;
        self.entries
            .get(position)
            .map(|entry| entry.1)
            .ok_or(Error::NotFound)
    }

    fn add(&mut self, name: &[u8], ino: Ino, kind: FileKind) -> Result<()> {
        if self.attr.kind != FileKind::Directory {
            return Err(Error::NotDirectory);
        }
        if self.positions.contains_key(name) {
            return Err(Error::Exists);
        }
        self.next_position += 1;
        self.positions.insert(name.to_vec(), self.next_position);
        let entry = (name.to_vec(), ino, kind);
        self.entries.insert(self.next_position, entry);
        self.changed();
        Ok(())
    }

    fn remove(&mut self, name: &[u8]) -> Option<(Ino, FileKind)> {
        let position = self.positions.remove(name)?;
        let (_, ino, kind) = self.entries.remove(&position)?;
        self.changed();
        Some((ino, kind))
    }

    fn changed(&mut self) {
        self.attr.ctime = Timestamp::now();
        self.attr.mtime = self.attr.ctime;
    }

    fn set_len(&mut self, len: usize) {
        self.bytes.resize(len, 0);
        self.attr.size = len as u64;
        self.attr.allocated = self.attr.size.next_multiple_of(BLOCK.into());
    }
}

impl Nothing {
    pub(crate) fn new() -> Self {
        let this = Self {
            inodes: (0..SHARDS).map(|_| RwLock::default()).collect(),
            next: AtomicU64::new(ROOT.0),
        };
        this.make(&Credentials::ROOT, NewInode::Directory, 0o755, ROOT);
        this
    }

    fn shard(&self, ino: Ino) -> &RwLock<HashMap<u64, Arc<Mutex<Inode>>>> {
        &self.inodes[(ino.0 % SHARDS) as usize]
    }

    fn inode(&self, ino: Ino) -> Result<Arc<Mutex<Inode>>> {
        let found = self.shard(ino).read().get(&ino.0).cloned();
        found.ok_or(Error::Stale)
    }

    /// Makes an inode without a name, with a reference of the caller.
    fn make(&self, who: &Credentials, what: NewInode<'_>, perm: u32, parent: Ino) -> Attr {
        let ino = Ino(self.next.fetch_add(1, Ordering::Relaxed));
        let now = Timestamp::now();
        let (rdev, bytes) = match what {
            NewInode::CharDevice(rdev) | NewInode::BlockDevice(rdev) => (rdev, Vec::new()),
            NewInode::Symlink(target) => (0, target.to_vec()),
            _ => (0, Vec::new()),
        };
        let attr = Attr {
            ino,
            kind: what.kind(),
            perm: perm & !who.umask,
            nlink: 1,
            uid: who.uid,
            gid: who.gid,
            rdev,
            size: bytes.len() as u64,
            allocated: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            generation: 1,
            blksize: BLOCK,
            flags: InodeFlags::empty(),
            layout: 0,
        };
        let inode = Inode {
            attr,
            references: 1,
            bytes,
            positions: HashMap::new(),
            entries: BTreeMap::new(),
            next_position: 0,
            parent,
        };
        let inode = Arc::new(Mutex::new(inode));
        self.shard(ino).write().insert(ino.0, inode);
        attr
    }

    /// The inode lost a name.
    fn unlinked(&self, ino: Ino) -> Result<()> {
        let inode = self.inode(ino)?;
        let mut inode = inode.lock();
        inode.attr.nlink = inode.attr.nlink.saturating_sub(1);
        inode.attr.ctime = Timestamp::now();
        if inode.attr.nlink == 0 && inode.references == 0 {
            self.shard(ino).write().remove(&ino.0);
        }
        Ok(())
    }

    fn entry(&self, ino: Ino) -> Result<Entry> {
        let inode = self.inode(ino)?;
        let mut inode = inode.lock();
        inode.references += 1;
        Ok(Entry { attr: inode.attr })
    }
}

impl FileSystem for Nothing {
    fn kind(&self) -> &'static str {
        "nothing"
    }

    fn root(&self) -> Ino {
        ROOT
    }

    fn read_only(&self) -> bool {
        false
    }

    fn statfs(&self) -> Result<FsStat> {
        Ok(FsStat {
            block_size: BLOCK,
            blocks: 1 << 30,
            blocks_free: 1 << 29,
            blocks_available: 1 << 29,
            name_max: 255,
            ..FsStat::default()
        })
    }

    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Entry> {
        let found = self.inode(dir)?.lock().find(name)?;
        self.entry(found)
    }

    fn reference(&self, ino: Ino) -> Result<Entry> {
        self.entry(ino)
    }

    fn parent(&self, dir: Ino) -> Result<Entry> {
        let parent = self.inode(dir)?.lock().parent;
        self.entry(parent)
    }

    fn forget(&self, ino: Ino, count: u64) {
        let Ok(inode) = self.inode(ino) else {
            return;
        };
        let mut inode = inode.lock();
        inode.references = inode.references.saturating_sub(count);
        if inode.attr.nlink == 0 && inode.references == 0 {
            self.shard(ino).write().remove(&ino.0);
        }
    }

    fn referenced(&self) -> Vec<Ino> {
        Vec::new()
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        Ok(self.inode(ino)?.lock().attr)
    }

    fn setattr(&self, ino: Ino, changes: &SetAttr) -> Result<Attr> {
        let time = |time: SetTime| match time {
            SetTime::Now => Timestamp::now(),
            SetTime::To(time) => time,
        };
        let inode = self.inode(ino)?;
        let mut inode = inode.lock();
        if let Some(size) = changes.size {
            inode.set_len(usize::try_from(size).map_err(|_| Error::FileTooLarge)?);
            inode.changed();
        }
        let attr = &mut inode.attr;
        attr.perm = changes.perm.unwrap_or(attr.perm);
        attr.uid = changes.uid.unwrap_or(attr.uid);
        attr.gid = changes.gid.unwrap_or(attr.gid);
        attr.atime = changes.atime.map_or(attr.atime, time);
        attr.mtime = changes.mtime.map_or(attr.mtime, time);
        attr.ctime = Timestamp::now();
        Ok(*attr)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        Ok(self.inode(ino)?.lock().bytes.clone())
    }

    fn create(
        &self,
        who: &Credentials,
        dir: Ino,
        name: &[u8],
        what: NewInode<'_>,
        perm: u32,
    ) -> Result<Entry> {
        let parent = self.inode(dir)?;
        let attr = self.make(who, what, perm, dir);
        let added = parent.lock().add(name, attr.ino, attr.kind);
        if let Err(error) = added {
            self.shard(attr.ino).write().remove(&attr.ino.0);
            return Err(error);
        }
        Ok(Entry { attr })
    }

    fn most_filled(&self) -> u64 {
        0
    }

    fn create_filled(
        &self,
        _: &Credentials,
        _: Ino,
        _: &[u8],
        _: u32,
        _: &Content<'_>,
    ) -> Result<Option<Entry>> {
        Ok(None)
    }

    fn tmpfile(&self, _: &Credentials, _: Ino, _: u32) -> Result<Entry> {
        Err(Error::NotSupported)
    }

    fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Entry> {
        let (inode, kind) = {
            let inode = self.inode(ino)?;
            let kind = inode.lock().attr.kind;
            (inode, kind)
        };
        self.inode(dir)?.lock().add(name, ino, kind)?;
        inode.lock().attr.nlink += 1;
        self.entry(ino)
    }

    fn unlink(&self, dir: Ino, name: &[u8]) -> Result<()> {
        let removed = self.inode(dir)?.lock().remove(name);
        let (ino, _) = removed.ok_or(Error::NotFound)?;
        self.unlinked(ino)
    }

    fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<()> {
        let found = self.inode(dir)?.lock().find(name)?;
        if !self.inode(found)?.lock().entries.is_empty() {
            return Err(Error::NotEmpty);
        }
        self.unlink(dir, name)
    }

    fn rename(
        &self,
        from_dir: Ino,
        from_name: &[u8],
        to_dir: Ino,
        to_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        if !matches!(mode, RenameMode::Replace | RenameMode::NoReplace) {
            return Err(Error::NotSupported);
        }
        let target = self.inode(to_dir)?;
        if mode.is_no_replace() && target.lock().find(to_name).is_ok() {
            return Err(Error::Exists);
        }
        let moved = self.inode(from_dir)?.lock().remove(from_name);
        let (ino, kind) = moved.ok_or(Error::NotFound)?;
        let replaced = target.lock().remove(to_name);
        if let Some((replaced, _)) = replaced {
            self.unlinked(replaced)?;
        }
        target.lock().add(to_name, ino, kind)?;
        self.inode(ino)?.lock().parent = to_dir;
        Ok(())
    }

    fn readdir(
        &self,
        dir: Ino,
        from: u64,
        sink: &mut dyn FnMut(DirEntry) -> ControlFlow<()>,
    ) -> Result<()> {
        let dir = self.inode(dir)?;
        let entries: Vec<_> = {
            let dir = dir.lock();
            let rest = dir.entries.range(from + 1..);
            rest.map(|(at, entry)| (*at, entry.clone())).collect()
        };
        for (next, (name, ino, kind)) in entries {
            let entry = DirEntry {
                ino,
                next,
                kind,
                name,
            };
            if sink(entry).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let inode = self.inode(ino)?;
        let inode = inode.lock();
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let rest = inode.bytes.get(start..).unwrap_or_default();
        let count = rest.len().min(buf.len());
        buf[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8], mode: WriteMode) -> Result<u64> {
        let inode = self.inode(ino)?;
        let mut inode = inode.lock();
        let start = if mode.append {
            inode.bytes.len()
        } else {
            usize::try_from(offset).map_err(|_| Error::FileTooLarge)?
        };
        let end = start.checked_add(data.len()).ok_or(Error::FileTooLarge)?;
        if end > inode.bytes.len() {
            inode.set_len(end);
        }
        inode.bytes[start..end].copy_from_slice(data);
        inode.changed();
        Ok(end as u64)
    }

    fn fallocate(&self, _: Ino, _: u64, _: u64, _: AllocMode) -> Result<()> {
        Err(Error::NotSupported)
    }

    fn seek(&self, ino: Ino, from: SeekFrom) -> Result<u64> {
        let size = self.inode(ino)?.lock().attr.size;
        match from {
            SeekFrom::Data(at) | SeekFrom::Hole(at) if at >= size => Err(Error::NoSuchOffset),
            SeekFrom::Data(at) => Ok(at),
            SeekFrom::Hole(_) => Ok(size),
        }
    }

    fn copy_range(&self, _: Ino, _: u64, _: Ino, _: u64, _: u64, _: CopyMode) -> Result<u64> {
        Err(Error::NotSupported)
    }

    fn fsync(&self, _: Ino, _: SyncKind) -> Result<()> {
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn getxattr(&self, _: Ino, _: &[u8]) -> Result<Vec<u8>> {
        Err(Error::NoAttribute)
    }

    fn setxattr(&self, _: Ino, _: &[u8], _: &[u8], _: SetXattrMode) -> Result<()> {
        Err(Error::NotSupported)
    }

    fn listxattr(&self, _: Ino) -> Result<Vec<Vec<u8>>> {
        Ok(Vec::new())
    }

    fn removexattr(&self, _: Ino, _: &[u8]) -> Result<()> {
        Err(Error::NoAttribute)
    }

    fn set_flags(&self, _: Ino, _: InodeFlags) -> Result<()> {
        Err(Error::NotSupported)
    }

    fn forgo_checksums(&self, _: Ino) -> Result<()> {
        Err(Error::NotSupported)
    }

    fn fsxattr(&self, _: Ino) -> Result<Fsxattr> {
        Ok(Fsxattr::default())
    }

    fn set_fsxattr(&self, _: Ino, _: &Fsxattr) -> Result<()> {
        Err(Error::NotSupported)
    }

    fn subvolumes(&self) -> Option<&dyn Subvolumes> {
        None
    }

    fn stats_json(&self) -> String {
        "{}".to_owned()
    }

    fn first_error(&self) -> Option<String> {
        None
    }

    fn unmount(&self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Place;

    #[test]
    fn it_does_what_a_load_needs() {
        let fs = Arc::new(Nothing::new());
        let root = Place::Library(fs.clone()).root().unwrap();
        let dir = root.mkdir("dir").unwrap();
        let file = dir.create("one").unwrap();
        assert!(dir.create("one").is_err());
        file.write(5, b"text").unwrap();
        let mut found = [1; 9];
        file.read(0, &mut found).unwrap();
        assert_eq!(&found, b"\0\0\0\0\0text");
        dir.rename("one", "two").unwrap();
        assert!(dir.open("one").is_err());
        assert_eq!(dir.stat_all().unwrap(), 1);
        assert!(matches!(fs.rmdir(ROOT, b"dir"), Err(Error::NotEmpty)));
        dir.unlink("two").unwrap();
        assert_eq!(dir.stat_all().unwrap(), 0);
        // The file is there until its last reference is gone.
        file.write(0, b"more").unwrap();
        drop(file);
        let all = || {
            fs.inodes
                .iter()
                .map(|some| some.read().len())
                .sum::<usize>()
        };
        assert_eq!(all(), 2, "the root and the directory");
    }

    #[test]
    fn a_listing_continues_after_removals() {
        let fs = Nothing::new();
        for number in 0..10 {
            let name = format!("{number}");
            let what = NewInode::Regular;
            fs.create(&Credentials::ROOT, ROOT, name.as_bytes(), what, 0o644)
                .unwrap();
        }
        let mut names = Vec::new();
        let mut next = 0;
        for _ in 0..10 {
            fs.readdir(ROOT, next, &mut |entry| {
                next = entry.next;
                names.push(entry.name);
                ControlFlow::Break(())
            })
            .unwrap();
            fs.unlink(ROOT, names.last().unwrap()).unwrap();
        }
        assert_eq!(names.concat(), b"0123456789");
    }
}
