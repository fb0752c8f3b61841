//! [`Op`]: one operation on a file system, and a text for it. The crash explorer, the model tests
//! and the fuzz targets make operations in their own ways and share the rest: a [`Session`] applies
//! an operation to any file system, and its text replays it.
//!
//! A text is a verb with its fields, and then those options that differ from their defaults:
//! `write A/x 0 4096 3 kill_setid=true`. A path is relative to the directory of the session; `.` is
//! that directory. A [`Target`] is a path or `@N`, the inode that slot `N` holds, with a name or
//! without. The name of an attribute without a dot stands for one in `user.`.

mod outcome;
mod session;
mod word;

use std::fmt;
use std::str::FromStr;

use sapwood_vfs::{AllocMode, Credentials, NewInode, RenameMode, SetAttr, SetTime, Timestamp};

pub use self::outcome::{Outcome, Seen};
pub use self::session::Session;
pub use self::word::{Fill, Special, Target, Who};
use self::word::{Named, Word};

/// Number of slots.
pub const SLOTS: usize = 4;

/// A text that is not an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseError(pub String);

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not an operation: {:?}", self.0)
    }
}

impl std::error::Error for ParseError {}

/// Declares [`Op`] with the verb of each variant, its fields, and its options with their defaults.
macro_rules! ops {
    ($($(#[doc = $doc:literal])* $verb:literal $name:ident { $($field:ident : $ty:ty = $about:literal),* $(,)? }
        $([ $($opt:ident : $oty:ty = $default:expr, $oabout:literal);* ])?)*) => {
        /// One operation. Offsets and lengths are bytes.
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Op {
            $($(#[doc = $doc])* $name {
                $(#[doc = $about] $field: $ty,)*
                $($(#[doc = $oabout] $opt: $oty,)*)?
            },)*
        }

        impl fmt::Display for Op {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$name { $($field,)* $($($opt,)*)? } => {
                        f.write_str($verb)?;
                        $(write!(f, " {}", $field.print())?;)*
                        $($(if *$opt != $default {
                            write!(f, " {}={}", stringify!($opt), $opt.print())?;
                        })*)?
                        Ok(())
                    })*
                }
            }
        }

        impl Op {
            /// The verb, which names the kind of operation.
            #[must_use]
            pub fn verb(&self) -> &'static str {
                match self { $(Self::$name { .. } => $verb,)* }
            }

            /// All verbs.
            pub const VERBS: &'static [&'static str] = &[$($verb),*];
        }

        impl FromStr for Op {
            type Err = ParseError;

            fn from_str(text: &str) -> Result<Self, ParseError> {
                let bad = || ParseError(text.to_owned());
                let mut named = Named::of(text).ok_or_else(bad)?;
                let op = match named.field().ok_or_else(bad)? {
                    $($verb => Self::$name {
                        $($field: named.field().and_then(<$ty>::parse).ok_or_else(bad)?,)*
                        $($($opt: named.option(stringify!($opt), $default).ok_or_else(bad)?,)*)?
                    },)*
                    _ => return Err(bad()),
                };
                if named.is_empty() { Ok(op) } else { Err(bad()) }
            }
        }
    };
}

