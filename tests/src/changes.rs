//! Random changes of a mounted tree: names, content, holes and attributes. The same seed makes the
//! same changes of the same tree.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{
    CWD, FallocateFlags, FileType, Mode, RenameFlags, XattrFlags, fallocate, makedev, mknodat,
    removexattr, renameat_with, setxattr,
};

use crate::random::Random;

const NAMES: [&str; 10] = [
    "a",
    "b",
    "c",
    "d",
    "e",
    "f",
    "g",
    "two words",
    "o257-0",
    "o258-1",
];

/// Lengths and offsets around the sizes at which the format stores data in another way.
const SIZES: [u64; 8] = [0, 1, 100, 2000, 4096, 5000, 70_000, 300_000];

/// A tree that changes at random.
pub struct Changing {
    top: PathBuf,
    random: Random,
    directories: Vec<PathBuf>,
    files: Vec<PathBuf>,
    others: Vec<PathBuf>,
}

impl Changing {
    /// Everything below a directory.
    #[must_use]
    pub fn new(top: &Path, seed: u64) -> Self {
        Self {
            top: top.to_owned(),
            random: Random::new(seed),
            directories: Vec::new(),
            files: Vec::new(),
            others: Vec::new(),
        }
    }

    /// Makes this many changes. One that the tree does not allow is left out.
    pub fn change(&mut self, count: u64) {
        for _ in 0..count {
            self.list();
            let _refused = self.step();
        }
    }

    fn list(&mut self) {
        self.directories = vec![self.top.clone()];
        (self.files, self.others) = (Vec::new(), Vec::new());
        let mut next = 0;
        while let Some(dir) = self.directories.get(next).cloned() {
            next += 1;
            let entries = fs::read_dir(dir).unwrap();
            let mut entries: Vec<_> = entries.map(|entry| entry.unwrap()).collect();
            entries.sort_by_key(std::fs::DirEntry::file_name);
            for entry in entries {
                let kind = entry.file_type().unwrap();
                if kind.is_dir() {
                    self.directories.push(entry.path());
                } else if kind.is_file() {
                    self.files.push(entry.path());
                } else {
                    self.others.push(entry.path());
                }
            }
        }
    }

    fn pick(&mut self, from: &[PathBuf]) -> io::Result<PathBuf> {
        let count = u64::try_from(from.len()).unwrap();
        if count == 0 {
            return Err(io::ErrorKind::NotFound.into());
        }
        let index = usize::try_from(self.random.below(count)).unwrap();
        Ok(from[index].clone())
    }

    fn file(&mut self) -> io::Result<PathBuf> {
        let files = self.files.clone();
        self.pick(&files)
    }

    /// A directory below the top.
    fn directory(&mut self) -> io::Result<PathBuf> {
        let directories = self.directories.clone();
        self.pick(&directories[1..])
    }

    fn any(&mut self) -> io::Result<PathBuf> {
        let all = [&self.files[..], &self.others, &self.directories[1..]].concat();
        self.pick(&all)
    }

    fn new_name(&mut self) -> PathBuf {
        let directories = self.directories.clone();
        let dir = self.pick(&directories).unwrap();
        let name = NAMES[usize::try_from(self.random.below(10)).unwrap()];
        match self.random.below(4) {
            0 => dir.join(name),
            number => dir.join(format!("{name}{number}")),
        }
    }

    fn size(&mut self) -> u64 {
        SIZES[usize::try_from(self.random.below(8)).unwrap()]
    }

    fn data(&mut self) -> Vec<u8> {
        let len = usize::try_from(self.size()).unwrap();
        if self.random.below(2) == 0 {
            self.random.bytes(len)
        } else {
            self.random.text(len)
        }
    }

