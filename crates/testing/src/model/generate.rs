//! Random operations from a seed.

use super::shadow::{Class, Shadow};
use super::{Fill, Kind, Op, Place, Settings, Subject, Who};
use sapwood_vfs::acl::{ACCESS, Acl, AclEntry, DEFAULT, Tag};
use sapwood_vfs::{
    AllocMode, CopyMode, InodeFlags, RenameMode, SeekFrom, SetAttr, SetTime, SetXattrMode,
    SyncKind, Timestamp,
};

/// Number of slots in which a session may hold inodes.
pub(super) const SLOTS: usize = 3;

/// Few names, so that operations collide. The third and fourth have the same CRC-32C; the last is
/// long.
const NAMES: [&str; 6] = [
    "a",
    "b",
    "yokzxonb",
    "xyphecky",
    "c",
    "long-long-long-long-long-long-long-long-long-long-long-long-long-long-long-long-long-long-long",
];

const XATTRS: [&str; 5] = [
    "user.a",
    "user.b",
    "user.ewpvvvrt",
    "user.qtxwpvec",
    "trusted.t",
];

const TARGETS: [&str; 3] = ["a", "../b/c", "/some/where/else/that/does/not/exist"];

/// An endless sequence of operations that a seed determines.
#[derive(Debug, Clone)]
pub struct Generator {
    random: fastrand::Rng,
    settings: Settings,
    shadow: Shadow,
}

impl Iterator for Generator {
    type Item = Op;

    fn next(&mut self) -> Option<Op> {
        let op = self.op();
        self.shadow.note(&op);
        Some(op)
    }
}

impl Generator {
    /// The sequence of `seed`.
    #[must_use]
    pub fn new(seed: u64, settings: &Settings) -> Self {
        Self {
            random: fastrand::Rng::with_seed(seed),
            settings: *settings,
            shadow: Shadow::default(),
        }
    }

    fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.random.usize(..of.len())].clone()
    }

    /// True in one of `in_so_many` calls on average.
    fn seldom(&mut self, in_so_many: u32) -> bool {
        self.random.u32(..in_so_many) == 0
    }

    fn name(&mut self) -> &'static str {
        let bound = self.random.usize(1..=NAMES.len());
        NAMES[self.random.usize(..bound)]
    }

    /// A random path.
    fn somewhere(&mut self) -> Place {
        let depth = self.pick(&[1, 1, 2, 3]);
        Place((0..depth).map(|_| self.name()).collect())
    }

    /// A path that probably leads to an inode of the wanted class; sometimes a random path.
    fn place(&mut self, wanted: fn(Class) -> bool) -> Place {
        let known = self.shadow.known.iter();
        let fitting: Vec<_> = known.filter(|(_, class)| wanted(*class)).collect();
        if fitting.is_empty() || self.random.u8(..10) == 0 {
            return self.somewhere();
        }
        fitting[self.random.usize(..fitting.len())].0.clone()
    }

    fn dir(&mut self) -> Place {
        match self.seldom(3) {
            true => Place(Vec::new()),
            false => self.place(Class::is_dir),
        }
    }

    /// A name in a directory that probably exists.
    fn entry(&mut self) -> Place {
        let mut place = self.dir();
        if place.0.len() > 2 {
            place.0.clear();
        }
        place.0.push(self.name());
        place
    }

    fn subject(&mut self, wanted: fn(Class) -> bool) -> Subject {
        let held = self.shadow.held.iter().enumerate();
        let held = held.filter(|(_, class)| class.is_some_and(wanted));
        let slots: Vec<usize> = held.map(|(slot, _)| slot).collect();
        if !slots.is_empty() && self.seldom(3) {
            return Subject::Held(self.pick(&slots));
        }
        Subject::At(self.place(wanted))
    }

    fn file(&mut self) -> Subject {
        self.subject(|class| class == Class::File)
    }

    fn inode(&mut self) -> Subject {
        match self.seldom(20) {
            true => Subject::At(Place(Vec::new())),
            false => self.subject(|_| true),
        }
    }

    fn slot(&mut self) -> usize {
        self.random.usize(..SLOTS)
    }

    fn who(&mut self) -> Who {
        self.pick(&[Who::Root, Who::User])
    }

    fn perm(&mut self) -> u32 {
        self.pick(&[
            0o644, 0o755, 0o600, 0o777, 0o2775, 0o4711, 0o1777, 0o6745, 0,
        ])
    }

    /// A random offset, often at or near a boundary of sectors.
    fn offset(&mut self) -> u64 {
        let block = self.settings.capabilities.block_size;
        let any = self.random.u64(..self.settings.file_size);
        match self.random.u8(..6) {
            0 => 0,
            1 | 2 => any / block * block,
            3 => any / block * block + self.random.u64(..3),
            4 => any % 3000,
            _ => any,
        }
    }

    fn len(&mut self) -> u64 {
        let block = self.settings.capabilities.block_size;
        let any = self.random.u64(1..=self.settings.file_size / 3);
        match self.random.u8(..5) {
            0 => any % 100 + 1,
            1 => any % 4000 + 1,
            2 => (any / block + 1) * block,
            3 => block,
            _ => any,
        }
    }

    fn op(&mut self) -> Op {
        match self.random.u32(..100) {
            0..30 => self.names_op(),
            30..62 => self.content_op(),
            62..80 => self.attributes_op(),
            80..97 => self.looking_op(),
            _ if self.settings.subvolumes && self.settings.capabilities.subvolumes => {
                self.subvolume_op()
            }
            _ => self.names_op(),
        }
    }

    fn names_op(&mut self) -> Op {
        match self.random.u32(..30) {
            0..11 => Op::Create {
                at: self.entry(),
                kind: self.kind(),
                perm: self.perm(),
                who: self.who(),
            },
            11 if self.settings.capabilities.tmpfile => Op::Tmpfile {
                dir: self.dir(),
                perm: self.perm(),
                who: self.who(),
                slot: self.slot(),
            },
            12..15 => Op::Link {
                subject: self.subject(|class| !class.is_dir()),
                to: self.entry(),
            },
            15..18 => Op::Unlink(self.place(|class| !class.is_dir())),
            18 | 19 => Op::Rmdir(self.place(Class::is_dir)),
            20..22 => Op::Hold {
                at: self.place(|_| true),
                slot: self.slot(),
            },
            22 => Op::Release(self.slot()),
            _ => Op::Rename {
                from: self.place(|_| true),
                to: match self.random.bool() {
                    true => self.entry(),
                    false => self.place(|_| true),
                },
                mode: self.pick(&[
                    RenameMode::Replace,
                    RenameMode::Replace,
                    RenameMode::NoReplace,
                    RenameMode::Exchange,
                ]),
            },
        }
    }

    fn kind(&mut self) -> Kind {
        match self.random.u8(..12) {
            0..5 => Kind::Regular,
            5..8 => Kind::Directory,
            8 => Kind::Symlink(self.pick(&TARGETS)),
            9 => Kind::CharDevice(0x0103),
            10 => Kind::BlockDevice(0x1_0002),
            _ => self.pick(&[Kind::Fifo, Kind::Socket]),
        }
    }

    fn content_op(&mut self) -> Op {
        match self.random.u32(..32) {
            0..14 => Op::Write {
                subject: self.file(),
                offset: self.offset(),
                len: self.len() as usize,
                fill: match self.random.bool() {
                    true => Fill::Byte(self.random.u8(..)),
                    false => Fill::Seed(self.random.u64(..)),
                },
                append: self.seldom(5),
                kill_setid: self.seldom(3),
            },
            14..19 => Op::SetAttr {
                subject: self.file(),
                changes: SetAttr {
                    size: Some(self.offset()),
                    kill_setid: self.seldom(4),
                    ..SetAttr::default()
                },
            },
            19..24 => self.allocate_op(),
            24..29 => Op::Copy {
                from: self.file(),
                from_offset: self.offset(),
                to: self.file(),
                to_offset: self.offset(),
                len: match self.seldom(4) {
                    true => 0,
                    false => self.len(),
                },
                mode: match self.settings.capabilities.reflink && self.random.bool() {
                    true => CopyMode::ShareOnly,
                    false => CopyMode::Any,
                },
            },
            _ if !self.settings.syncs => Op::Stat(self.inode()),
            29 => Op::Sync,
            _ => Op::Fsync {
                subject: self.inode(),
                kind: self.pick(&[SyncKind::All, SyncKind::Data]),
            },
        }
    }

    fn allocate_op(&mut self) -> Op {
        let (subject, offset, len) = (self.file(), self.offset(), self.len());
        match self.alloc_mode() {
            Some(mode) => Op::Allocate {
                subject,
                offset,
                len,
                mode,
            },
            None => Op::Stat(subject),
        }
    }

    /// A random mode that the engine supports, if there is one.
    fn alloc_mode(&mut self) -> Option<AllocMode> {
        let has = self.settings.capabilities;
        let keep_size = self.random.bool();
        let mut modes = Vec::new();
        if has.preallocate {
            modes.push(AllocMode::Allocate { keep_size });
        }
        if has.punch_hole {
            modes.push(AllocMode::PunchHole);
        }
        if has.zero_range {
            modes.push(AllocMode::ZeroRange { keep_size });
        }
        if has.shift_range {
            modes.extend([AllocMode::CollapseRange, AllocMode::InsertRange]);
        }
        (!modes.is_empty()).then(|| self.pick(&modes))
    }

    fn attributes_op(&mut self) -> Op {
        let subject = self.inode();
        match self.random.u32(..18) {
            0..6 => Op::SetAttr {
                subject,
                changes: self.changes(),
            },
            6..12 => self.set_xattr(subject),
            12 | 13 => Op::RemoveXattr {
                subject,
                name: self.pick(&XATTRS),
            },
            14 | 15 => Op::GetXattr {
                subject,
                name: self.pick(&XATTRS),
            },
            16 => Op::ListXattr(subject),
            _ => Op::SetFlags {
                subject,
                flags: self.flags(),
            },
        }
    }

    fn flags(&mut self) -> InodeFlags {
        let flag = self.pick(&[
            InodeFlags::empty(),
            InodeFlags::empty(),
            InodeFlags::empty(),
            InodeFlags::NODUMP,
            InodeFlags::NOATIME,
            InodeFlags::IMMUTABLE,
            InodeFlags::APPEND,
        ]);
        flag & self.settings.capabilities.flags
    }

    fn changes(&mut self) -> SetAttr {
        let time = SetTime::To(Timestamp {
            sec: i64::from(self.random.i32(..)),
            nsec: self.random.u32(..1_000_000_000),
        });
        let changes = SetAttr {
            uid: self.seldom(3).then(|| self.random.u32(..5000)),
            gid: self.seldom(3).then(|| self.random.u32(..5000)),
            atime: self.seldom(3).then_some(time),
            mtime: self.seldom(3).then_some(time),
            kill_setid: self.seldom(3),
            ..SetAttr::default()
        };
        // Engines may skip the checks of a change that changes nothing.
        let perm = self.random.bool() || changes == SetAttr::default();
        SetAttr {
            perm: perm.then(|| self.perm()),
            ..changes
        }
    }

    fn set_xattr(&mut self, subject: Subject) -> Op {
        let mode = self.pick(&[
            SetXattrMode::Any,
            SetXattrMode::Any,
            SetXattrMode::Create,
            SetXattrMode::Replace,
        ]);
        let (name, value) = match self.random.u8(..8) {
            0 => (text(ACCESS), self.acl()),
            1 => (text(DEFAULT), self.acl()),
            2 if self.settings.capabilities.compression => {
                let values = ["zlib", "lzo", "zstd", "none", ""];
                ("btrfs.compression", self.pick(&values).into())
            }
            _ => {
                let len = self.random.usize(..200);
                let fill = Fill::Seed(self.random.u64(..));
                (self.pick(&XATTRS), fill.bytes(len))
            }
        };
        Op::SetXattr {
            subject,
            name,
            value,
            mode,
        }
    }

    fn acl(&mut self) -> Vec<u8> {
        let mut perm = || self.random.u32(..8);
        let entries = [
            (Tag::UserObj, perm()),
            (Tag::User(1000), perm()),
            (Tag::GroupObj, perm()),
            (Tag::Mask, perm()),
            (Tag::Other, perm()),
        ];
        let entries = entries.map(|(tag, perm)| AclEntry { tag, perm });
        let full = Acl::new(entries.to_vec()).map(|acl| acl.to_bytes());
        let plain = Acl::from_mode(self.random.u32(..0o1000)).to_bytes();
        // The last value is a header alone, which removes the ACL.
        let values = [full.unwrap_or_default(), plain, 2u32.to_le_bytes().to_vec()];
        self.pick(&values)
    }

    fn looking_op(&mut self) -> Op {
        match self.random.u32(..17) {
            0..5 => Op::Read {
                subject: self.file(),
                offset: self.offset(),
                len: self.len() as usize,
            },
            5..8 => Op::Stat(self.inode()),
            8 => Op::Parent(self.place(Class::is_dir)),
            9 | 10 => Op::Readlink(self.subject(|class| class == Class::Other)),
            11..14 => Op::List {
                dir: self.dir(),
                page: self.pick(&[1, 2, 3, 100]),
            },
            _ => Op::Seek {
                subject: self.file(),
                from: match self.random.bool() {
                    true => SeekFrom::Data(self.offset()),
                    false => SeekFrom::Hole(self.offset()),
                },
            },
        }
    }

    fn subvolume_op(&mut self) -> Op {
        match self.random.u8(..8) {
            0..3 => Op::CreateSubvolume(self.entry()),
            3..6 => Op::Snapshot {
                source: self.place(|class| class == Class::Subvolume),
                to: self.entry(),
                read_only: self.random.bool(),
            },
            6 => Op::DeleteSubvolume(self.place(|class| class == Class::Subvolume)),
            _ => Op::SetReadOnly {
                at: self.place(|class| class == Class::Subvolume),
                read_only: self.seldom(3),
            },
        }
    }
}

/// The names of ACL attributes are ASCII.
fn text(name: &'static [u8]) -> &'static str {
    std::str::from_utf8(name).unwrap_or("user.a")
}
