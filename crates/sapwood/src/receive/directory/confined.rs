//! A directory of this machine, out of which no path leads.
//!
//! # How it works
//! Every system call below the top names one component in a directory that is held, and does not
//! follow a link. Only the owner may enter the top until the tree is complete, so no other user
//! changes it meanwhile.
//!
//! A snapshot has directories that its owner cannot write to, and files that cannot be opened. Root
//! is not bound by modes. For any other user, every directory is open to its owner until
//! [`Confined::restore_modes`], and a file is opened with a mode that allows it. The final modes of
//! such directories are stored at each checkpoint ([`Confined::changed_modes`]). Modes that
//! commands set after it are set again when the commands are repeated.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::{Errno, Result};

use crate::host::by_descriptor;
use crate::tree::split_last;

/// Identity of an inode: device and number.
type Id = (u64, u64);

const OWNER_ALL: u32 = 0o700;
const OWNER_FILE: u32 = 0o600;

/// A name in a directory that is held.
pub(super) struct Located<'p> {
    pub(super) dir: Arc<OwnedFd>,
    name: &'p [u8],
}

impl Located<'_> {
    pub(super) fn name(&self) -> &OsStr {
        OsStr::from_bytes(self.name)
    }

    /// A path for the system calls that take no descriptor. Its last component is the name.
    pub(super) fn by_path(&self) -> PathBuf {
        by_descriptor(&self.dir).join(self.name())
    }

    pub(super) fn stat(&self) -> Result<Stat> {
        rustix::fs::statat(&self.dir, self.name(), AtFlags::SYMLINK_NOFOLLOW)
    }

    /// A descriptor that opens nothing.
    fn reach(&self) -> Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&self.dir, self.name(), flags, Mode::empty())
    }
}

/// A directory that is changed only through descriptors; see the module.
pub(super) struct Confined {
    top: Arc<OwnedFd>,
    /// This process is not bound by modes.
    privileged: bool,
    /// The directory of the last path.
    last: Option<(Vec<u8>, Arc<OwnedFd>)>,
    /// Directories that were opened to their owner, with the modes that they get in the end.
    opened: HashMap<Id, u32>,
    /// `opened` differs from what was stored.
    changed: bool,
}

impl Confined {
    pub(super) fn new(top: OwnedFd) -> Self {
        Self {
            top: Arc::new(top),
            privileged: rustix::process::geteuid().is_root(),
            last: None,
            opened: HashMap::new(),
            changed: false,
        }
    }

    pub(super) fn is_privileged(&self) -> bool {
        self.privileged
    }

    pub(super) fn top(&self) -> &OwnedFd {
        &self.top
    }

    /// Forgets the last directory, because a change of names may have moved it.
    pub(super) fn forget_paths(&mut self) {
        self.last = None;
    }

