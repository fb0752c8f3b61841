//! Sapwood's own commands to a mounted file system, carried as ioctls: client and server side.
//!
//! FUSE passes on commands whose argument has the size that the command's number encodes. The ioctl
//! letter is `LETTER`. Layouts, in the machine's byte order:
//!
//! | command | number | argument |
//! |---|---|---|
//! | statistics | read, 1 | length (4 bytes), JSON |
//! | sync | none, 2 | |
//! | create a subvolume | write, 3 | name, padded with NUL to 256 |
//! | delete a subvolume | write, 4 | name, padded with NUL to 256 |
//! | snapshot | write, 5 | inode number (8), flags (8), name (256) |
//! | make read-only | write, 6 | flags (8) |
//! | daemon | read, 7 | process id (8), inode number of its PID namespace (8), flags (8) |
//! | list subvolumes | both, 8 | first id (8); answer: a page |
//! | set the default subvolume | write, 9 | id (8); all ones: the one with this root directory |
//! | first error | read, 10 | length (4 bytes), text; nothing if there was none |
//! | report the end | write, 11 | name of an abstract datagram socket, padded with NUL to 256 |
//! | options | read, 13 | length (4 bytes), text |
//! | mark as received | write, 15 | UUID (16), transaction (8) |
//! | become writable | both, 14 | as bulk work |
//! | send or receive snapshots | both, 16 | as bulk work |
//! | scrub, balance, change devices | both, 17 | as bulk work |
//! | bulk work | both, 12 | name of an abstract stream socket, padded with NUL to 256; answer: 16 bytes |
//!
//! Commands on names and bulk work go to the directory, numbers 6 and 15 to the root of the
//! subvolume, the others to any inode. Root and the mount's owner may change subvolumes and request
//! the report of the end.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use sapwood_vfs::{Entry, Error, FileSystem, Ino, SetAttr, SubvolumeId, Subvolumes};

use crate::bulk_socket::{Purpose, Token};
pub use crate::end_report::EndReport;
use crate::end_report::Waiters;
use crate::request::{Caller, ControlAnswer, Reply};
use crate::request_counts::RequestCounts;
use crate::subvolume_page::{self, SubvolumeList};

const LETTER: u32 = 0xe5;
const NAME_BYTES: usize = 256;
/// Near the most that a command's number can encode.
const STATS_BYTES: usize = 16_000;
const SNAPSHOT_BYTES: usize = 16 + NAME_BYTES;
const DAEMON_BYTES: usize = 24;
const RECEIVED_BYTES: usize = 24;
const FLAG_READ_ONLY: u64 = 1;
/// Instead of a subvolume's id: the subvolume whose root directory receives the command.
const AT_ROOT: u64 = u64::MAX;

/// Direction bits of a command's number.
#[derive(Clone, Copy)]
enum Direction {
    None = 0,
    Write = 1,
    Read = 2,
    Both = 3,
}

#[expect(clippy::cast_possible_truncation, reason = "sizes are below 16 KiB")]
const fn number(direction: Direction, command: u32, size: usize) -> u32 {
    ((direction as u32) << 30) | ((size as u32) << 16) | (LETTER << 8) | command
}

const STATS: u32 = number(Direction::Read, 1, STATS_BYTES);
const SYNC: u32 = number(Direction::None, 2, 0);
const CREATE: u32 = number(Direction::Write, 3, NAME_BYTES);
const DELETE: u32 = number(Direction::Write, 4, NAME_BYTES);
const SNAPSHOT: u32 = number(Direction::Write, 5, SNAPSHOT_BYTES);
const SET_READ_ONLY: u32 = number(Direction::Write, 6, 8);
const DAEMON: u32 = number(Direction::Read, 7, DAEMON_BYTES);
const FIRST_ERROR: u32 = number(Direction::Read, 10, STATS_BYTES);
const REPORT_END: u32 = number(Direction::Write, 11, NAME_BYTES);
const OPTIONS: u32 = number(Direction::Read, 13, STATS_BYTES);
const WRITING: u32 = number(Direction::Both, 14, NAME_BYTES);
const BULK: u32 = number(Direction::Both, 12, NAME_BYTES);
const STREAMS: u32 = number(Direction::Both, 16, NAME_BYTES);
const UPKEEP: u32 = number(Direction::Both, 17, NAME_BYTES);
const SET_RECEIVED: u32 = number(Direction::Write, 15, RECEIVED_BYTES);
const LIST: u32 = number(Direction::Both, 8, STATS_BYTES);
const SET_DEFAULT: u32 = number(Direction::Write, 9, 8);