    fn step(&mut self) -> io::Result<()> {
        let new = self.new_name();
        match self.random.below(32) {
            0..=3 => self.write(&new),
            4..=6 => fs::create_dir(&new),
            7 => symlink("../target", &new),
            8 => self.node(&new),
            9..=11 => fs::rename(self.any()?, &new),
            12..=13 => fs::rename(self.directory()?, &new),
            14 => self.exchange(),
            15 => self.turn_over(&new),
            16..=17 => fs::remove_file(self.file()?),
            18 if self.directories.len() > 6 => fs::remove_dir_all(self.directory()?),
            18 => fs::remove_file(self.any()?),
            19..=20 => fs::hard_link(self.file()?, &new),
            21..=23 => self.overwrite(),
            24..=25 => {
                let size = self.size();
                File::options()
                    .write(true)
                    .open(self.file()?)?
                    .set_len(size)
            }
            26..=27 => self.allocate(),
            _ => self.attributes(),
        }
    }

    /// Makes a file or replaces the content of one. It opens no pipe, no device and no link.
    fn write(&mut self, new: &Path) -> io::Result<()> {
        let data = self.data();
        let found = fs::symlink_metadata(new);
        if found.is_ok_and(|found| !found.is_file()) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        fs::write(new, data)
    }

    fn node(&mut self, new: &Path) -> io::Result<()> {
        let number = u32::try_from(self.random.below(70_000)).unwrap();
        let kind = match self.random.below(4) {
            0 => FileType::Fifo,
            1 => FileType::Socket,
            2 => FileType::CharacterDevice,
            _ => FileType::BlockDevice,
        };
        let device = match kind {
            FileType::Fifo | FileType::Socket => 0,
            _ => makedev(number % 300, number),
        };
        Ok(mknodat(CWD, new, kind, Mode::from_raw_mode(0o640), device)?)
    }

    fn exchange(&mut self) -> io::Result<()> {
        let (one, other) = (self.any()?, self.any()?);
        Ok(renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)?)
    }

    /// Moves a directory below its former child.
    fn turn_over(&mut self, new: &Path) -> io::Result<()> {
        let child = self.directory()?;
        let parent = child.parent().unwrap().to_owned();
        if parent == self.top {
            return Ok(());
        }
        let aside = self.top.join(format!("aside{}", self.random.below(1000)));
        fs::rename(&child, &aside)?;
        fs::rename(&parent, aside.join(new.file_name().unwrap()))
    }

    fn overwrite(&mut self) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(self.file()?)?;
        let end = file.metadata()?.len() + 5000;
        let (offset, data) = (self.random.below(end), self.data());
        file.write_all_at(&data, offset)
    }

    fn allocate(&mut self) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(self.file()?)?;
        let how = match self.random.below(3) {
            0 => FallocateFlags::empty(),
            1 => FallocateFlags::KEEP_SIZE,
            _ => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        };
        let (start, len) = (self.random.below(40), 1 + self.random.below(20));
        Ok(fallocate(&file, how, start * 4096, len * 4096)?)
    }

    fn attributes(&mut self) -> io::Result<()> {
        let id = |random: &mut Random| Some(u32::try_from(random.below(3000)).unwrap());
        match self.random.below(5) {
            0 => {
                let (uid, gid) = (id(&mut self.random), id(&mut self.random));
                lchown(self.any()?, uid, gid)
            }
            1 => {
                let modes = [0o644, 0o755, 0o4755, 0o2755, 0o1777, 0];
                let mode = modes[usize::try_from(self.random.below(6)).unwrap()];
                let path = match self.random.below(2) {
                    0 => self.file()?,
                    _ => self.directory()?,
                };
                fs::set_permissions(path, fs::Permissions::from_mode(mode))
            }
            2 => {
                let value = self.data();
                let value = value.get(..value.len().min(300)).unwrap();
                let path = self.file()?;
                Ok(setxattr(path, "user.random", value, XattrFlags::empty())?)
            }
            3 => Ok(removexattr(self.file()?, "user.random")?),
            _ => {
                // A capability, which a change of the owner removes.
                const CAPABILITY: [u8; 20] =
                    [0, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
                let path = self.file()?;
                if self.random.below(2) == 0 {
                    chown(&path, id(&mut self.random), None)?;
                }
                let name = "security.capability";
                Ok(setxattr(path, name, &CAPABILITY, XattrFlags::empty())?)
            }
        }
    }
}