    /// A path and the directory that holds it. The empty path is the top.
    pub(super) fn locate<'p>(&mut self, path: &'p [u8]) -> Result<Located<'p>> {
        if path.is_empty() {
            let dir = Arc::clone(&self.top);
            return Ok(Located { dir, name: b"." });
        }
        let (dir, name) = split_last(path);
        if path.starts_with(b"/") || matches!(name, b"" | b"." | b"..") {
            return Err(Errno::INVAL);
        }
        let dir = self.directory(dir)?;
        Ok(Located { dir, name })
    }

    fn directory(&mut self, path: &[u8]) -> Result<Arc<OwnedFd>> {
        if path.is_empty() {
            return Ok(Arc::clone(&self.top));
        }
        let (mut at, mut rest) = (Arc::clone(&self.top), path);
        if let Some((last, dir)) = &self.last
            && let Some(below) = path.strip_prefix(last.as_slice())
        {
            if below.is_empty() {
                return Ok(Arc::clone(dir));
            }
            if let Some(below) = below.strip_prefix(b"/") {
                (at, rest) = (Arc::clone(dir), below);
            }
        }
        for name in rest.split(|byte| *byte == b'/') {
            at = Arc::new(self.enter(&at, name)?);
        }
        self.last = Some((path.to_vec(), Arc::clone(&at)));
        Ok(at)
    }

    /// A directory in another one; a symbolic link is none.
    fn enter(&mut self, dir: &OwnedFd, name: &[u8]) -> Result<OwnedFd> {
        if matches!(name, b"" | b"." | b"..") {
            return Err(Errno::INVAL);
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(dir, OsStr::from_bytes(name), flags, Mode::empty())?;
        if !self.privileged {
            let stat = rustix::fs::fstat(&fd)?;
            let perm = stat.st_mode & 0o7777;
            if perm & OWNER_ALL != OWNER_ALL && is_own(&stat) {
                self.opened.entry(id(&stat)).or_insert(perm);
                self.changed = true;
                set_mode(&fd, perm | OWNER_ALL)?;
            }
        }
        Ok(fd)
    }

    /// Sets a mode. A symbolic link has none.
    pub(super) fn chmod(&mut self, path: &[u8], perm: u32) -> Result<()> {
        let fd = self.locate(path)?.reach()?;
        let stat = rustix::fs::fstat(&fd)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => Ok(()),
            FileType::Directory if self.stays_open(&stat, perm) => {
                self.opened.insert(id(&stat), perm);
                self.changed = true;
                set_mode(&fd, perm | OWNER_ALL)
            }
            FileType::Directory => {
                // It may have to be opened again.
                self.last = None;
                set_mode(&fd, perm)
            }
            _ => set_mode(&fd, perm),
        }
    }

    /// Whether a directory that gets a mode stays open to its owner.
    fn stays_open(&self, stat: &Stat, perm: u32) -> bool {
        let closed = perm & OWNER_ALL != OWNER_ALL && !self.privileged && is_own(stat);
        closed || self.opened.contains_key(&id(stat))
    }

    /// Forgets the final mode of a removed directory whose inode number a new one has.
    pub(super) fn forget_mode(&mut self, new: &Located<'_>) -> Result<()> {
        if !self.opened.is_empty() && self.opened.remove(&id(&new.stat()?)).is_some() {
            self.changed = true;
        }
        Ok(())
    }

    /// Lines with the inode numbers and final modes of open directories, if they changed since they
    /// were stored.
    pub(super) fn changed_modes(&self) -> Option<Vec<u8>> {
        let lines = || {
            let mut text = String::new();
            for ((_, ino), perm) in &self.opened {
                let _ = writeln!(text, "{ino} {perm:o}");
            }
            text.into_bytes()
        };
        self.changed.then(lines)
    }

    pub(super) fn modes_stored(&mut self) {
        self.changed = false;
    }

    /// Adds modes that were stored. All directories are on the device of the top.
    pub(super) fn add_modes(&mut self, lines: &[u8]) -> Result<()> {
        let device = rustix::fs::fstat(&self.top)?.st_dev;
        for line in String::from_utf8_lossy(lines).lines() {
            let parsed = line.split_once(' ').and_then(|(ino, perm)| {
                Some((ino.parse().ok()?, u32::from_str_radix(perm, 8).ok()?))
            });
            let (ino, perm) = parsed.ok_or(Errno::INVAL)?;
            self.opened.insert((device, ino), perm & 0o7777);
        }
        Ok(())
    }

    /// Opens all directories to their owner.
    pub(super) fn open_all(&mut self) -> Result<()> {
        if self.privileged {
            return Ok(());
        }
        let mut open = vec![self.list(&self.top, OsStr::new("."))?];
        while let Some((dir, fd)) = open.last_mut() {
            let Some(entry) = dir.next() else {
                open.pop();
                continue;
            };
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            let fd = fd.try_clone().map_err(|_| Errno::MFILE)?;
            match self.enter(&fd, name) {
                Ok(_) => open.push(self.list(&fd, OsStr::from_bytes(name))?),
                Err(Errno::NOTDIR | Errno::LOOP) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Opens a regular file.
    pub(super) fn open(&mut self, path: &[u8], flags: OFlags) -> Result<OwnedFd> {
        let fd = self.locate(path)?.reach()?;
        let stat = rustix::fs::fstat(&fd)?;
        // Opening a device may already do something.
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Errno::INVAL);
        }
        let flags = flags | OFlags::CLOEXEC;
        let open = || rustix::fs::open(by_descriptor(&fd), flags, Mode::empty());
        match open() {
            Err(Errno::ACCESS) if !self.privileged && is_own(&stat) => {
                let perm = stat.st_mode & 0o7777;
                set_mode(&fd, perm | OWNER_FILE)?;
                let opened = open();
                set_mode(&fd, perm)?;
                opened
            }
            opened => opened,
        }
    }

    /// Executes `change` on a path, with a mode that allows its owner to change attributes.
    pub(super) fn change<T>(
        &mut self,
        path: &[u8],
        change: impl Fn(&Located<'_>) -> Result<T>,
    ) -> Result<T> {
        let located = self.locate(path)?;
        match change(&located) {
            Err(Errno::ACCESS) if !self.privileged => {
                let fd = located.reach()?;
                let stat = rustix::fs::fstat(&fd)?;
                let kind = FileType::from_raw_mode(stat.st_mode);
                if kind == FileType::Symlink || !is_own(&stat) {
                    return Err(Errno::ACCESS);
                }
                let perm = stat.st_mode & 0o7777;
                set_mode(&fd, perm | OWNER_FILE)?;
                let changed = change(&located);
                set_mode(&fd, perm)?;
                changed
            }
            changed => changed,
        }
    }

    /// Sets the final modes of the directories that were opened to their owner.
    pub(super) fn restore_modes(&mut self) -> Result<()> {
        self.last = None;
        if self.opened.is_empty() {
            return Ok(());
        }
        let mut open = vec![(self.list(&self.top, OsStr::new("."))?, None)];
        while let Some(((dir, fd), perm)) = open.last_mut() {
            let Some(entry) = dir.next() else {
                if let Some(perm) = *perm {
                    set_mode(fd, perm)?;
                }
                open.pop();
                continue;
            };
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            let kind = entry.file_type();
            if matches!(name, b"." | b"..")
                || !matches!(kind, FileType::Directory | FileType::Unknown)
            {
                continue;
            }
            match self.list(fd, OsStr::from_bytes(name)) {
                Ok(below) => {
                    let stat = rustix::fs::fstat(&below.1)?;
                    let perm = self.opened.get(&id(&stat)).copied();
                    open.push((below, perm));
                }
                // One that was never entered.
                Err(Errno::ACCESS | Errno::NOTDIR) => {}
                Err(error) => return Err(error),
            }
        }
        self.opened.clear();
        Ok(())
    }

    /// Opens a directory for listing, which does not change its access time.
    fn list(&self, dir: &OwnedFd, name: &OsStr) -> Result<(Dir, OwnedFd)> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = |flags| rustix::fs::openat(dir, name, flags, Mode::empty());
        let fd = match open(flags | OFlags::NOATIME) {
            Err(Errno::PERM) => open(flags)?,
            opened => opened?,
        };
        Ok((Dir::read_from(&fd)?, fd))
    }
}

