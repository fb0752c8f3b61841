//! Reading tar archives: ustar, pax, GNU and the format of V7.
//!
//! The crate `tar` decodes the fields of a header. Its reader of archives is not used: it reads
//! extended headers of any size into memory, reads holes as zeros, ignores global headers, and does
//! not know the sparse files of the pax format.

use std::fmt::{self, Display, Formatter};
use std::io::{self, Read};
use std::rc::Rc;

use tar::{EntryType, GnuExtSparseHeader, Header};

use super::entry::{Attributes, Entries, Entry, EntryKind, check_length, device};
use super::error::{ArchiveError, Result, path};
use super::pax::{Extended, Records};
use super::sparse::{self, Map, Pieces};
use crate::vfs::{FileKind, Timestamp};

const BLOCK: usize = 512;
/// Most bytes of an extended header. The attributes of a file on Linux have less.
const HEADER_MAX: u64 = 4 << 20;
/// Most bytes of a global header, which concerns every entry after it.
const GLOBAL_MAX: u64 = 64 << 10;
/// Most bytes of a long name.
const NAME_MAX: u64 = 64 << 10;

/// A tar archive that is being read, decompressed.
pub(crate) struct TarReader<R> {
    reader: R,
    /// Bytes that were read.
    position: u64,
    /// Bytes of the entry that were not read.
    left: u64,
    /// Bytes after them up to the next block.
    padding: u64,
    map: Map,
    /// Name of the entry that was read last.
    current: Option<Vec<u8>>,
    global: Rc<Extended>,
    ended: bool,
    /// An archive may end without its mark.
    open_end: bool,
}

/// Fields of an entry from the headers before its own.
#[derive(Default)]
struct Extensions {
    records: Extended,
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    any: bool,
}

/// The warning about an archive that may be cut short.
struct LoneBlock {
    at: u64,
    ignored: u64,
}

impl Display for LoneBlock {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { at, ignored } = self;
        write!(
            f,
            "the archive ends with one zero block instead of two, at byte {at}"
        )?;
        match ignored {
            0 => Ok(()),
            _ => write!(f, "; {ignored} bytes after it are ignored"),
        }
    }
}

impl<R: Read> TarReader<R> {
    pub(crate) fn new(reader: R) -> Self {
        Self {
            reader,
            position: 0,
            left: 0,
            padding: 0,
            map: Map::whole(0),
            current: None,
            global: Rc::default(),
            ended: false,
            open_end: false,
        }
    }

    /// Accepts an archive without its end mark, as a digest covers it.
    pub(crate) fn open_end(self) -> Self {
        let open_end = true;
        Self { open_end, ..self }
    }

