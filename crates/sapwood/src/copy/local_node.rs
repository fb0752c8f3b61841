//! A node of this machine: a descriptor of its directory, and one name in it.
//!
//! Every system call below an operand names one component and does not follow a link, so it stays
//! in the directory whatever the tree looks like meanwhile.

mod kept;

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock};

use crate::acls;
use crate::damage::{Content, Salvage, read_data, read_range};
use crate::host::{self, Found, Named, Special};
use crate::progress::Stop;
use crate::vfs::{Cause, FileKind};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, SeekFrom, Stat};
use rustix::io::Errno;

use super::error::{CopyCause, CopyError, Result};
use super::preloaded;
use super::side::{
    CHUNK, Fill, Handle, Meta, New, Node, Rules, SET_ID, Scratch, Shown, Sink, SinkNode, Source,
    SourceNode, Take, Xattrs, single_name,
};
use crate::shown;

/// The directory at which the name of a node starts.
#[derive(Clone)]
enum Base {
    /// The user named it: the name is a path from the current directory.
    Current,
    /// The name is one component in this directory.
    In(Arc<OwnedFd>),
}

impl AsFd for Base {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Current => CWD,
            Self::In(dir) => dir.as_fd(),
        }
    }
}

/// Bytes that hold the names of the attributes of most files.
const FEW_NAMES: usize = 512;

/// A name in a directory that is held open.
pub(super) struct LocalNode {
    base: Base,
    name: Vec<u8>,
    /// A symbolic link at the end of `name` is followed. Set only for a name that the user gave.
    follow: bool,
    shown: String,
    meta: Meta,
    /// A regular file that fits into one piece and seems to have no holes.
    dense: bool,
    /// Ends the wait for a stream.
    stop: Stop,
    /// The node itself, once it was opened.
    opened: OnceLock<Arc<OwnedFd>>,
}

impl LocalNode {
    pub(super) fn named(name: Vec<u8>, follow: bool, stat: &Stat) -> Result<Self> {
        let shown = shown::name(&name);
        Self::new(Base::Current, name, follow, shown, stat)
    }

    /// A standard stream. Its size has no meaning, because reading starts at the descriptor's
    /// offset.
    pub(super) fn stream(fd: OwnedFd, shown: &str) -> Result<Self> {
        let stat = rustix::fs::fstat(&fd).map_err(|error| failure(shown, error))?;
        let mut node = Self::new(Base::Current, Vec::new(), false, shown.to_owned(), &stat)?;
        (node.meta.kind, node.meta.size) = (FileKind::Fifo, 0);
        node.opened = OnceLock::from(Arc::new(fd));
        Ok(node)
    }

    /// The same stream, as the source of a file whose mode the umask decides. Reading from it ends
    /// when `stop` asks for it.
    pub(super) fn into_input(mut self, stop: Stop, umask: u32) -> Self {
        self.meta.perm = 0o666 & !umask;
        Self { stop, ..self }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.is_stopped()
    }

    fn new(base: Base, name: Vec<u8>, follow: bool, shown: String, stat: &Stat) -> Result<Self> {
        let found = Found::of(stat);
        let path = || host::shown_path(base.as_fd(), OsStr::from_bytes(&name));
        let meta = preloaded::meta(path, follow).or_else(|| meta_of(&found));
        let meta = meta.ok_or_else(|| CopyError::on(&shown, CopyCause::UnknownKind))?;
        let opened = OnceLock::new();
        let dense = meta.size <= CHUNK as u64 && found.stored >= meta.size;
        Ok(Self {
            base,
            name,
            follow,
            shown,
            meta,
            dense,
            stop: Stop::new(),
            opened,
        })
    }

    fn on<T>(&self, result: rustix::io::Result<T>) -> Result<T> {
        result.map_err(|error| failure(&self.shown, error))
    }

    fn os_name(&self) -> &OsStr {
        OsStr::from_bytes(&self.name)
    }

    /// Opens the node, or returns the descriptor that is open.
    fn descriptor(&self, flags: OFlags) -> Result<&Arc<OwnedFd>> {
        if let Some(fd) = self.opened.get() {
            return Ok(fd);
        }
        let nofollow = if self.follow {
            OFlags::empty()
        } else {
            OFlags::NOFOLLOW
        };
        let flags = flags | nofollow | OFlags::CLOEXEC | OFlags::NOCTTY;
        let fd = self.on(rustix::fs::openat(
            &self.base,
            self.os_name(),
            flags,
            Mode::empty(),
        ))?;
        Ok(self.opened.get_or_init(|| Arc::new(fd)))
    }

    fn directory(&self) -> Result<&Arc<OwnedFd>> {
        self.descriptor(OFlags::RDONLY | OFlags::DIRECTORY)
    }

