//! Random operations from a seed.

use super::Settings;
use super::shadow::{Class, Shadow};
use crate::op::{Fill, Op, Target, Who};
use sapwood_vfs::acl::{ACCESS, Acl, AclEntry, DEFAULT, Tag};
use sapwood_vfs::{AllocMode, InodeFlags, NewInode, Timestamp};

/// Number of slots that the operations use.
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
    fn somewhere(&mut self) -> String {
        let depth = self.pick(&[1, 1, 2, 3]);
        let names: Vec<&str> = (0..depth).map(|_| self.name()).collect();
        names.join("/")
    }

    /// A path that probably leads to an inode of the wanted class; sometimes a random path.
    fn place(&mut self, wanted: fn(Class) -> bool) -> String {
        let known = self.shadow.known.iter();
        let fitting: Vec<_> = known.filter(|(_, class)| wanted(*class)).collect();
        if fitting.is_empty() || self.random.u8(..10) == 0 {
            return self.somewhere();
        }
        fitting[self.random.usize(..fitting.len())].0.clone()
    }

    fn dir(&mut self) -> String {
        if self.seldom(3) {
            ".".to_owned()
        } else {
            self.place(Class::is_dir)
        }
    }

    /// A name in a directory that probably exists.
    fn entry(&mut self) -> String {
        let dir = self.dir();
        let name = self.name();
        if dir == "." || dir.split('/').count() > 2 {
            name.to_owned()
        } else {
            format!("{dir}/{name}")
        }
    }

    fn subject(&mut self, wanted: fn(Class) -> bool) -> Target {
        let held = self.shadow.held.iter().enumerate();
        let held = held.filter(|(_, class)| class.is_some_and(wanted));
        let slots: Vec<usize> = held.map(|(slot, _)| slot).collect();
        if !slots.is_empty() && self.seldom(3) {
            return Target::Held(self.pick(&slots));
        }
        Target::Path(self.place(wanted))
    }

    fn file(&mut self) -> Target {
        self.subject(|class| class == Class::File)
    }

    fn inode(&mut self) -> Target {
        if self.seldom(20) {
            Target::from(".")
        } else {
            self.subject(|_| true)
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
            0..11 => {
                let (at, what) = (self.entry(), self.kind());
                let (perm, who) = (self.perm(), self.who());
                Op::create(at, what, perm, who)
            }
            11 if self.settings.capabilities.tmpfile => Op::Tmpfile {
                dir: self.dir(),
                perm: self.perm(),
                who: self.who(),
                slot: self.slot(),
            },
            12..15 => Op::Link {
                from: self.subject(|class| !class.is_dir()),
                to: self.entry(),
            },
            15..18 => Op::Unlink {
                at: self.place(|class| !class.is_dir()),
            },
            18 | 19 => Op::Rmdir {
                at: self.place(Class::is_dir),
            },
            20..22 => Op::Hold {
                at: self.place(|_| true),
                slot: self.slot(),
            },
            22 => Op::Release { slot: self.slot() },
            _ => {
                let from = self.place(|_| true);
                let to = if self.random.bool() {
                    self.entry()
                } else {
                    self.place(|_| true)
                };
                match self.random.u8(..6) {
                    0 => Op::Exchange { a: from, b: to },
                    mode => Op::Rename {
                        from,
                        to,
                        no_replace: mode >= 4,
                        whiteout: matches!(mode, 3 | 4),
                    },
                }
            }
        }
    }

    fn kind(&mut self) -> NewInode<'static> {
        match self.random.u8(..12) {
            0..5 => NewInode::Regular,
            5..8 => NewInode::Directory,
            8 => NewInode::Symlink(self.pick(&TARGETS).as_bytes()),
            9 => NewInode::CharDevice(0x0103),
            10 => NewInode::BlockDevice(0x1_0002),
            _ => self.pick(&[NewInode::Fifo, NewInode::Socket]),
        }
    }

    fn content_op(&mut self) -> Op {
        match self.random.u32(..32) {
            0..14 => self.write_op(),
            14..19 => Op::Truncate {
                file: self.file(),
                size: self.offset(),
                kill_setid: self.seldom(4),
            },
            19..24 => self.allocate_op(),
            24..29 => self.copy_op(),
            _ if !self.settings.syncs => Op::Stat { on: self.inode() },
            29 => Op::Sync {},
            _ => {
                let on = self.inode();
                if self.random.bool() {
                    Op::Fsync { on }
                } else {
                    Op::Fdatasync { on }
                }
            }
        }
    }

    fn write_op(&mut self) -> Op {
        let (file, offset, len) = (self.file(), self.offset(), self.len());
        let fill = if self.random.bool() {
            Fill::Byte(self.random.u8(..))
        } else {
            Fill::Seed(self.random.u64(..))
        };
        let (append, kill_setid) = (self.seldom(5), self.seldom(3));
        if append {
            Op::Append {
                file,
                len,
                fill,
                offset,
                kill_setid,
            }
        } else {
            Op::Write {
                file,
                offset,
                len,
                fill,
                kill_setid,
            }
        }
    }

    fn copy_op(&mut self) -> Op {
        let (from, from_offset) = (self.file(), self.offset());
        let (to, to_offset) = (self.file(), self.offset());
        let len = if self.seldom(4) { 0 } else { self.len() };
        if self.settings.capabilities.reflink && self.random.bool() {
            Op::Reflink {
                from,
                from_offset,
                to,
                to_offset,
                len,
            }
        } else {
            Op::Copy {
                from,
                from_offset,
                to,
                to_offset,
                len,
            }
        }
    }

    fn allocate_op(&mut self) -> Op {
        let (file, offset, len) = (self.file(), self.offset(), self.len());
        match self.alloc_mode() {
            Some(mode) => Op::allocate(file, offset, len, mode),
            None => Op::Stat { on: file },
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
        let on = self.inode();
        match self.random.u32(..18) {
            0..6 => self.set_attr(on),
            6..12 => self.set_xattr(on),
            12 | 13 => Op::RemoveXattr {
                on,
                name: self.pick(&XATTRS).to_owned(),
            },
            14 | 15 => Op::GetXattr {
                on,
                name: self.pick(&XATTRS).to_owned(),
            },
            16 => Op::ListXattr { on },
            _ => Op::SetFlags {
                on,
                flags: self.flags().bits(),
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

    fn set_attr(&mut self, on: Target) -> Op {
        let time = Timestamp {
            sec: i64::from(self.random.i32(..)),
            nsec: self.random.u32(..1_000_000_000),
        };
        let uid = self.seldom(3).then(|| self.random.u32(..5000));
        let gid = self.seldom(3).then(|| self.random.u32(..5000));
        let atime = self.seldom(3).then_some(time);
        let mtime = self.seldom(3).then_some(time);
        let kill_setid = self.seldom(3);
        let nothing = uid.or(gid).is_none() && atime.or(mtime).is_none() && !kill_setid;
        // Engines may skip the checks of a change that changes nothing.
        let perm = self.random.bool() || nothing;
        Op::SetAttr {
            on,
            perm: perm.then(|| self.perm()),
            uid,
            gid,
            atime,
            mtime,
            kill_setid,
        }
    }

    fn set_xattr(&mut self, on: Target) -> Op {
        let (create, replace) =
            self.pick(&[(false, false), (false, false), (true, false), (false, true)]);
        let (name, value) = match self.random.u8(..8) {
            0 => (text(ACCESS), self.acl()),
            1 => (text(DEFAULT), self.acl()),
            2 if self.settings.capabilities.compression => {
                let values = ["zlib", "lzo", "zstd", "none", ""];
                ("btrfs.compression", self.pick(&values).into())
            }
            _ => {
                let len = self.random.u64(..200);
                let fill = Fill::Seed(self.random.u64(..));
                return Op::SetXattr {
                    on,
                    name: self.pick(&XATTRS).to_owned(),
                    len,
                    fill,
                    create,
                    replace,
                };
            }
        };
        Op::SetValue {
            on,
            name: name.to_owned(),
            value,
            create,
            replace,
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
                file: self.file(),
                offset: self.offset(),
                len: self.len(),
            },
            5..8 => Op::Stat { on: self.inode() },
            8 => Op::Parent {
                at: self.place(Class::is_dir),
            },
            9 | 10 => Op::Readlink {
                on: self.subject(|class| class == Class::Other),
            },
            11..14 => Op::List {
                dir: self.dir(),
                page: self.pick(&[1, 2, 3, 100]),
            },
            _ => {
                let file = self.file();
                let data = self.random.bool();
                let offset = self.offset();
                if data {
                    Op::SeekData { file, offset }
                } else {
                    Op::SeekHole { file, offset }
                }
            }
        }
    }

    fn subvolume_op(&mut self) -> Op {
        match self.random.u8(..8) {
            0..3 => Op::Subvolume { at: self.entry() },
            3..6 => Op::Snapshot {
                source: self.place(|class| class == Class::Subvolume),
                at: self.entry(),
                read_only: self.random.bool(),
            },
            6 => Op::DeleteSubvolume {
                at: self.place(|class| class == Class::Subvolume),
            },
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