ops! {
    /// Creates a regular file.
    "creat" Create { at: String = "Path." } [perm: u32 = 0o644, "Permission bits."; who: Who = Who::Root, "Its creator."]
    /// Creates a regular file with its content and fixed times, at once where the engine can.
    "fill" Filled { at: String = "Path.", len: u64 = "Length.", fill: Fill = "Content." } [perm: u32 = 0o644, "Permission bits."; who: Who = Who::Root, "Its creator."]
    /// Creates a directory.
    "mkdir" Mkdir { at: String = "Path." } [perm: u32 = 0o755, "Permission bits."; who: Who = Who::Root, "Its creator."]
    /// Creates a symbolic link.
    "symlink" Symlink { target: String = "Path in it.", at: String = "Path." } [perm: u32 = 0o777, "Permission bits."; who: Who = Who::Root, "Its creator."]
    /// Creates a device node, a pipe or a socket.
    "mknod" Mknod { at: String = "Path." } [kind: Special = Special::Char(0x103), "Its kind."; perm: u32 = 0o644, "Permission bits."; who: Who = Who::Root, "Its creator."]
    /// Creates a regular file without a name.
    "tmpfile" Tmpfile { dir: String = "Directory.", slot: usize = "Slot that then holds it." } [perm: u32 = 0o600, "Permission bits."; who: Who = Who::Root, "Its creator."]
    /// Holds an inode in a slot.
    "hold" Hold { at: String = "Path.", slot: usize = "Slot." }
    /// Empties a slot.
    "release" Release { slot: usize = "Slot." }
    /// Reads the attributes.
    "stat" Stat { on: Target = "Inode." }
    /// Finds the directory of a directory.
    "parent" Parent { at: String = "Path." }
    /// Reads a symbolic link.
    "readlink" Readlink { on: Target = "Inode." }
    /// Lists a directory, a number of entries at a time.
    "list" List { dir: String = "Directory.", page: usize = "Number of entries." }
    /// Reads.
    "read" Read { file: Target = "File.", offset: u64 = "Offset.", len: u64 = "Length." }
    /// Finds data, and compares the answer with the content.
    "seek-data" SeekData { file: Target = "File.", offset: u64 = "Offset." }
    /// Finds a hole, and compares the answer with the content.
    "seek-hole" SeekHole { file: Target = "File.", offset: u64 = "Offset." }
    /// Writes.
    "write" Write { file: Target = "File.", offset: u64 = "Offset.", len: u64 = "Length.", fill: Fill = "Content." } [kill_setid: bool = false, "Clears set-id bits."]
    /// Writes at the end of the file.
    "append" Append { file: Target = "File.", len: u64 = "Length.", fill: Fill = "Content." } [offset: u64 = 0, "Offset, which the call ignores."; kill_setid: bool = false, "Clears set-id bits."]
    /// Allocates and extends the file.
    "falloc" Allocate { file: Target = "File.", offset: u64 = "Offset.", len: u64 = "Length." }
    /// Allocates; the size stays.
    "falloc-keep" AllocateKeep { file: Target = "File.", offset: u64 = "Offset.", len: u64 = "Length." }
    /// Makes a hole.
    "punch" Punch { file: Target = "File.", offset: u64 = "Offset.", len: u64 = "Length." }
    /// Makes a range read as zeros.
    "zero" Zero { file: Target = "File.", offset: u64 = "Offset.", len: u64 = "Length." }
    /// Like `zero`; the size stays.
    "zero-keep" ZeroKeep { file: Target = "File.", offset: u64 = "Offset.", len: u64 = "Length." }
    /// Removes a range; the bytes after it move down.
    "collapse" Collapse { file: Target = "File.", offset: u64 = "Offset.", len: u64 = "Length." }
    /// Inserts a hole; the bytes after it move up.
    "insert" Insert { file: Target = "File.", offset: u64 = "Offset.", len: u64 = "Length." }
    /// Sets the size.
    "truncate" Truncate { file: Target = "File.", size: u64 = "New size." } [kill_setid: bool = false, "Clears set-id bits."]
    /// Adds a name to an inode.
    "link" Link { from: Target = "What.", to: String = "New name." }
    /// Renames; replaces an existing target.
    "rename" Rename { from: String = "Old name.", to: String = "New name." } [no_replace: bool = false, "Fails if the target exists."; whiteout: bool = false, "Leaves a whiteout."]
    /// Swaps two names.
    "exchange" Exchange { a: String = "One.", b: String = "The other." }
    /// Removes a name.
    "unlink" Unlink { at: String = "Path." }
    /// Removes a directory.
    "rmdir" Rmdir { at: String = "Path." }
    /// Sets an extended attribute.
    "setxattr" SetXattr { on: Target = "Inode.", name: String = "Name.", len: u64 = "Bytes of the value.", fill: Fill = "Value." } [create: bool = false, "Fails if it exists."; replace: bool = false, "Fails if it does not exist."]
    /// Sets an extended attribute to a given value.
    "setvalue" SetValue { on: Target = "Inode.", name: String = "Name.", value: Vec<u8> = "Value, in hexadecimal." } [create: bool = false, "Fails if it exists."; replace: bool = false, "Fails if it does not exist."]
    /// Reads an extended attribute.
    "getxattr" GetXattr { on: Target = "Inode.", name: String = "Name." }
    /// Removes an extended attribute.
    "removexattr" RemoveXattr { on: Target = "Inode.", name: String = "Name." }
    /// Lists the extended attributes.
    "listxattr" ListXattr { on: Target = "Inode." }
    /// Sets a default ACL on a directory, or an access ACL on anything else.
    "setacl" SetAcl { on: Target = "Inode.", uid: u32 = "User that may read and write." }
    /// Sets attributes.
    "setattr" SetAttr { on: Target = "Inode." } [perm: Option<u32> = None, "Permission bits."; uid: Option<u32> = None, "User."; gid: Option<u32> = None, "Group."; atime: Option<Timestamp> = None, "Access time."; mtime: Option<Timestamp> = None, "Time of the last change."; kill_setid: bool = false, "Clears set-id bits."]
    /// Sets the permission bits.
    "chmod" Chmod { on: Target = "Inode.", perm: u32 = "Bits, decimal." }
    /// Sets the owner.
    "chown" Chown { on: Target = "Inode.", uid: u32 = "User.", gid: u32 = "Group." }
    /// Sets the access time, and the modification time to one second more.
    "utimes" SetTimes { on: Target = "Inode.", sec: u32 = "Seconds since 1970." }
    /// Sets the inode flags.
    "setflags" SetFlags { on: Target = "Inode.", flags: u32 = "Bits, decimal." }
    /// Shares extents between files, or within one.
    "reflink" Reflink { from: Target = "Source.", from_offset: u64 = "Offset there.", to: Target = "Destination.", to_offset: u64 = "Offset there.", len: u64 = "Length; 0: to the end." }
    /// Copies between files, or within one.
    "copy" Copy { from: Target = "Source.", from_offset: u64 = "Offset there.", to: Target = "Destination.", to_offset: u64 = "Offset there.", len: u64 = "Length; 0: to the end." }
    /// Creates a subvolume.
    "subvolume" Subvolume { at: String = "Path." }
    /// Creates a snapshot.
    "snapshot" Snapshot { source: String = "Root of a subvolume.", at: String = "Path." } [read_only: bool = false, "It cannot be written."]
    /// Deletes a subvolume.
    "delsubvol" DeleteSubvolume { at: String = "Path." }
    /// Makes a subvolume read-only or writable.
    "read-only" SetReadOnly { at: String = "Path.", read_only: bool = "It cannot be written." }
    /// Makes an empty file `nodatacow`.
    "nocow" Nocow { file: Target = "File." }
    /// Turns on compression for new data of a file.
    "compress" Compress { file: Target = "File." }
    /// Makes an inode durable.
    "fsync" Fsync { on: Target = "Inode." }
    /// Makes data and size of a file durable.
    "fdatasync" Fdatasync { on: Target = "Inode." }
    /// Makes everything durable.
    "sync" Sync { }
}

