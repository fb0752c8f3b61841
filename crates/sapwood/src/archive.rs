//! The files of a tar archive, put into an image.
//!
//! An archive may be compressed with gzip or zstd. Names are taken from the root of the image, or
//! from a directory in it, with or without a leading `/`; one with `..` is refused. Symbolic links
//! are followed within the image only, and below a directory not at all, because they could lead
//! out of it. A later entry replaces an earlier one
//! of its name. Owners are the numbers of the archive. Times and extended attributes of the pax
//! format are kept (`mtime`, `SCHILY.xattr.*`), and runs of zeros become holes.

use std::fs::File as HostFile;
use std::io::{self, BufReader, Cursor, Read, Seek, SeekFrom};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use tar::EntryType;

use crate::fs::{File, FileSystem};
use crate::progress::{self, OnProgress, Progress};
use crate::tree;
use crate::vfs::{self, Credentials, NewInode, SetAttr, SetTime, SetXattrMode, Timestamp};

/// Bytes in which content is copied, and which become a hole if all are zero.
const PIECE: usize = 64 * 1024;
/// Unit of space of both formats, in bytes, as the archive's need is estimated.
const BLOCK: u64 = 4096;

/// Why an archive was not put into an image.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// It is no tar archive, is cut short, or cannot be read.
    #[error("the archive cannot be read: {0}")]
    Read(#[from] io::Error),
    /// A field of an entry makes no sense.
    #[error("{}: {field} makes no sense", path.display())]
    Field {
        /// Name of the entry.
        path: PathBuf,
        /// The field.
        field: &'static str,
    },
    /// The name of an entry, or what it is a hard link to, leads out of the archive.
    #[error("{}: the name leads out of the archive", .0.display())]
    Outside(PathBuf),
    /// The name of an entry leads through a symbolic link, which could lead out of the directory
    /// that the archive is put into.
    #[error("{}: the name leads through a symbolic link", .0.display())]
    ThroughLink(PathBuf),
    /// It is compressed in a way that is not read.
    #[error("the archive is compressed with {0}, which is not read: decompress it first")]
    Compression(&'static str),
    /// An entry of a type that no image can have.
    #[error("{}: unknown type {kind:#x}", path.display())]
    Kind {
        /// Name of the entry.
        path: PathBuf,
        /// Its type byte.
        kind: u8,
    },
    /// A sparse file of the pax format, whose content would be misread.
    #[error("{}: sparse files are read from archives of --format=gnu only", .0.display())]
    Sparse(PathBuf),
    /// Attributes of an entry could not be set.
    #[error("{}: {source}", path.display())]
    Inode {
        /// Name of the entry.
        path: PathBuf,
        /// What the file system says.
        source: vfs::Error,
    },
    /// An entry could not be made.
    #[error(transparent)]
    FileSystem(#[from] crate::Error),
}

type Result<T> = std::result::Result<T, ArchiveError>;

/// An archive, kept in a file without a name.
#[derive(Debug)]
pub(crate) struct Archive {
    file: HostFile,
    entries: u64,
    bytes: u64,
}

/// What an entry says of its inode.
struct Attributes {
    changes: SetAttr,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Archive {
    /// Reads all of an archive, and every header in it.
    pub(crate) fn read(mut reader: impl Read) -> Result<Self> {
        let mut file = tempfile::tempfile()?;
        io::copy(&mut plain(&mut reader)?, &mut file)?;
        let mut archive = Self {
            file,
            entries: 0,
            bytes: 0,
        };
        let (mut entries, mut bytes) = (0_u64, 0_u64);
        for entry in archive.rewound()?.entries()? {
            let stored = entry?.header().entry_size()?;
            entries += 1;
            bytes = bytes.saturating_add(stored.div_ceil(BLOCK).saturating_mul(BLOCK));
        }
        (archive.entries, archive.bytes) = (entries, bytes);
        Ok(archive)
    }

    /// Entries in it.
    pub(crate) fn entries(&self) -> u64 {
        self.entries
    }

    /// Bytes that the content of its files takes in whole blocks.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn rewound(&self) -> io::Result<tar::Archive<BufReader<&HostFile>>> {
        let mut file = &self.file;
        file.seek(SeekFrom::Start(0))?;
        Ok(tar::Archive::new(BufReader::new(file)))
    }

    /// Makes every entry in an image.
    pub(crate) fn extract(&self, fs: &FileSystem, progress: &mut OnProgress<'_>) -> Result<()> {
        extract(self.rewound()?, fs, Path::new("/"), progress)
    }
}

/// Makes every entry of an archive below the directory `base` of an image.
fn extract(
    mut archive: tar::Archive<impl Read>,
    fs: &FileSystem,
    base: &Path,
    progress: &mut OnProgress<'_>,
) -> Result<()> {
    // What is made in a directory changes its times, so those come last.
    let mut directories = Vec::new();
    for (done, entry) in (1..).zip(archive.entries()?) {
        let mut entry = entry?;
        let named = PathBuf::from(std::ffi::OsString::from_vec(
            entry.path_bytes().into_owned(),
        ));
        let kind = entry.header().entry_type();
        if kind == EntryType::XGlobalHeader {
            continue;
        }
        let path = inside(base, &named)?;
        without_links(fs, base, &path, &named)?;
        let attributes = Attributes::of(&mut entry, &named)?;
        if kind == EntryType::Directory || named.as_os_str().as_bytes().ends_with(b"/") {
            vacate(fs, &path, true)?;
            fs.create_dir_all(&path)?;
            directories.push((path, attributes));
        } else {
            vacate(fs, &path, false)?;
            if let Some(parent) = path.parent() {
                fs.create_dir_all(parent)?;
            }
            if make(fs, &mut entry, kind, &named, base, &path)? {
                attributes.apply(fs, &path)?;
            }
        }
        progress(Progress::Done {
            phase: "extract",
            done,
        });
    }
    directories
        .into_iter()
        .try_for_each(|(path, attributes)| attributes.apply(fs, &path))
}

/// What a reader has, decompressed.
fn plain<'r>(mut reader: impl Read + 'r) -> Result<Box<dyn Read + 'r>> {
    let mut start = Vec::new();
    reader.by_ref().take(6).read_to_end(&mut start)?;
    let all = Cursor::new(start.clone()).chain(reader);
    Ok(match *start {
        [0x1f, 0x8b, ..] => Box::new(flate2::read::MultiGzDecoder::new(all)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Box::new(zstd::Decoder::new(all)?),
        [0xfd, b'7', b'z', b'X', b'Z', 0] => return Err(ArchiveError::Compression("xz")),
        [b'B', b'Z', b'h', ..] => return Err(ArchiveError::Compression("bzip2")),
        _ => Box::new(all),
    })
}

impl FileSystem {
    /// Puts the files of a tar archive into the image. An entry replaces a file of its name, and is
    /// added to a directory of its name. A directory that is not in the archive belongs to the
    /// [creator](Self::set_creator).
    ///
    /// # Errors
    /// [`ArchiveError`]; what was extracted until then stays.
    pub fn extract_tar(&self, archive: impl Read) -> Result<()> {
        self.extract_tar_into("/", archive, &mut progress::ignore)
    }

    /// As [`extract_tar`](Self::extract_tar), into a directory that exists, with progress. Below
    /// any other directory than the root no symbolic link is followed.
    ///
    /// # Errors
    /// [`ArchiveError`]; what was extracted until then stays.
    pub fn extract_tar_into(
        &self,
        dir: impl AsRef<Path>,
        archive: impl Read,
        progress: &mut OnProgress<'_>,
    ) -> Result<()> {
        let base = Path::new("/").join(dir);
        self.read_dir(&base)?;
        let buffered = BufReader::with_capacity(PIECE, plain(archive)?);
        let archive = tar::Archive::new(buffered);
        extract(archive, self, &base, progress)
    }
}

/// The path of an entry below `base`, from the root of the image.
fn inside(base: &Path, named: &Path) -> Result<PathBuf> {
    let mut path = base.to_owned();
    for part in named.as_os_str().as_bytes().split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return Err(ArchiveError::Outside(named.to_owned())),
            name => path.push(std::ffi::OsStr::from_bytes(name)),
        }
    }
    Ok(path)
}