    /// The position in the archive of the content of the last entry, before it is read.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    fn path(&self) -> Option<std::path::PathBuf> {
        self.current.as_deref().map(path)
    }

    fn truncated(&self) -> ArchiveError {
        match self.path() {
            Some(path) => ArchiveError::Truncated(path),
            None => ArchiveError::NoEnd(None),
        }
    }

    fn failed(&self, source: io::Error) -> ArchiveError {
        match (self.path(), source.kind()) {
            (Some(path), _) => ArchiveError::Content { path, source },
            (None, _) => ArchiveError::Read(source),
        }
    }

    /// Reads until the buffer is full or the archive ends; the bytes that were read.
    fn fill(&mut self, buf: &mut [u8]) -> Result<usize> {
        let mut filled = 0;
        while let Some(rest) = buf.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.reader.read(rest) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
        self.position = self.position.saturating_add(filled as u64);
        Ok(filled)
    }

    fn skip(&mut self) -> Result<()> {
        let mut piece = [0; 16 << 10];
        let mut left = self.left.saturating_add(self.padding);
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(usize::MAX).min(piece.len());
            match self.fill(piece.get_mut(..most).unwrap_or_default())? {
                0 => return Err(self.truncated()),
                count => left -= count as u64,
            }
        }
        (self.left, self.padding) = (0, 0);
        Ok(())
    }

    /// The next header; `None` at the end of the archive.
    fn header(&mut self) -> Result<Option<Header>> {
        let mut header = Header::new_old();
        let at = self.position;
        match self.fill(header.as_mut_bytes())? {
            BLOCK => {}
            0 if self.open_end && self.position > 0 => return Ok(None),
            0 => return Err(ArchiveError::NoEnd(self.path())),
            _ => return Err(self.truncated()),
        }
        if header.as_bytes().iter().all(|byte| *byte == 0) {
            self.end(at)?;
            return Ok(None);
        }
        if is_valid(&header) {
            Ok(Some(header))
        } else {
            Err(ArchiveError::Header {
                format: "tar",
                offset: at,
                after: self.path(),
            })
        }
    }

    /// Reads what follows the first zero block, which is at byte `at`, so that the checksum of the
    /// compression is verified. Two such blocks are the end mark.
    fn end(&mut self, at: u64) -> Result<()> {
        let mut second = [1; BLOCK];
        let read = self.fill(&mut second)?;
        let rest = io::copy(&mut self.reader, &mut io::sink())?;
        if read < BLOCK || second.iter().any(|byte| *byte != 0) {
            let ignored = rest.saturating_add(read as u64);
            log::warn!("{}", LoneBlock { at, ignored });
        }
        Ok(())
    }

    /// The content of a header that describes the entry after it.
    fn extension(&mut self, header: &Header, limit: u64) -> Result<Vec<u8>> {
        let named = header.path_bytes().into_owned();
        let size = size_of(header, &named)?;
        if size > limit {
            return Err(ArchiveError::TooLong {
                path: path(&named),
                field: "an extended header",
                size,
                limit,
            });
        }
        self.current = Some(named);
        let mut content = vec![0; usize::try_from(size).unwrap_or(0)];
        if self.fill(&mut content)? < content.len() {
            return Err(self.truncated());
        }
        self.padding = padding(size);
        self.skip()?;
        Ok(content)
    }

    /// The entry of a header.
    fn entry(&mut self, header: &Header, extensions: Extensions) -> Result<Option<Entry>> {
        let global = Rc::clone(&self.global);
        let records = Records::new(&extensions.records, &global);
        let sparse_name = records.get("GNU.sparse.name");
        let named = sparse_name
            .or_else(|| records.get("path"))
            .map(<[u8]>::to_vec);
        let named = named.or(extensions.name);
        let named = named.unwrap_or_else(|| header.path_bytes().into_owned());
        self.current = Some(named.clone());
        if named.contains(&0) {
            return Err(ArchiveError::NulInName(path(&named)));
        }
        check_length(&named, &named, "the name")?;
        let link = records
            .get("linkpath")
            .map(<[u8]>::to_vec)
            .or(extensions.link);
        let link = link.or_else(|| Some(header.link_name_bytes()?.into_owned()));
        let stored = match records.number("size", &named, "the size")? {
            Some(size) => size,
            None => size_of(header, &named)?,
        };
        let Some(kind) = kind(header, &records, &named, link)? else {
            (self.left, self.padding) = (stored, padding(stored));
            return Ok(None);
        };
        let attributes = attributes(header, &records, &named)?;
        // Links and special files have no content, whatever the size says.
        let stored = match kind {
            EntryKind::Regular | EntryKind::Directory => stored,
            _ => 0,
        };
        (self.left, self.padding) = (stored, padding(stored));
        self.map = self.sparse_map(header, &records, stored, &named)?;
        let size = match kind {
            EntryKind::Regular => self.map.size,
            _ => 0,
        };
        Ok(Some(Entry {
            path: named,
            kind,
            attributes,
            size,
        }))
    }

    /// The ranges of the file in which the content of the entry belongs.
    fn sparse_map(
        &mut self,
        header: &Header,
        records: &Records<'_>,
        stored: u64,
        named: &[u8],
    ) -> Result<Map> {
        if header.entry_type() == EntryType::GNUSparse {
            return self.old_sparse_map(header, stored, named);
        }
        let size = match records.number("GNU.sparse.realsize", named, "the size")? {
            Some(size) => Some(size),
            None => records.number("GNU.sparse.size", named, "the size")?,
        };
        if let Some(major) = records.get("GNU.sparse.major") {
            let size = size.ok_or_else(|| sparse::wrong(named, "lacks the size"))?;
            let minor = records.get("GNU.sparse.minor").unwrap_or(b"0");
            return match (major, minor) {
                (b"1", b"0") => self.map_in_content(size, named),
                _ => Err(sparse::wrong(named, "has an unknown version")),
            };
        }
        match (sparse::of_records(records, named)?, size) {
            (Some(pieces), Some(size)) => Map::new(pieces, size, stored, named),
            (None, None) => Ok(Map::whole(stored)),
            _ => Err(sparse::wrong(named, "is not complete")),
        }
    }

    /// The map in the header of the old GNU format, and in the blocks after it.
    fn old_sparse_map(&mut self, header: &Header, stored: u64, named: &[u8]) -> Result<Map> {
        let no_number = |_| sparse::wrong(named, "has what is no number");
        let Some(gnu) = header.as_gnu() else {
            return Err(sparse::wrong(
                named,
                "is in another format than that of GNU",
            ));
        };
        let mut pieces = Pieces::new(named);
        for piece in gnu.sparse.iter().filter(|piece| !piece.is_empty()) {
            let (at, length) = (piece.offset(), piece.length());
            pieces.add(at.map_err(no_number)?, length.map_err(no_number)?)?;
        }
        let mut more = gnu.is_extended();
        while more {
            let mut block = GnuExtSparseHeader::new();
            if self.fill(block.as_mut_bytes())? < BLOCK {
                return Err(self.truncated());
            }
            for piece in block.sparse.iter().filter(|piece| !piece.is_empty()) {
                let (at, length) = (piece.offset(), piece.length());
                pieces.add(at.map_err(no_number)?, length.map_err(no_number)?)?;
            }
            more = block.is_extended();
        }
        let size = gnu.real_size().map_err(no_number)?;
        Map::new(pieces.end(), size, stored, named)
    }

    /// The map that the content begins with: format 1.0. Decimal numbers, one a line, their count
    /// first, up to a whole block.
    fn map_in_content(&mut self, size: u64, named: &[u8]) -> Result<Map> {
        let mut block = [0; BLOCK];
        let mut unread: std::ops::Range<usize> = 0..0;
        let mut line = |reader: &mut Self| -> Result<u64> {
            let mut number: Option<u64> = None;
            loop {
                if unread.is_empty() {
                    if reader.left < BLOCK as u64 {
                        return Err(sparse::wrong(named, "is longer than the content"));
                    }
                    if reader.fill(&mut block)? < BLOCK {
                        return Err(reader.truncated());
                    }
                    reader.left -= BLOCK as u64;
                    unread = 0..BLOCK;
                }
                let byte = unread.next().and_then(|at| block.get(at)).copied();
                let no_number = || sparse::wrong(named, "has what is no number");
                match (byte, number) {
                    (Some(b'\n'), Some(number)) => return Ok(number),
                    (Some(digit @ b'0'..=b'9'), _) => {
                        let more = number.unwrap_or(0).checked_mul(10);
                        let more = more.and_then(|more| more.checked_add(u64::from(digit - b'0')));
                        number = Some(more.ok_or_else(no_number)?);
                    }
                    _ => return Err(no_number()),
                }
            }
        };
        let mut pieces = Pieces::new(named);
        for _ in 0..line(self)? {
            let (at, length) = (line(self)?, line(self)?);
            pieces.add(at, length)?;
        }
        Map::new(pieces.end(), size, self.left, named)
    }
}