impl Op {
    /// True if its return guarantees durability.
    #[must_use]
    pub fn persists(&self) -> bool {
        matches!(
            self,
            Self::Fsync { .. } | Self::Fdatasync { .. } | Self::Sync {}
        )
    }

    /// True if it may delete or create a subvolume: the trait does not define the fate of held
    /// inodes in it.
    #[must_use]
    pub fn changes_subvolumes(&self) -> bool {
        matches!(
            self,
            Self::Rmdir { .. }
                | Self::Subvolume { .. }
                | Self::Snapshot { .. }
                | Self::DeleteSubvolume { .. }
                | Self::SetReadOnly { .. }
        )
    }

    /// The operation that creates this.
    #[must_use]
    pub fn create(at: String, what: NewInode<'_>, perm: u32, who: Who) -> Self {
        let kind = match what {
            NewInode::Regular => return Self::Create { at, perm, who },
            NewInode::Directory => return Self::Mkdir { at, perm, who },
            NewInode::Symlink(target) => {
                let target = String::from_utf8_lossy(target).into_owned();
                return Self::Symlink {
                    target,
                    at,
                    perm,
                    who,
                };
            }
            NewInode::CharDevice(rdev) => Special::Char(rdev),
            NewInode::BlockDevice(rdev) => Special::Block(rdev),
            NewInode::Fifo => Special::Fifo,
            NewInode::Socket => Special::Socket,
        };
        Self::Mknod {
            at,
            kind,
            perm,
            who,
        }
    }

    /// The `fallocate` in this mode.
    #[must_use]
    pub fn allocate(file: Target, offset: u64, len: u64, mode: AllocMode) -> Self {
        match mode {
            AllocMode::Allocate { keep_size: false } => Self::Allocate { file, offset, len },
            AllocMode::Allocate { keep_size: true } => Self::AllocateKeep { file, offset, len },
            AllocMode::PunchHole => Self::Punch { file, offset, len },
            AllocMode::ZeroRange { keep_size: false } => Self::Zero { file, offset, len },
            AllocMode::ZeroRange { keep_size: true } => Self::ZeroKeep { file, offset, len },
            AllocMode::CollapseRange => Self::Collapse { file, offset, len },
            AllocMode::InsertRange => Self::Insert { file, offset, len },
        }
    }

    /// File, offset, length and mode of a `fallocate`.
    #[must_use]
    pub fn allocation(&self) -> Option<(&Target, u64, u64, AllocMode)> {
        Some(match self {
            Self::Allocate { file, offset, len } => {
                let mode = AllocMode::Allocate { keep_size: false };
                (file, *offset, *len, mode)
            }
            Self::AllocateKeep { file, offset, len } => {
                let mode = AllocMode::Allocate { keep_size: true };
                (file, *offset, *len, mode)
            }
            Self::Punch { file, offset, len } => (file, *offset, *len, AllocMode::PunchHole),
            Self::Zero { file, offset, len } => {
                let mode = AllocMode::ZeroRange { keep_size: false };
                (file, *offset, *len, mode)
            }
            Self::ZeroKeep { file, offset, len } => {
                let mode = AllocMode::ZeroRange { keep_size: true };
                (file, *offset, *len, mode)
            }
            Self::Collapse { file, offset, len } => (file, *offset, *len, AllocMode::CollapseRange),
            Self::Insert { file, offset, len } => (file, *offset, *len, AllocMode::InsertRange),
            _ => return None,
        })
    }