/// Fails if a directory of `path` below `base` is a symbolic link. Links of the whole image stay in
/// the image, and are part of how systems are laid out (`/lib`).
fn without_links(fs: &FileSystem, base: &Path, path: &Path, named: &Path) -> Result<()> {
    if base == Path::new("/") {
        return Ok(());
    }
    for dir in path.ancestors().skip(1).take_while(|dir| *dir != base) {
        match fs.symlink_metadata(dir) {
            Ok(found) if found.is_symlink() => {
                return Err(ArchiveError::ThroughLink(named.to_owned()));
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Removes what an earlier entry made under this name, unless both are directories.
fn vacate(fs: &FileSystem, path: &Path, directory: bool) -> Result<()> {
    let found = match fs.symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    match (found.is_dir(), directory) {
        (true, true) => {}
        (true, false) => fs.remove_dir(path)?,
        (false, _) => fs.remove_file(path)?,
    }
    Ok(())
}

/// Makes what is no directory. False for one more name of an inode, which has its attributes.
fn make(
    fs: &FileSystem,
    entry: &mut tar::Entry<'_, impl Read>,
    kind: EntryType,
    named: &Path,
    base: &Path,
    path: &Path,
) -> Result<bool> {
    let link = entry.link_name_bytes().map(std::borrow::Cow::into_owned);
    let link = link.map(|link| PathBuf::from(std::ffi::OsString::from_vec(link)));
    let target = || {
        link.clone().ok_or_else(|| ArchiveError::Field {
            path: named.to_owned(),
            field: "the target of a link",
        })
    };
    match kind {
        EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
            write(entry, &fs.create(path)?)?;
        }
        EntryType::Link => {
            let target = target()?;
            let source = inside(base, &target)?;
            without_links(fs, base, &source, &target)?;
            fs.hard_link(source, path)?;
            return Ok(false);
        }
        EntryType::Symlink => fs.symlink(target()?, path)?,
        EntryType::Char => node(fs, path, NewInode::CharDevice(device(entry, named)?))?,
        EntryType::Block => node(fs, path, NewInode::BlockDevice(device(entry, named)?))?,
        EntryType::Fifo => node(fs, path, NewInode::Fifo)?,
        other => {
            return Err(ArchiveError::Kind {
                path: named.to_owned(),
                kind: other.as_byte(),
            });
        }
    }
    Ok(true)
}

/// Copies content; what is zero becomes a hole.
fn write(entry: &mut impl Read, file: &File) -> Result<()> {
    let mut piece = vec![0; PIECE];
    let mut at = 0_u64;
    loop {
        let mut filled = 0;
        while filled < PIECE {
            match entry.read(piece.get_mut(filled..).unwrap_or_default())? {
                0 => break,
                count => filled += count,
            }
        }
        let content = piece.get(..filled).unwrap_or_default();
        if content.iter().any(|byte| *byte != 0) {
            file.write_at(content, at)?;
        }
        at += filled as u64;
        if filled < PIECE {
            return Ok(file.set_len(at)?);
        }
    }
}

/// Number of a device node.
fn device(entry: &tar::Entry<'_, impl Read>, named: &Path) -> Result<u64> {
    let header = entry.header();
    let part = |part: io::Result<Option<u32>>| part.ok().flatten();
    match (part(header.device_major()), part(header.device_minor())) {
        (Some(major), Some(minor)) => Ok(rustix::fs::makedev(major, minor)),
        _ => Err(ArchiveError::Field {
            path: named.to_owned(),
            field: "the device number",
        }),
    }
}

fn node(fs: &FileSystem, path: &Path, what: NewInode<'_>) -> Result<()> {
    let vfs: &dyn vfs::FileSystem = &**fs.engine();
    let made = tree::resolve_parent(vfs, path.as_os_str().as_bytes())
        .and_then(|(dir, name)| vfs.create(&Credentials::ROOT, dir.ino(), &name, what, 0o600));
    let made = made.map_err(|source| ArchiveError::Inode {
        path: path.to_owned(),
        source,
    })?;
    vfs.forget(made.attr.ino, 1);
    Ok(())
}

impl Attributes {
    fn of(entry: &mut tar::Entry<'_, impl Read>, named: &Path) -> Result<Self> {
        let wrong = |field| ArchiveError::Field {
            path: named.to_owned(),
            field,
        };
        let header = entry.header();
        let mode = header.mode().map_err(|_| wrong("the mode"))?;
        let mut uid = header.uid().map_err(|_| wrong("the owner"))?;
        let mut gid = header.gid().map_err(|_| wrong("the group"))?;
        let sec = header.mtime().map_err(|_| wrong("the time"))?;
        let mut mtime = Timestamp {
            sec: i64::try_from(sec).map_err(|_| wrong("the time"))?,
            nsec: 0,
        };
        let link = header.entry_type() == EntryType::Symlink;
        let mut xattrs = Vec::new();
        for record in entry.pax_extensions()?.into_iter().flatten() {
            let record = record?;
            let (Ok(key), value) = (record.key(), record.value_bytes()) else {
                continue;
            };
            let number = || std::str::from_utf8(value).ok()?.parse().ok();
            match key {
                "uid" => uid = number().ok_or_else(|| wrong("the owner"))?,
                "gid" => gid = number().ok_or_else(|| wrong("the group"))?,
                "mtime" => mtime = time(value).ok_or_else(|| wrong("the time"))?,
                sparse if sparse.starts_with("GNU.sparse.") => {
                    return Err(ArchiveError::Sparse(named.to_owned()));
                }
                acl if acl.starts_with("SCHILY.acl.") => {
                    log::warn!("{}: {acl} is left out", named.display());
                }
                _ => {
                    if let Some(name) = key.strip_prefix("SCHILY.xattr.") {
                        xattrs.push((name.as_bytes().to_vec(), value.to_vec()));
                    }
                }
            }
        }
        Ok(Self {
            changes: SetAttr {
                perm: (!link).then_some(mode & 0o7777),
                uid: Some(u32::try_from(uid).map_err(|_| wrong("the owner"))?),
                gid: Some(u32::try_from(gid).map_err(|_| wrong("the group"))?),
                atime: Some(SetTime::To(mtime)),
                mtime: Some(SetTime::To(mtime)),
                ..SetAttr::default()
            },
            xattrs,
        })
    }

    fn apply(self, fs: &FileSystem, path: &Path) -> Result<()> {
        let vfs: &dyn vfs::FileSystem = &**fs.engine();
        let set = || {
            let node = tree::resolve(vfs, path.as_os_str().as_bytes(), false)?;
            vfs.setattr(node.ino(), &self.changes)?;
            for (name, value) in &self.xattrs {
                vfs.setxattr(node.ino(), name, value, SetXattrMode::Any)?;
            }
            Ok(())
        };
        set().map_err(|source| ArchiveError::Inode {
            path: path.to_owned(),
            source,
        })
    }
}

/// A time of the pax format: seconds, and a fraction if there is one.
fn time(text: &[u8]) -> Option<Timestamp> {
    let text = std::str::from_utf8(text).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let sec: i64 = whole.parse().ok()?;
    let digits: String = fraction
        .chars()
        .chain("000000000".chars())
        .take(9)
        .collect();
    let nsec: u32 = digits.parse().ok()?;
    match (whole.starts_with('-'), nsec) {
        (true, 1..) => Some(Timestamp {
            sec: sec.checked_sub(1)?,
            nsec: 1_000_000_000 - nsec,
        }),
        _ => Some(Timestamp { sec, nsec }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_fractions_and_may_be_before_1970() {
        let at = |sec, nsec| Some(Timestamp { sec, nsec });
        assert_eq!(time(b"17"), at(17, 0));
        assert_eq!(time(b"17.25"), at(17, 250_000_000));
        assert_eq!(time(b"17.1234567899"), at(17, 123_456_789));
        assert_eq!(time(b"-1.25"), at(-2, 750_000_000));
        assert_eq!(time(b"soon"), None);
        assert_eq!(time(b"1.x"), None);
    }

    #[test]
    fn names_stay_inside() {
        let path = |base, named| inside(Path::new(base), Path::new(named)).unwrap();
        assert_eq!(path("/", "./a//b/"), Path::new("/a/b"));
        assert_eq!(path("/", "/etc"), Path::new("/etc"));
        assert_eq!(path("/app", "/etc"), Path::new("/app/etc"));
        assert_eq!(path("/", "./"), Path::new("/"));
        assert!(matches!(
            inside(Path::new("/"), Path::new("a/../b")),
            Err(ArchiveError::Outside(_))
        ));
    }
}