    /// The node for calls on attributes.
    fn host(&self) -> Named<'_> {
        let opened = self.opened.get().map(|fd| &**fd);
        Named::new(self.base.as_fd(), self.os_name(), opened)
    }

    fn child_shown(&self, name: &[u8]) -> String {
        let slash = if self.shown.ends_with('/') { "" } else { "/" };
        format!("{}{slash}{}", self.shown, shown::name(name))
    }

    fn read_at(&self, fd: &OwnedFd, buf: &mut [u8], at: u64) -> Result<usize> {
        loop {
            match rustix::io::pread(fd, &mut *buf, at) {
                Err(Errno::INTR) => {}
                other => return self.on(other),
            }
        }
    }

    /// Reads a file that has no holes. A short read that ends at the known size is the end of the
    /// file, so one call reads a small file.
    fn read_dense(
        &self,
        fd: &OwnedFd,
        buf: &mut [u8],
        salvage: &mut Salvage,
        take: &mut Take<'_>,
    ) -> Result<()> {
        let mut at = 0;
        loop {
            let count = match self.read_at(fd, buf, at) {
                Err(error) if error.is_damage() && at < self.meta.size => {
                    let rest = at..self.meta.size;
                    return read_range(&OnHost(self, fd), rest, buf, salvage, take);
                }
                other => other?,
            };
            if count == 0 {
                return Ok(());
            }
            take(at, buf.get(..count).unwrap_or_default())?;
            at += count as u64;
            if at == self.meta.size && count < buf.len() {
                return Ok(());
            }
        }
    }

    fn find_child(&self, name: &[u8]) -> Result<Option<Self>> {
        single_name(self, name)?;
        let (dir, shown) = (Arc::clone(self.directory()?), self.child_shown(name));
        let stat =
            match rustix::fs::statat(&dir, OsStr::from_bytes(name), AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(Errno::NOENT) => return Ok(None),
                Err(error) => return Err(failure(&shown, error)),
            };
        Self::new(Base::In(dir), name.to_vec(), false, shown, &stat).map(Some)
    }

    fn duplicate(&self, flags: OFlags) -> Result<File> {
        let fd = self.descriptor(flags)?;
        self.on(rustix::io::fcntl_dupfd_cloexec(fd, 3))
            .map(File::from)
    }
}

impl Shown for LocalNode {
    fn shown(&self) -> String {
        self.shown.clone()
    }
}

impl Node for LocalNode {
    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn handle(&self) -> Result<Handle<'_>> {
        self.directory().map(|fd| Handle::Fd(fd.as_fd()))
    }
}

impl<'s> SourceNode<'s> for LocalNode {
    fn open(&self) -> Result<()> {
        // The open of a file does not block, in case a fifo has taken its place. A fifo that the
        // user named is read.
        let wait = match self.meta.kind {
            FileKind::Regular => OFlags::NONBLOCK,
            _ => OFlags::empty(),
        };
        self.descriptor(OFlags::RDONLY | wait).map(drop)
    }

    fn read(
        &self,
        scratch: &mut Scratch,
        salvage: &mut Salvage,
        take: &mut Take<'_>,
    ) -> Result<()> {
        self.open()?;
        let fd = self.descriptor(OFlags::RDONLY)?;
        let buf = &mut scratch.piece;
        match self.meta.kind {
            FileKind::Regular if self.dense => self.read_dense(fd, buf, salvage, take),
            FileKind::Regular => read_data(&OnHost(self, fd), self.meta.size, buf, salvage, take),
            _ => self.read_stream(fd, buf, take),
        }
    }

