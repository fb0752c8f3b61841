//! Operations of the model, in a few bytes that a fuzzer can mutate well.

use arbitrary::Arbitrary;
use sapwood_testing::op::{Fill, Op, Target, Who};
use sapwood_vfs::{AllocMode, NewInode};

/// Few names, so that operations collide; the fourth and fifth have the same hash in a directory.
const NAMES: [&str; 8] = [
    "a",
    "b",
    "c",
    "yokzxonb",
    "xyphecky",
    "d",
    "e",
    "a-name-so-long-that-only-few-of-its-kind-fit-into-one-block-of-a-directory-which-makes-trees-\
     and-lists-of-names-split-much-sooner-than-names-of-one-letter-would-ever-make-them-do-it-here",
];
const XATTRS: [&str; 4] = ["user.a", "user.ewpvvvrt", "user.qtxwpvec", "trusted.t"];
/// Number of inodes that a session holds.
const SLOTS: u8 = 3;

/// A path of up to two names.
#[derive(Arbitrary, Debug, Clone, Copy)]
pub struct Path(u8);

impl Path {
    fn place(self) -> String {
        let name = |bits: u8| NAMES[usize::from(bits % 8)];
        match self.0 {
            0..=127 => name(self.0).to_owned(),
            128..=250 => format!("{}/{}", name(self.0 >> 3), name(self.0)),
            _ => ".".to_owned(),
        }
    }

    fn target(self) -> Target {
        match self.0 {
            100..=127 => Target::Held(usize::from(self.0 % SLOTS)),
            _ => Target::Path(self.place()),
        }
    }
}

/// An offset or length in bytes, or in sectors with a small rest.
#[derive(Arbitrary, Debug, Clone, Copy)]
pub struct Position(u16);

impl Position {
    fn bytes(self) -> u64 {
        let sectors = u64::from(self.0 >> 8) % 72 * 4096;
        match self.0 % 4 {
            0 => sectors,
            1 => sectors + u64::from(self.0 & 0xff),
            2 => (sectors + 4096).saturating_sub(u64::from(self.0 & 0xff)),
            _ => u64::from(self.0) % 3000,
        }
    }
}

/// A step of a run.
#[derive(Arbitrary, Debug, Clone)]
pub enum Step {
    /// Unmount and mount.
    Remount,
    Create(Path, u8),
    Tmpfile(Path, u8),
    Link(Path, Path),
    Unlink(Path),
    Rmdir(Path),
    Rename(Path, Path, u8),
    Hold(Path, u8),
    Release(u8),
    Write(Path, Position, Position, u8),
    Read(Path, Position, Position),
    Size(Path, Position),
    Allocate(Path, Position, Position, u8),
    Seek(Path, Position, bool),
    Copy(Path, Position, Path, Position, Position),
    Fsync(Path),
    Sync,
    SetXattr(Path, u8, u8),
    RemoveXattr(Path, u8),
    List(Path),
    Perm(Path, u16),
}

impl Step {
    /// The operation; `None` for a mount.
    pub fn op(&self) -> Option<Op> {
        let slot = |slot: u8| usize::from(slot % SLOTS);
        Some(match *self {
            Self::Remount => return None,
            Self::Create(at, kind) => Op::create(at.place(), kind_of(kind), 0o755, Who::Root),
            Self::Tmpfile(dir, number) => Op::Tmpfile {
                dir: dir.place(),
                slot: slot(number),
                perm: 0o644,
                who: Who::User,
            },
            Self::Link(path, to) => Op::Link {
                from: path.target(),
                to: to.place(),
            },
            Self::Unlink(at) => Op::Unlink { at: at.place() },
            Self::Rmdir(at) => Op::Rmdir { at: at.place() },
            Self::Rename(from, to, mode) if mode % 4 == 1 => Op::Exchange {
                a: from.place(),
                b: to.place(),
            },
            Self::Rename(from, to, mode) => Op::Rename {
                from: from.place(),
                to: to.place(),
                no_replace: mode % 4 == 0,
                whiteout: mode & 4 != 0,
            },
            Self::Hold(at, number) => Op::Hold {
                at: at.place(),
                slot: slot(number),
            },
            Self::Release(number) => Op::Release { slot: slot(number) },
            Self::SetXattr(path, name, len) => Op::SetXattr {
                on: path.target(),
                name: XATTRS[usize::from(name % 4)].to_owned(),
                len: len.into(),
                fill: Fill::Byte(len),
                create: false,
                replace: false,
            },
            Self::RemoveXattr(path, name) => Op::RemoveXattr {
                on: path.target(),
                name: XATTRS[usize::from(name % 4)].to_owned(),
            },
            Self::List(dir) => Op::List {
                dir: dir.place(),
                page: 2,
            },
            Self::Perm(path, perm) => Op::Chmod {
                on: path.target(),
                perm: u32::from(perm) & 0o7777,
            },
            Self::Sync => Op::Sync {},
            _ => return self.content(),
        })
    }

    fn content(&self) -> Option<Op> {
        Some(match *self {
            Self::Write(path, offset, len, fill) => {
                let (file, offset, len) = (path.target(), offset.bytes(), len.bytes());
                let content = match fill % 2 {
                    0 => Fill::Byte(fill),
                    _ => Fill::Seed(fill.into()),
                };
                match fill {
                    240.. => Op::Append {
                        file,
                        len,
                        fill: content,
                        offset,
                        kill_setid: false,
                    },
                    _ => Op::Write {
                        file,
                        offset,
                        len,
                        fill: content,
                        kill_setid: false,
                    },
                }
            }
            Self::Read(path, offset, len) => Op::Read {
                file: path.target(),
                offset: offset.bytes(),
                len: len.bytes(),
            },
            Self::Size(path, size) => Op::Truncate {
                file: path.target(),
                size: size.bytes(),
                kill_setid: false,
            },
            Self::Allocate(path, offset, len, mode) => {
                let mode = match mode % 5 {
                    0 => AllocMode::Allocate { keep_size: false },
                    1 => AllocMode::Allocate { keep_size: true },
                    2 => AllocMode::PunchHole,
                    3 => AllocMode::ZeroRange { keep_size: false },
                    _ => AllocMode::ZeroRange { keep_size: true },
                };
                Op::allocate(path.target(), offset.bytes(), len.bytes().max(1), mode)
            }
            Self::Seek(path, at, true) => Op::SeekData {
                file: path.target(),
                offset: at.bytes(),
            },
            Self::Seek(path, at, false) => Op::SeekHole {
                file: path.target(),
                offset: at.bytes(),
            },
            Self::Copy(from, from_offset, to, to_offset, len) => Op::Copy {
                from: from.target(),
                from_offset: from_offset.bytes(),
                to: to.target(),
                to_offset: to_offset.bytes(),
                len: len.bytes(),
            },
            Self::Fsync(path) => Op::Fsync { on: path.target() },
            _ => return None,
        })
    }
}

fn kind_of(byte: u8) -> NewInode<'static> {
    match byte % 8 {
        0..=3 => NewInode::Regular,
        4 | 5 => NewInode::Directory,
        6 => NewInode::Symlink(b"../b/c"),
        _ => NewInode::CharDevice(0x103),
    }
}