/// Sets the mode of the inode of a descriptor that only locates it (`O_PATH`).
pub(super) fn set_mode(fd: &OwnedFd, perm: u32) -> Result<()> {
    rustix::fs::chmod(by_descriptor(fd), Mode::from_raw_mode(perm))
}

fn is_own(stat: &Stat) -> bool {
    stat.st_uid == rustix::process::geteuid().as_raw()
}

fn id(stat: &Stat) -> Id {
    (stat.st_dev, stat.st_ino)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn confined(dir: &std::path::Path) -> Confined {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let top = rustix::fs::open(dir, flags, Mode::empty()).unwrap();
        Confined::new(top)
    }

    #[test]
    fn no_path_leads_through_a_symbolic_link_or_out() {
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("file"), b"kept").unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(outside.path(), dir.path().join("link")).unwrap();
        std::os::unix::fs::symlink("file", dir.path().join("name")).unwrap();
        std::fs::write(dir.path().join("file"), b"").unwrap();
        let mut tree = confined(dir.path());
        let open = |tree: &mut Confined, path: &[u8]| tree.open(path, OFlags::WRONLY).map(drop);
        assert_eq!(open(&mut tree, b"link/file"), Err(Errno::NOTDIR));
        assert_eq!(open(&mut tree, b"name"), Err(Errno::INVAL));
        for path in [&b".."[..], b"../x", b"a/..", b"./file", b"/file", b"file/"] {
            assert!(open(&mut tree, path).is_err(), "{path:?}");
        }
        assert_eq!(open(&mut tree, b"file"), Ok(()));
        // Neither does a mode.
        tree.chmod(b"name", 0o777).unwrap();
        let mode = std::fs::metadata(dir.path().join("file")).unwrap();
        assert_ne!(
            std::os::unix::fs::PermissionsExt::mode(&mode.permissions()) & 0o777,
            0o777
        );
    }

    #[test]
    fn directories_of_an_ordinary_user_get_their_modes_in_the_end() {
        use std::os::unix::fs::PermissionsExt;

        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        let mode = |path: &str| {
            let found = std::fs::metadata(dir.path().join(path)).unwrap();
            found.permissions().mode() & 0o7777
        };
        let mut tree = confined(dir.path());
        // Also where root runs the test.
        tree.privileged = false;
        tree.chmod(b"a/b", 0o500).unwrap();
        tree.chmod(b"a", 0o555).unwrap();
        tree.locate(b"a/b/file").unwrap();
        assert_eq!((mode("a"), mode("a/b")), (0o755, 0o700));
        tree.chmod(b"a/b", 0o511).unwrap();
        tree.restore_modes().unwrap();
        assert_eq!((mode("a"), mode("a/b")), (0o555, 0o511));
    }
}