    fn whole<'b>(&self, scratch: &'b mut Scratch) -> Result<Option<&'b [u8]>> {
        if self.meta.kind != FileKind::Regular || !self.dense {
            return Ok(None);
        }
        let fd = self.descriptor(OFlags::RDONLY)?;
        let count = match self.read_at(fd, &mut scratch.piece, 0) {
            Err(error) if error.is_damage() => return Ok(None),
            other => other?,
        };
        // A file that changes during the copy has no defined content.
        let all = count as u64 == self.meta.size && count < scratch.piece.len();
        Ok(scratch.piece.get(..count).filter(|_| all))
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        let target = self.on(rustix::fs::readlinkat(
            &self.base,
            self.os_name(),
            Vec::new(),
        ))?;
        Ok(target.into_bytes())
    }

    fn xattrs(&self, scratch: &mut Scratch) -> Result<Xattrs> {
        let Scratch { names, value, .. } = scratch;
        let host = self.host();
        // The kernel allocates as much as it is given.
        let listed = match host.list_xattrs(names.get_mut(..FEW_NAMES).unwrap_or_default()) {
            Err(Errno::RANGE) => host.list_xattrs(names),
            other => other,
        };
        let len = match listed {
            Err(Errno::NOTSUP) => 0,
            other => self.on(other)?,
        };
        let list = names.get(..len).unwrap_or_default();
        let mut all = Vec::new();
        for name in list
            .split(|byte| *byte == 0)
            .filter(|name| !name.is_empty())
        {
            let os_name = OsStr::from_bytes(name);
            let len = self.on(host.xattr(os_name, &mut value[..]))?;
            all.push((name.to_vec(), value.get(..len).unwrap_or_default().to_vec()));
        }
        // File systems list them in different orders.
        all.sort();
        Ok(all)
    }

    fn names(&self, from: u64) -> Result<Vec<(Vec<u8>, u64)>> {
        if from != 0 {
            return Ok(Vec::new());
        }
        let mut names = Vec::new();
        for entry in self.on(rustix::fs::Dir::read_from(self.directory()?))? {
            let name = self.on(entry)?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push((name, u64::MAX));
            }
        }
        // The same tree makes the same image.
        names.sort();
        Ok(names)
    }

    fn child(&self, name: &[u8]) -> Result<Option<Source<'s>>> {
        let found = self.find_child(name)?;
        Ok(found.map(|node| Box::new(node) as Source<'s>))
    }
}