impl<R: Read> Entries for TarReader<R> {
    fn next(&mut self) -> Result<Option<Entry>> {
        if self.ended {
            return Ok(None);
        }
        self.skip()?;
        let mut extensions = Extensions::default();
        loop {
            let Some(header) = self.header()? else {
                self.ended = true;
                return if extensions.any {
                    Err(ArchiveError::NoEnd(self.path()))
                } else {
                    Ok(None)
                };
            };
            let before = header.path_bytes().into_owned();
            extensions.any = true;
            match header.entry_type().as_byte() {
                b'L' => extensions.name = Some(text(self.extension(&header, NAME_MAX)?)),
                b'K' => extensions.link = Some(text(self.extension(&header, NAME_MAX)?)),
                b'x' | b'X' => {
                    let content = self.extension(&header, HEADER_MAX)?;
                    // Repeated keys of one header have a meaning in sparse maps.
                    extensions.records = Extended::parse(&content, &before)?;
                }
                b'g' => {
                    let content = self.extension(&header, GLOBAL_MAX)?;
                    let later = Extended::parse(&content, &before)?;
                    Rc::make_mut(&mut self.global).extend(later, &before)?;
                    extensions.any = false;
                }
                _ => {
                    let extensions = std::mem::take(&mut extensions);
                    if let Some(entry) = self.entry(&header, extensions)? {
                        return Ok(Some(entry));
                    }
                    self.skip()?;
                }
            }
        }
    }