/// Whether a command covers everything written before it: then the kernel's dirty pages must reach
/// the daemon first. The caller's `syncfs` starts their write-back, but waits for it only where the
/// kernel passes `syncfs` on to the daemon.
pub(crate) fn wants_settled(command: u32) -> bool {
    matches!(command, SYNC | SNAPSHOT | SET_READ_ONLY | SET_RECEIVED)
}

/// The purpose of a command that has the daemon [connect](crate::bulk) to the socket of a client;
/// `None` for any other command.
pub(crate) fn connects(command: u32) -> Option<Purpose> {
    match command {
        BULK => Some(Purpose::Files),
        WRITING => Some(Purpose::Writing),
        STREAMS => Some(Purpose::Streams),
        UPKEEP => Some(Purpose::Upkeep),
        _ => None,
    }
}

/// The name of the socket in a command that [`connects`].
pub(crate) fn socket_name(input: &[u8]) -> Reply<Vec<u8>> {
    name_at(input, 0)
}

/// The daemon's interface for commands outside of the file system.
pub(crate) struct Server<'a> {
    pub(crate) requests: &'a RequestCounts,
    pub(crate) waiters: &'a Waiters,
    /// The answer to a question for the mount's options.
    pub(crate) options: &'a str,
}

/// Answers one of these commands; `None` for any other command.
pub(crate) fn handle(
    fs: &dyn FileSystem,
    server: &Server<'_>,
    who: Caller,
    ino: Ino,
    command: u32,
    input: &[u8],
) -> Option<Reply<ControlAnswer>> {
    Some(match command {
        STATS => answer_text(&server.requests.add_to(&fs.stats_json())),
        OPTIONS => answer_text(server.options),
        FIRST_ERROR => answer_text(&fs.first_error().unwrap_or_default()),
        REPORT_END => check_owner(who).and_then(|()| {
            server.waiters.add(&name_at(input, 0)?)?;
            Ok(ControlAnswer::default())
        }),
        DAEMON => Ok(answer_daemon(fs)),
        SYNC => fs.sync().map(|()| ControlAnswer::default()).map_err(errno),
        CREATE | DELETE | SNAPSHOT | SET_READ_ONLY | SET_RECEIVED => subvolumes(fs, who)
            .and_then(|subvolumes| change(fs, subvolumes, who, ino, command, input)),
        LIST => subvolumes(fs, who).and_then(|subvolumes| answer_list(subvolumes, input)),
        SET_DEFAULT => subvolumes(fs, who).and_then(|subvolumes| {
            let id = match number_at(input, 0)? {
                AT_ROOT => subvolumes.subvolume_at(ino).map_err(errno)?,
                id => SubvolumeId(id),
            };
            subvolumes.set_default_subvolume(id).map_err(errno)?;
            Ok(ControlAnswer::default())
        }),
        _ => return None,
    })
}

fn errno(error: Error) -> i32 {
    error.errno()
}

fn subvolumes(fs: &dyn FileSystem, who: Caller) -> Reply<&dyn Subvolumes> {
    check_owner(who)?;
    fs.subvolumes().ok_or(libc::EOPNOTSUPP)
}

pub(crate) fn check_owner(who: Caller) -> Reply<()> {
    if who.uid != 0 && who.uid != rustix::process::geteuid().as_raw() {
        return Err(libc::EPERM);
    }
    Ok(())
}

fn answer_text(text: &str) -> Reply<ControlAnswer> {
    let len = u32::try_from(text.len()).map_err(|_| libc::EOVERFLOW)?;
    if text.len() > STATS_BYTES - 4 {
        return Err(libc::EOVERFLOW);
    }
    let mut output = len.to_ne_bytes().to_vec();
    output.extend_from_slice(text.as_bytes());
    Ok(ControlAnswer {
        output,
        changed_name: None,
    })
}