impl<'s> SinkNode<'s> for LocalNode {
    fn existing(&self, name: &[u8]) -> Result<Option<Sink<'s>>> {
        let found = self.find_child(name)?;
        Ok(found.map(|node| Box::new(node) as Sink<'s>))
    }

    fn create(&self, name: &[u8], rules: &Rules, like: &New<'_>) -> Result<Sink<'s>> {
        single_name(self, name)?;
        let (dir, os_name) = (self.directory()?, OsStr::from_bytes(name));
        let (meta, shown) = (like.meta, self.child_shown(name));
        // An archive copy grants nothing to other users before it has its owner.
        let perm = match rules.mode.filter(|_| meta.kind == FileKind::Regular) {
            Some(mode) => mode & 0o700 | 0o600,
            None if rules.archive => acls::private(meta.perm) | 0o600,
            None => meta.perm & 0o777,
        };
        let mode = host::mode(perm);
        let node = |kind| host::make_special(dir, os_name, kind, mode, meta.rdev).map(|()| None);
        let flags =
            OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = match meta.kind {
            FileKind::Regular => rustix::fs::openat(dir, os_name, flags, mode).map(Some),
            FileKind::Directory => {
                rustix::fs::mkdirat(dir, os_name, mode | Mode::RWXU).map(|()| None)
            }
            FileKind::Symlink => {
                rustix::fs::symlinkat(OsStr::from_bytes(like.target), dir, os_name).map(|()| None)
            }
            FileKind::CharDevice => node(Special::CharacterDevice),
            FileKind::BlockDevice => node(Special::BlockDevice),
            FileKind::Fifo => node(Special::Fifo),
            FileKind::Socket => node(Special::Socket),
        };
        let fail = |error| failure(&shown, error);
        let fd = made.map_err(fail)?;
        let stat = match &fd {
            Some(fd) => rustix::fs::fstat(fd),
            None => rustix::fs::statat(dir, os_name, AtFlags::SYMLINK_NOFOLLOW),
        };
        let stat = stat.map_err(fail)?;
        let mut node = Self::new(
            Base::In(Arc::clone(dir)),
            name.to_vec(),
            false,
            shown,
            &stat,
        )?;
        if node.meta.kind != meta.kind {
            return Err(CopyError::on(node.shown, CopyCause::Replaced));
        }
        if let Some(fd) = fd {
            node.opened = OnceLock::from(Arc::new(fd));
        } else if meta.kind == FileKind::Directory {
            node.directory()?;
        }
        Ok(Box::new(node))
    }

    fn link(&self, name: &[u8], old_dir: &dyn SinkNode<'s>, old: &[u8]) -> Result<()> {
        single_name(self, name)?;
        let Handle::Fd(from) = old_dir.handle()? else {
            return Err(CopyError::on(self.child_shown(name), CopyCause::LinkLeaves));
        };
        let (old, new) = (OsStr::from_bytes(old), OsStr::from_bytes(name));
        rustix::fs::linkat(from, old, self.directory()?, new, AtFlags::empty())
            .map_err(|error| failure(&self.child_shown(name), error))
    }

    fn remove(&self, name: &[u8]) -> Result<()> {
        single_name(self, name)?;
        rustix::fs::unlinkat(self.directory()?, OsStr::from_bytes(name), AtFlags::empty())
            .map_err(|error| failure(&self.child_shown(name), error))
    }

    fn truncate(&self, rules: &Rules) -> Result<()> {
        let fd = self.descriptor(OFlags::WRONLY | OFlags::TRUNC)?;
        let stat = self.on(rustix::fs::fstat(fd))?;
        let found = Found::of(&stat);
        let perm = found.mode & 0o7777;
        if FileKind::from_mode(found.mode) == Some(FileKind::Regular)
            && perm & SET_ID != 0
            && !rules.archive
        {
            self.set_mode(perm & !SET_ID)
        } else {
            Ok(())
        }
    }

    fn share(&self, from: &dyn SourceNode<'s>) -> Result<bool> {
        let files = [self.meta.kind, from.meta().kind];
        if files != [FileKind::Regular; 2] {
            return Ok(false);
        }
        let Handle::Fd(source) = from.handle()? else {
            return Ok(false);
        };
        // Most file systems cannot, and some only within one subvolume: then the bytes are copied.
        let to = self.descriptor(OFlags::WRONLY)?;
        Ok(host::share(to, source))
    }

    fn write(&self, fill: &mut Fill<'_>) -> Result<()> {
        let file = self.duplicate(OFlags::WRONLY)?;
        if !matches!(self.meta.kind, FileKind::Regular | FileKind::BlockDevice) {
            return self.write_stream(file, fill);
        }
        let on = |error: std::io::Error| match Errno::from_io_error(&error) {
            Some(errno) => failure(&self.shown, errno),
            None => CopyError::on(&self.shown, error),
        };
        let mut end = 0;
        let size = fill(&mut |at, data| {
            end = at + data.len() as u64;
            file.write_all_at(data, at).map_err(on)
        })?;
        if end < size && self.meta.kind == FileKind::Regular {
            file.set_len(size).map_err(on)
        } else {
            Ok(())
        }
    }

    fn finish(&self, rules: &Rules, meta: &Meta, xattrs: &Xattrs, made: bool) -> Result<()> {
        let mode = rules.mode.filter(|_| self.meta.kind == FileKind::Regular);
        if let Some(mode) = mode.filter(|_| !rules.archive) {
            return self.set_mode(mode);
        }
        if !rules.archive {
            // Only a new directory may have more rights than it gets at the end.
            let more = made && meta.kind == FileKind::Directory && meta.perm & 0o700 != 0o700;
            return if more {
                self.set_mode(self.meta.perm & meta.perm & 0o777)
            } else {
                Ok(())
            };
        }
        // If the user named an existing terminal, pipe or device, it keeps its attributes.
        if !made && !matches!(self.meta.kind, FileKind::Regular | FileKind::Directory) {
            return Ok(());
        }
        // This process may lose its rights to the node with the owner.
        self.set_times(meta)?;
        if !rules.inherits || acls::has_any(xattrs) {
            self.remove_other_acls(xattrs)?;
        }
        let owned = self.keep_owner(meta)?;
        self.keep_xattrs(xattrs, owned)?;
        match (meta.kind, mode, owned) {
            (FileKind::Symlink, ..) => Ok(()),
            (_, Some(mode), _) => self.set_mode(mode),
            (_, None, true) => self.set_mode(meta.perm),
            (_, None, false) => self.set_mode(meta.perm & !SET_ID),
        }
    }
}

/// The content of a file of this machine.
struct OnHost<'n>(&'n LocalNode, &'n OwnedFd);

impl Content for OnHost<'_> {
    type Error = CopyError;

    fn read(&self, at: u64, buf: &mut [u8]) -> Result<usize> {
        self.0.read_at(self.1, buf, at)
    }

    fn data(&self, at: u64) -> Result<Option<u64>> {
        match rustix::fs::seek(self.1, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => Ok(None),
            found => self.0.on(found).map(Some),
        }
    }

    fn hole(&self, at: u64) -> Result<u64> {
        self.0.on(rustix::fs::seek(self.1, SeekFrom::Hole(at)))
    }

    fn damage(error: CopyError) -> Result<Cause> {
        error.into_damage()
    }
}

fn meta_of(found: &Found) -> Option<Meta> {
    Some(Meta {
        kind: FileKind::from_mode(found.mode)?,
        perm: found.mode & 0o7777,
        uid: found.uid,
        gid: found.gid,
        rdev: found.rdev,
        size: found.size,
        nlink: found.nlink,
        id: found.id,
        atime: found.atime,
        mtime: found.mtime,
    })
}

/// A failed system call on a named file. The copy ends if there is no space, if the file system is
/// read-only, or at a limit of the process.
pub(super) fn failure(shown: &str, error: Errno) -> CopyError {
    let failure = CopyError::on(shown, std::io::Error::from(error));
    match error {
        Errno::NOSPC | Errno::DQUOT | Errno::ROFS => failure.that_ends(),
        Errno::MFILE | Errno::NFILE | Errno::NOMEM => failure.that_ends(),
        _ => failure,
    }
}