    fn allocated(&self, entry: &Entry, block: u64) -> u64 {
        match entry.kind {
            EntryKind::Regular => self.map.allocated(block),
            _ => 0,
        }
    }

    fn read(&mut self, piece: &mut [u8]) -> Result<(u64, usize)> {
        let (at, length) = self.map.next();
        let most = length.min(self.left).min(piece.len() as u64);
        let most = usize::try_from(most).unwrap_or(piece.len());
        let count = self.fill(piece.get_mut(..most).unwrap_or_default())?;
        if count < most {
            return Err(self.truncated());
        }
        self.left -= count as u64;
        self.map.advance(count as u64);
        Ok((at, count))
    }
}

/// Whether the checksum in the header is right. Old programs add signed bytes.
fn is_valid(header: &Header) -> bool {
    let sum = |add: fn(u8) -> i64| -> i64 {
        let bytes = header.as_bytes().iter().enumerate();
        bytes
            .map(|(at, byte)| {
                if (148..156).contains(&at) {
                    32
                } else {
                    add(*byte)
                }
            })
            .sum()
    };
    header.cksum().is_ok_and(|stored| {
        let stored = i64::from(stored);
        stored == sum(i64::from) || stored == sum(|byte| i64::from(byte.cast_signed()))
    })
}

/// A name ends at its first NUL.
fn text(mut content: Vec<u8>) -> Vec<u8> {
    let end = content.iter().position(|byte| *byte == 0);
    content.truncate(end.unwrap_or(content.len()));
    content
}

/// Bytes from the end of a content to the next block.
fn padding(size: u64) -> u64 {
    let block = BLOCK as u64;
    (block - size % block) % block
}

fn field(named: &[u8], field: &'static str) -> ArchiveError {
    ArchiveError::Field {
        path: path(named),
        field,
    }
}

/// A number in binary begins with a byte whose highest bit is set. All bits of that byte are set if
/// the number is negative.
fn is_negative(bytes: &[u8]) -> bool {
    bytes.first() == Some(&0xff)
}

/// The number in a header's field. A field of NULs alone is 0, as in GNU tar.
fn written<T: Default>(bytes: &[u8], number: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    if bytes.iter().all(|byte| *byte == 0) {
        Ok(T::default())
    } else {
        number()
    }
}

/// The size in a header.
fn size_of(header: &Header, named: &[u8]) -> Result<u64> {
    let wrong = || field(named, "the size");
    if is_negative(&header.as_old().size) {
        return Err(wrong());
    }
    let size = written(&header.as_old().size, || header.entry_size()).map_err(|_| wrong())?;
    // Offsets of files and archives are signed.
    if size > i64::MAX as u64 {
        Err(wrong())
    } else {
        Ok(size)
    }
}