fn answer_daemon(fs: &dyn FileSystem) -> ControlAnswer {
    let fields = [
        u64::from(std::process::id()),
        pid_namespace().unwrap_or(0),
        if fs.read_only() { FLAG_READ_ONLY } else { 0 },
    ];
    ControlAnswer {
        output: fields
            .iter()
            .flat_map(|field| field.to_ne_bytes())
            .collect(),
        changed_name: None,
    }
}

/// Inode number of this process's PID namespace.
pub(crate) fn pid_namespace() -> io::Result<u64> {
    std::fs::metadata("/proc/self/ns/pid").map(|namespace| namespace.ino())
}

fn answer_list(subvolumes: &dyn Subvolumes, input: &[u8]) -> Reply<ControlAnswer> {
    let list = SubvolumeList {
        default: subvolumes.default_subvolume().map_err(errno)?,
        subvolumes: subvolumes.list().map_err(errno)?,
    };
    let page = subvolume_page::encode(&list, number_at(input, 0)?, STATS_BYTES);
    Ok(ControlAnswer {
        output: page.ok_or(libc::EOVERFLOW)?,
        changed_name: None,
    })
}

fn change(
    fs: &dyn FileSystem,
    subvolumes: &dyn Subvolumes,
    who: Caller,
    ino: Ino,
    command: u32,
    input: &[u8],
) -> Reply<ControlAnswer> {
    let made = match command {
        SET_READ_ONLY => {
            let on = number_at(input, 0)? & FLAG_READ_ONLY != 0;
            subvolumes.set_read_only(ino, on).map_err(errno)?;
            return Ok(ControlAnswer::default());
        }
        SET_RECEIVED => {
            let uuid = *input.first_chunk().ok_or(libc::EINVAL)?;
            // The mark says that all data is there.
            fs.sync().map_err(errno)?;
            let marked = subvolumes.set_received(ino, uuid, number_at(input, 16)?);
            marked.map_err(errno)?;
            return Ok(ControlAnswer::default());
        }
        DELETE => {
            let name = name_at(input, 0)?;
            subvolumes.delete_subvolume(ino, &name).map_err(errno)?;
            return Ok(ControlAnswer {
                output: Vec::new(),
                changed_name: Some(name),
            });
        }
        CREATE => {
            let name = name_at(input, 0)?;
            let made = subvolumes.create_subvolume(ino, &name);
            (made.and_then(|entry| give_to(fs, entry, who)), name)
        }
        _ => {
            let source = Ino(number_at(input, 0)?);
            let read_only = number_at(input, 8)? & FLAG_READ_ONLY != 0;
            let name = name_at(input, 16)?;
            (subvolumes.snapshot(source, ino, &name, read_only), name)
        }
    };
    let (entry, name) = made;
    // The kernel has not looked the new node up, so it would never forget this reference.
    fs.forget(entry.map_err(errno)?.ino(), 1);
    Ok(ControlAnswer {
        output: Vec::new(),
        changed_name: Some(name),
    })
}

/// Makes the caller the owner of a new subvolume.
fn give_to(fs: &dyn FileSystem, entry: Entry, who: Caller) -> sapwood_vfs::Result<Entry> {
    if (entry.attr.uid, entry.attr.gid) != (who.uid, who.gid) {
        let owner = SetAttr {
            uid: Some(who.uid),
            gid: Some(who.gid),
            ..SetAttr::default()
        };
        let given = fs.setattr(entry.ino(), &owner);
        given.inspect_err(|_| fs.forget(entry.ino(), 1))?;
    }
    Ok(entry)
}

fn number_at(input: &[u8], at: usize) -> Reply<u64> {
    input
        .get(at..)
        .and_then(|rest| rest.first_chunk::<8>())
        .map(|bytes| u64::from_ne_bytes(*bytes))
        .ok_or(libc::EINVAL)
}