    /// Old name, new name and mode of a rename.
    #[must_use]
    pub fn renaming(&self) -> Option<(&str, &str, RenameMode)> {
        match self {
            Self::Rename {
                from,
                to,
                no_replace,
                whiteout,
            } => {
                let (who, replace) = (Credentials::ROOT, !no_replace);
                let mode = match (whiteout, replace) {
                    (true, _) => RenameMode::Whiteout { who, replace },
                    (false, true) => RenameMode::Replace,
                    (false, false) => RenameMode::NoReplace,
                };
                Some((from, to, mode))
            }
            Self::Exchange { a, b } => Some((a, b, RenameMode::Exchange)),
            _ => None,
        }
    }

    /// The inode whose attributes it sets, and the attributes.
    fn attributes(&self) -> Option<(&Target, SetAttr)> {
        let none = SetAttr::default();
        let time = |time: Option<Timestamp>| time.map(SetTime::To);
        Some(match self {
            Self::Truncate {
                file,
                size,
                kill_setid,
            } => {
                let (size, kill_setid) = (Some(*size), *kill_setid);
                let changes = SetAttr {
                    size,
                    kill_setid,
                    ..none
                };
                (file, changes)
            }
            Self::Chmod { on, perm } => {
                let perm = Some(*perm);
                (on, SetAttr { perm, ..none })
            }
            Self::Chown { on, uid, gid } => {
                let (uid, gid) = (Some(*uid), Some(*gid));
                (on, SetAttr { uid, gid, ..none })
            }
            Self::SetTimes { on, sec } => {
                let at = |sec: u32| Timestamp {
                    sec: sec.into(),
                    nsec: 5,
                };
                let (atime, mtime) = (time(Some(at(*sec))), time(Some(at(sec.saturating_add(1)))));
                (
                    on,
                    SetAttr {
                        atime,
                        mtime,
                        ..none
                    },
                )
            }
            Self::SetAttr {
                on,
                perm,
                uid,
                gid,
                atime,
                mtime,
                kill_setid,
            } => (
                on,
                SetAttr {
                    perm: *perm,
                    uid: *uid,
                    gid: *gid,
                    atime: time(*atime),
                    mtime: time(*mtime),
                    kill_setid: *kill_setid,
                    ..none
                },
            ),
            _ => return None,
        })
    }
}

/// The whole name of an attribute.
#[must_use]
pub fn attribute(name: &str) -> String {
    if name.contains('.') {
        name.to_owned()
    } else {
        format!("user.{name}")
    }
}

/// Operations as one text: separated by `; `.
#[must_use]
pub fn to_text(ops: &[Op]) -> String {
    let ops: Vec<String> = ops.iter().map(ToString::to_string).collect();
    ops.join("; ")
}

/// Operations from a text: separated by `;` or lines. Empty ones are skipped.
///
/// # Errors
/// [`ParseError`] with the first part that is not an operation.
pub fn from_text(text: &str) -> Result<Vec<Op>, ParseError> {
    let parts = text.split([';', '\n']).map(str::trim);
    parts
        .filter(|part| !part.is_empty())
        .map(str::parse)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Generator, Settings};

    #[test]
    fn texts_come_back() {
        let text = "creat A/x; write A/x 0 4096 3; hold A/x 1; unlink A/x; fsync @1; sync; \
                    reflink A/foo 0 @1 4096 0; symlink to A/l; setxattr . n 5 2; \
                    mknod A/p kind=p perm=384 who=user; setattr @0 uid=7 mtime=-5.000000009; \
                    write @2 0 9 ~77 kill_setid=true; setvalue x user.y 00ff replace=true; \
                    append x 3 =4 offset=9";
        let ops = from_text(text).unwrap();
        assert_eq!(ops.len(), 14);
        assert_eq!(to_text(&ops), text);
        assert_eq!(
            ops[4],
            Op::Fsync {
                on: Target::Held(1)
            }
        );
        for bad in [
            "creat",
            "creat a b",
            "fly a",
            "write a 0 x 1",
            "creat a len=1",
            "creat a perm=x",
            "sync a",
        ] {
            assert!(from_text(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn texts_of_random_operations_come_back() {
        let mut settings = Settings {
            subvolumes: true,
            ..Settings::default()
        };
        settings.capabilities.shift_range = true;
        for op in Generator::new(3, &settings).take(3000) {
            assert_eq!(op.to_string().parse(), Ok(op));
        }
    }
}
