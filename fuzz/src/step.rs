//! Operations of the model, in a few bytes that a fuzzer can mutate well.

use arbitrary::Arbitrary;
use sapwood_testing::model::{Fill, Kind, Op, Place, Subject, Who};
use sapwood_vfs::{AllocMode, CopyMode, RenameMode, SeekFrom, SetAttr, SetXattrMode, SyncKind};

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
    fn place(self) -> Place {
        let name = |bits: u8| NAMES[usize::from(bits % 8)];
        match self.0 {
            0..=127 => Place(vec![name(self.0)]),
            128..=250 => Place(vec![name(self.0 >> 3), name(self.0)]),
            _ => Place(Vec::new()),
        }
    }

    fn subject(self) -> Subject {
        match self.0 {
            100..=127 => Subject::Held(usize::from(self.0 % SLOTS)),
            _ => Subject::At(self.place()),
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
        Some(match *self {
            Self::Remount => return None,
            Self::Create(at, kind) => Op::Create {
                at: at.place(),
                kind: kind_of(kind),
                perm: 0o755,
                who: Who::Root,
            },
            Self::Tmpfile(dir, slot) => Op::Tmpfile {
                dir: dir.place(),
                perm: 0o644,
                who: Who::User,
                slot: usize::from(slot % SLOTS),
            },
            Self::Link(path, to) => Op::Link {
                subject: path.subject(),
                to: to.place(),
            },
            Self::Unlink(at) => Op::Unlink(at.place()),
            Self::Rmdir(at) => Op::Rmdir(at.place()),
            Self::Rename(from, to, mode) => Op::Rename {
                from: from.place(),
                to: to.place(),
                mode: match mode % 4 {
                    0 => RenameMode::NoReplace,
                    1 => RenameMode::Exchange,
                    _ => RenameMode::Replace,
                },
            },
            Self::Hold(at, slot) => Op::Hold {
                at: at.place(),
                slot: usize::from(slot % SLOTS),
            },
            Self::Release(slot) => Op::Release(usize::from(slot % SLOTS)),
            Self::SetXattr(path, name, len) => Op::SetXattr {
                subject: path.subject(),
                name: XATTRS[usize::from(name % 4)],
                value: vec![len; usize::from(len)],
                mode: SetXattrMode::Any,
            },
            Self::RemoveXattr(path, name) => Op::RemoveXattr {
                subject: path.subject(),
                name: XATTRS[usize::from(name % 4)],
            },
            Self::List(dir) => Op::List {
                dir: dir.place(),
                page: 2,
            },
            Self::Perm(path, perm) => Op::SetAttr {
                subject: path.subject(),
                changes: SetAttr {
                    perm: Some(u32::from(perm) & 0o7777),
                    ..SetAttr::default()
                },
            },
            Self::Sync => Op::Sync,
            _ => return self.content(),
        })
    }

    fn content(&self) -> Option<Op> {
        Some(match *self {
            Self::Write(path, offset, len, fill) => Op::Write {
                subject: path.subject(),
                offset: offset.bytes(),
                len: len.bytes() as usize,
                fill: match fill % 2 {
                    0 => Fill::Byte(fill),
                    _ => Fill::Seed(fill.into()),
                },
                append: fill >= 240,
                kill_setid: false,
            },
            Self::Read(path, offset, len) => Op::Read {
                subject: path.subject(),
                offset: offset.bytes(),
                len: len.bytes() as usize,
            },
            Self::Size(path, size) => Op::SetAttr {
                subject: path.subject(),
                changes: SetAttr {
                    size: Some(size.bytes()),
                    ..SetAttr::default()
                },
            },
            Self::Allocate(path, offset, len, mode) => Op::Allocate {
                subject: path.subject(),
                offset: offset.bytes(),
                len: len.bytes().max(1),
                mode: match mode % 5 {
                    0 => AllocMode::Allocate { keep_size: false },
                    1 => AllocMode::Allocate { keep_size: true },
                    2 => AllocMode::PunchHole,
                    3 => AllocMode::ZeroRange { keep_size: false },
                    _ => AllocMode::ZeroRange { keep_size: true },
                },
            },
            Self::Seek(path, at, data) => Op::Seek {
                subject: path.subject(),
                from: match data {
                    true => SeekFrom::Data(at.bytes()),
                    false => SeekFrom::Hole(at.bytes()),
                },
            },
            Self::Copy(from, from_offset, to, to_offset, len) => Op::Copy {
                from: from.subject(),
                from_offset: from_offset.bytes(),
                to: to.subject(),
                to_offset: to_offset.bytes(),
                len: len.bytes(),
                mode: CopyMode::Any,
            },
            Self::Fsync(path) => Op::Fsync {
                subject: path.subject(),
                kind: SyncKind::All,
            },
            _ => return None,
        })
    }
}

fn kind_of(byte: u8) -> Kind {
    match byte % 8 {
        0..=3 => Kind::Regular,
        4 | 5 => Kind::Directory,
        6 => Kind::Symlink("../b/c"),
        _ => Kind::CharDevice(0x103),
    }
}