fn name_at(input: &[u8], at: usize) -> Reply<Vec<u8>> {
    let field = input.get(at..at + NAME_BYTES).ok_or(libc::EINVAL)?;
    let name = field.split(|&byte| byte == 0).next().unwrap_or(field);
    if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') {
        return Err(libc::EINVAL);
    }
    if name.len() == NAME_BYTES {
        return Err(libc::ENAMETOOLONG);
    }
    Ok(name.to_vec())
}

fn name_field(name: &[u8]) -> io::Result<[u8; NAME_BYTES]> {
    let mut field = [0; NAME_BYTES];
    match field.get_mut(..name.len()) {
        Some(start) if name.len() < NAME_BYTES => start.copy_from_slice(name),
        _ => return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG)),
    }
    Ok(field)
}

/// Statistics of the file system mounted at `path`, as JSON.
///
/// # Errors
/// `ENOTTY` if it is not a Sapwood mount.
pub fn stats(path: &Path) -> io::Result<String> {
    read_text::<STATS>(path)
}

/// The first error since the mount that lost written data, or that ended all changes, in the file
/// system mounted at `path`.
///
/// # Errors
/// `ENOTTY` if it is not a Sapwood mount.
pub fn first_error(path: &Path) -> io::Result<Option<String>> {
    let text = read_text::<FIRST_ERROR>(path)?;
    Ok(Some(text).filter(|text| !text.is_empty()))
}

/// The options of the file system mounted at `path`, as its daemon reports them
/// ([`MountOptions::told`](crate::MountOptions::told)).
///
/// # Errors
/// `ENOTTY` if it is not a Sapwood mount, or if its version does not report them.
pub fn options(path: &Path) -> io::Result<String> {
    read_text::<OPTIONS>(path)
}