/// The kind of inode of a header; `None` for a volume label, which creates none.
fn kind(
    header: &Header,
    records: &Records<'_>,
    named: &[u8],
    link: Option<Vec<u8>>,
) -> Result<Option<EntryKind>> {
    let target = || {
        let target = link.filter(|target| !target.is_empty() && !target.contains(&0));
        target.ok_or_else(|| field(named, "the target of a link"))
    };
    Ok(Some(match header.entry_type().as_byte() {
        // V7 has no type for directories.
        0 | b'0' | b'7' | b'S' if named.ends_with(b"/") => EntryKind::Directory,
        0 | b'0' | b'7' | b'S' => EntryKind::Regular,
        b'1' => {
            let target = target()?;
            check_length(named, &target, "the name that it is a link to")?;
            EntryKind::Link(target)
        }
        b'2' => EntryKind::Symlink(target()?),
        b'3' => EntryKind::Special(FileKind::CharDevice, number(header, records, named)?),
        b'4' => EntryKind::Special(FileKind::BlockDevice, number(header, records, named)?),
        b'5' | b'D' => EntryKind::Directory,
        b'6' => EntryKind::Special(FileKind::Fifo, 0),
        b'V' => return Ok(None),
        kind => {
            let path = path(named);
            return Err(ArchiveError::Kind { path, kind });
        }
    }))
}

/// Number of a device node.
fn number(header: &Header, records: &Records<'_>, named: &[u8]) -> Result<u64> {
    const FIELD: &str = "the device number";
    let wrong = || field(named, FIELD);
    let of = |key, header: io::Result<Option<u32>>| -> Result<u64> {
        match records.number(key, named, FIELD)? {
            Some(number) => Ok(number),
            None => Ok(header.ok().flatten().ok_or_else(wrong)?.into()),
        }
    };
    let major = of("SCHILY.devmajor", header.device_major())?;
    let minor = of("SCHILY.devminor", header.device_minor())?;
    device(major, minor).ok_or_else(wrong)
}

fn attributes(header: &Header, records: &Records<'_>, named: &[u8]) -> Result<Attributes> {
    let old = header.as_old();
    let mode = written(&old.mode, || header.mode()).map_err(|_| field(named, "the mode"))?;
    let id = |key, what, bytes: &[u8], header: io::Result<u64>| {
        let wrong = || field(named, what);
        let id = match records.number(key, named, what)? {
            Some(id) => id,
            None if is_negative(bytes) => return Err(wrong()),
            None => written(bytes, || header).map_err(|_| wrong())?,
        };
        // The largest number means none.
        let id = u32::try_from(id).ok().filter(|id| *id != u32::MAX);
        id.ok_or_else(wrong)
    };
    let mtime = match records.mtime(named)? {
        Some(time) => time,
        None => Timestamp {
            sec: seconds(header, named)?,
            nsec: 0,
        },
    };
    Ok(Attributes {
        perm: mode & 0o7777,
        uid: id("uid", "the owner", &old.uid, header.uid())?,
        gid: id("gid", "the group", &old.gid, header.gid())?,
        mtime,
        atime: None,
        xattrs: records.xattrs(named)?,
    })
}

/// The time in a header, which GNU tar writes in binary before 1970.
fn seconds(header: &Header, named: &[u8]) -> Result<i64> {
    let wrong = || field(named, "the time");
    let bytes = &header.as_old().mtime;
    if is_negative(bytes) {
        let low = bytes.last_chunk::<8>().ok_or_else(wrong)?;
        let high = bytes.get(..bytes.len() - 8).unwrap_or_default();
        let sec = i64::from_be_bytes(*low);
        let fits = sec < 0 && high.iter().all(|byte| *byte == 0xff);
        return fits.then_some(sec).ok_or_else(wrong);
    }
    let sec = written(bytes, || header.mtime()).map_err(|_| wrong())?;
    i64::try_from(sec).map_err(|_| wrong())
}