fn read_text<const NUMBER: u32>(path: &Path) -> io::Result<String> {
    let mut buffer = [0; STATS_BYTES];
    call::read::<NUMBER, STATS_BYTES>(&File::open(path)?, &mut buffer)?;
    let (len, text) = buffer.split_at(4);
    let len = len.first_chunk().map_or(0, |len| u32::from_ne_bytes(*len));
    let text = usize::try_from(len).ok().and_then(|len| text.get(..len));
    text.and_then(|text| std::str::from_utf8(text).ok())
        .map(str::to_owned)
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Makes the daemon of the file system mounted at `path` report how the mount ends.
///
/// # Errors
/// `ENOTTY` if it is not a Sapwood mount, `EPERM`, `ECONNREFUSED` if the daemon is in another
/// network namespace.
pub fn report_end(path: &Path) -> io::Result<EndReport> {
    let (report, name) = EndReport::new()?;
    call::write::<REPORT_END, NAME_BYTES>(&File::open(path)?, name_field(name.as_bytes())?)?;
    Ok(report)
}

/// Has the daemon connect to a socket for [bulk work](crate::bulk) in a directory. Returns the
/// token that it sends first.
pub(crate) fn offer_bulk(dir: impl AsFd, purpose: Purpose, name: &[u8]) -> io::Result<Token> {
    let mut argument = name_field(name)?;
    match purpose {
        Purpose::Files => call::read::<BULK, NAME_BYTES>(dir, &mut argument)?,
        Purpose::Writing => call::read::<WRITING, NAME_BYTES>(dir, &mut argument)?,
        Purpose::Streams => call::read::<STREAMS, NAME_BYTES>(dir, &mut argument)?,
        Purpose::Upkeep => call::read::<UPKEEP, NAME_BYTES>(dir, &mut argument)?,
    }
    argument
        .first_chunk()
        .copied()
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Makes everything durable in the file system mounted at `path`. `syncfs` alone only starts the
/// write-back of the kernel's dirty pages: FUSE does not pass it on.
///
/// # Errors
/// `ENOTTY` if it is not a Sapwood mount; errors of the engine.
pub fn sync(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    rustix::fs::syncfs(&file)?;
    call::nothing::<SYNC>(&file)
}

/// The process that serves a mount.
#[derive(Debug)]
pub struct Daemon {
    /// A descriptor of the process, and its id; `None` if it is in another PID namespace.
    pub process: Option<(OwnedFd, i32)>,
    /// It has opened the image read-only.
    pub read_only: bool,
}

/// The daemon of the file system mounted at `path`.
///
/// # Errors
/// `ENOTTY` if it is not a Sapwood mount, `ENOTCONN` if the daemon has died.
pub fn daemon(path: &Path) -> io::Result<Daemon> {
    let root = File::open(path)?;
    let ask = || -> io::Result<[u64; 3]> {
        let mut buffer = [0; DAEMON_BYTES];
        call::read::<DAEMON, DAEMON_BYTES>(&root, &mut buffer)?;
        let mut fields = [0; 3];
        for (field, bytes) in fields.iter_mut().zip(buffer.chunks_exact(8)) {
            *field = bytes
                .first_chunk()
                .map_or(0, |bytes| u64::from_ne_bytes(*bytes));
        }
        Ok(fields)
    };
    let [process, namespace, flags] = ask()?;
    let here = pid_namespace().is_ok_and(|here| here == namespace);
    let number = i32::try_from(process).ok().filter(|_| here);
    let opened = number
        .and_then(Pid::from_raw)
        .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    if opened.is_some() {
        // The daemon still answers, so its process id was not reused before the descriptor was
        // opened.
        ask()?;
    }
    Ok(Daemon {
        process: opened.zip(number),
        read_only: flags & FLAG_READ_ONLY != 0,
    })
}

/// Creates a subvolume `name` in the mounted directory `dir`.
///
/// # Errors
/// `ENOTTY` if it is not a Sapwood mount, `EPERM`, `EOPNOTSUPP`; errors of the engine.
pub fn create_subvolume(dir: &Path, name: &[u8]) -> io::Result<()> {
    call::write::<CREATE, NAME_BYTES>(&File::open(dir)?, name_field(name)?)
}

/// Deletes the subvolume `name` in the mounted directory `dir`.
///
/// # Errors
/// `ENOTTY` if it is not a Sapwood mount; errors of the daemon.
pub fn delete_subvolume(dir: &Path, name: &[u8]) -> io::Result<()> {
    call::write::<DELETE, NAME_BYTES>(&File::open(dir)?, name_field(name)?)
}

/// Creates in `dir` a snapshot `name` of the subvolume with root `source`. It contains everything
/// written before the call.
///
/// # Errors
/// `ENOTTY` if it is not a Sapwood mount; `EXDEV` if the two are not in the same mount; errors of
/// the daemon.
pub fn snapshot(source: &Path, dir: &Path, name: &[u8], read_only: bool) -> io::Result<()> {
    let (source, dir) = (File::open(source)?, File::open(dir)?);
    let (source_meta, dir_meta) = (source.metadata()?, dir.metadata()?);
    if source_meta.dev() != dir_meta.dev() {
        return Err(io::Error::from_raw_os_error(libc::EXDEV));
    }
    rustix::fs::syncfs(&source)?;
    let mut argument = [0; SNAPSHOT_BYTES];
    let (numbers, name_part) = argument.split_at_mut(16);
    numbers[..8].copy_from_slice(&source_meta.ino().to_ne_bytes());
    numbers[8..].copy_from_slice(&u64::from(read_only).to_ne_bytes());
    name_part.copy_from_slice(&name_field(name)?);
    call::write::<SNAPSHOT, SNAPSHOT_BYTES>(&dir, argument)
}

/// Makes the subvolume with root `root` read-only, or writable again.
///
/// # Errors
/// `ENOTTY` if it is not a Sapwood mount; errors of the daemon.
pub fn set_read_only(root: &Path, read_only: bool) -> io::Result<()> {
    let root = File::open(root)?;
    rustix::fs::syncfs(&root)?;
    let argument = u64::from(read_only).to_ne_bytes();
    call::write::<SET_READ_ONLY, 8>(&root, argument)
}

/// Records that the subvolume with root `root` was received as a copy of the subvolume `uuid` as of
/// its transaction `transid`, and makes it read-only and durable.
///
/// # Errors
/// `ENOTTY` if it is not a Sapwood mount; `EINVAL` if it is not the root of a subvolume; errors of
/// the daemon.
pub fn set_received(root: &Path, uuid: [u8; 16], transid: u64) -> io::Result<()> {
    let root = File::open(root)?;
    rustix::fs::syncfs(&root)?;
    let mut argument = [0; RECEIVED_BYTES];
    let (uuid_part, number) = argument.split_at_mut(16);
    uuid_part.copy_from_slice(&uuid);
    number.copy_from_slice(&transid.to_ne_bytes());
    call::write::<SET_RECEIVED, RECEIVED_BYTES>(&root, argument)
}

/// All subvolumes of the file system mounted at `path`, and its default one.
///
/// # Errors
/// `ENOTTY` if it is not a Sapwood mount; errors of the daemon.
pub fn list_subvolumes(path: &Path) -> io::Result<SubvolumeList> {
    let file = File::open(path)?;
    let mut first = 0_u64;
    let mut all: Option<SubvolumeList> = None;
    loop {
        let mut buffer = [0; STATS_BYTES];
        buffer[..8].copy_from_slice(&first.to_ne_bytes());
        call::read::<LIST, STATS_BYTES>(&file, &mut buffer)?;
        let (page, more) = subvolume_page::decode(&buffer).ok_or(io::ErrorKind::InvalidData)?;
        first = page
            .subvolumes
            .last()
            .map_or(first, |last| last.id.0.saturating_add(1));
        let more = more && !page.subvolumes.is_empty();
        let list = match all.take() {
            None => page,
            Some(mut list) => {
                list.subvolumes.extend(page.subvolumes);
                list
            }
        };
        if !more {
            return Ok(list);
        }
        all = Some(list);
    }
}

/// Makes the subvolume `id` of the file system mounted at `path` the default one.
///
/// # Errors
/// `ENOTTY` if it is not a Sapwood mount; `ENOENT` if there is no such subvolume.
pub fn set_default_subvolume(path: &Path, id: SubvolumeId) -> io::Result<()> {
    call::write::<SET_DEFAULT, 8>(&File::open(path)?, id.0.to_ne_bytes())
}

/// Makes the subvolume with root `root` the default one.
///
/// # Errors
/// `ENOTTY` if it is not a Sapwood mount; `EINVAL` if it is not the root of a subvolume.
pub fn set_default_to(root: &Path) -> io::Result<()> {
    call::write::<SET_DEFAULT, 8>(&File::open(root)?, AT_ROOT.to_ne_bytes())
}

/// An ioctl passes a pointer to the kernel, hence `unsafe`. Each argument here is an array of bytes
/// of exactly the size, and for the direction, that the command's number encodes. Other file
/// systems do not know these numbers.
#[expect(unsafe_code, reason = "ioctl; see the module's text")]
mod call {
    use std::fs::File;
    use std::io;
    use std::os::fd::AsFd;

    use rustix::ioctl::{NoArg, Setter, Updater, ioctl};

    const fn encodes(number: u32, size: usize) -> bool {
        ((number >> 16) & 0x3fff) as usize == size
    }

    pub(super) fn nothing<const NUMBER: u32>(file: &File) -> io::Result<()> {
        const { assert!(encodes(NUMBER, 0)) };
        // SAFETY: no argument.
        unsafe { ioctl(file, NoArg::<NUMBER>::new()) }?;
        Ok(())
    }

    pub(super) fn read<const NUMBER: u32, const SIZE: usize>(
        file: impl AsFd,
        into: &mut [u8; SIZE],
    ) -> io::Result<()> {
        const { assert!(encodes(NUMBER, SIZE)) };
        // SAFETY: the kernel writes no more than the encoded size.
        unsafe { ioctl(file, Updater::<NUMBER, [u8; SIZE]>::new(into)) }?;
        Ok(())
    }

    pub(super) fn write<const NUMBER: u32, const SIZE: usize>(
        file: &File,
        from: [u8; SIZE],
    ) -> io::Result<()> {
        const { assert!(encodes(NUMBER, SIZE)) };
        // SAFETY: the kernel reads no more than the encoded size.
        unsafe { ioctl(file, Setter::<NUMBER, [u8; SIZE]>::new(from)) }?;
        Ok(())
    }
}
