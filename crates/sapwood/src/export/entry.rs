//! Entries of an archive: ustar headers with pax records, and content.

use std::io::{self, Write};

use tar::{EntryType, Header};

use super::holes::{self, Map};
use super::{ExportError, Result, at};
use crate::archive::path as path_of;
use crate::damage::{Content, Damage, InImage, Salvage, read_range};
use crate::progress::Stop;
use crate::tree::HeldInode;
use crate::vfs::acl::{Acl, Tag};
use crate::vfs::{Attr, Cause, FileKind, Timestamp, device_number};

/// Unit of an archive, in bytes.
const BLOCK: usize = 512;
/// Bytes of content that are copied at a time.
const PIECE: usize = 256 * 1024;
/// Most bytes of a name, and of a link's target, in a header.
const NAME: usize = 100;
/// Larger numbers do not fit into a header's field for an owner, or for a size or time.
const OWNERS: u32 = 1 << 21;
const SIZES: u64 = 1 << 33;

/// Writes entries.
pub(super) struct Entries<W: Write> {
    out: W,
    piece: Vec<u8>,
    files: Files,
}

/// How files are written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Files {
    /// Holes are left out.
    pub(super) sparse: bool,
    /// Continue after an unreadable part.
    pub(super) keep_going: bool,
    /// Bytes of the image. A file with holes that is larger is worth a warning.
    pub(super) image: u64,
}

/// Callback with the number of content bytes that were written.
pub(super) type Copied<'c> = dyn FnMut(u64) + 'c;

/// Records of a pax header.
#[derive(Default)]
struct Records(Vec<u8>);

impl Records {
    /// Adds a record. Its length counts its own digits.
    fn add(&mut self, key: &[u8], value: &[u8]) {
        let rest = key.len() + value.len() + 3;
        let mut length = rest;
        while rest + length.to_string().len() != length {
            length = rest + length.to_string().len();
        }
        self.0.extend_from_slice(length.to_string().as_bytes());
        for part in [b" ", key, b"=", value, b"\n"] {
            self.0.extend_from_slice(part);
        }
    }

    /// Adds a name that a header cannot hold.
    fn name(&mut self, key: &[u8], value: &[u8]) {
        if std::str::from_utf8(value).is_err() && !self.0.starts_with(b"21 hdrcharset") {
            let rest = std::mem::take(&mut self.0);
            self.add(b"hdrcharset", b"BINARY");
            self.0.extend_from_slice(&rest);
        }
        self.add(key, value);
    }
}

impl<W: Write> Entries<W> {
    pub(super) fn new(out: W, files: Files) -> Self {
        Self {
            out,
            piece: vec![0; PIECE],
            files,
        }
    }

    /// Ends the archive.
    pub(super) fn finish(mut self) -> io::Result<W> {
        self.out.write_all(&[0; 2 * BLOCK])?;
        Ok(self.out)
    }

    /// An empty file whose name removes another one.
    pub(super) fn whiteout(&mut self, path: &[u8]) -> Result<()> {
        let mut header = Header::new_ustar();
        header.set_mode(0);
        header.set_mtime(0);
        self.header(header, EntryType::Regular, path, b"", 0, Records::default())
    }

    /// A further name of the inode that has the path `first`.
    pub(super) fn link(&mut self, path: &[u8], first: &[u8], attr: &Attr) -> Result<()> {
        let mut records = Records::default();
        let header = attributes(attr, &mut records);
        self.header(header, EntryType::Link, path, first, 0, records)
    }

    /// Writes an inode with its content. Returns its unreadable parts, for which the archive has
    /// zeros.
    pub(super) fn node(
        &mut self,
        path: &[u8],
        node: &HeldInode<'_>,
        copied: &mut Copied<'_>,
    ) -> Result<Option<Damage>> {
        let attr = node.attr();
        let mut records = Records::default();
        let mut header = attributes(attr, &mut records);
        for (name, value) in node.xattrs().map_err(at(path))? {
            xattr(&mut records, &name, &value);
        }
        let (mut name, mut link) = (path.to_vec(), Vec::new());
        let kind = match attr.kind {
            FileKind::Directory => {
                let end: &[u8] = if path.is_empty() { b"./" } else { b"/" };
                name.extend_from_slice(end);
                EntryType::Directory
            }
            FileKind::Symlink => {
                link = node.target().map_err(at(path))?;
                EntryType::Symlink
            }
            FileKind::CharDevice | FileKind::BlockDevice => {
                device(&mut header, attr.rdev).ok_or_else(|| ExportError::Device {
                    path: path_of(path),
                    rdev: attr.rdev,
                })?;
                match attr.kind {
                    FileKind::CharDevice => EntryType::Char,
                    _ => EntryType::Block,
                }
            }
            FileKind::Fifo | FileKind::Socket => EntryType::Fifo,
            FileKind::Regular => return self.file(path, node, header, records, copied),
        };
        self.header(header, kind, &name, &link, 0, records)?;
        Ok(None)
    }

    /// A file with its content, or with its data alone if holes are left out.
    fn file(
        &mut self,
        path: &[u8],
        node: &HeldInode<'_>,
        header: Header,
        mut records: Records,
        copied: &mut Copied<'_>,
    ) -> Result<Option<Damage>> {
        let size = node.attr().size;
        let whole = [(0, size)];
        let Some(map) = self.map(path, node)? else {
            self.header(header, EntryType::Regular, path, b"", size, records)?;
            return self.content(path, node, &whole, copied);
        };
        let text = map.text(size);
        let stored = map.bytes().saturating_add(text.len() as u64);
        records.add(b"GNU.sparse.major", b"1");
        records.add(b"GNU.sparse.minor", b"0");
        records.name(b"GNU.sparse.name", path);
        records.add(b"GNU.sparse.realsize", size.to_string().as_bytes());
        let name = holes::entry_name(path);
        let name = name.get(..NAME).unwrap_or(&name);
        self.header(header, EntryType::Regular, name, b"", stored, records)?;
        self.out.write_all(&text)?;
        self.content(path, node, &map.0, copied)
    }

    /// The ranges of a file that have data, if its holes are left out and that is shorter.
    fn map(&self, path: &[u8], node: &HeldInode<'_>) -> Result<Option<Map>> {
        let (size, image) = (node.attr().size, self.files.image);
        if size == 0 || !(self.files.sparse || size > image) {
            return Ok(None);
        }
        let file = InImage(node.file_system(), node.ino());
        let Some(map) = Map::of(&file, size).map_err(at(path))? else {
            return Ok(None);
        };
        let data = map.bytes();
        if !self.files.sparse {
            let (path, holes) = (path_of(path), size - data);
            log::warn!(
                "{}: its holes, {holes} bytes, are written as zeros",
                path.display()
            );
            return Ok(None);
        }
        let shorter = data.saturating_add(map.text(size).len() as u64) < size;
        Ok(shorter.then_some(map))
    }

    /// Writes a header, with a pax header before it if it needs one.
    fn header(
        &mut self,
        mut header: Header,
        kind: EntryType,
        path: &[u8],
        link: &[u8],
        size: u64,
        mut records: Records,
    ) -> Result<()> {
        header.set_entry_type(kind);
        header.set_size(size);
        if size >= SIZES {
            records.add(b"size", size.to_string().as_bytes());
        }
        if let Some(fields) = header.as_ustar_mut() {
            put(&mut fields.name, path);
            put(&mut fields.linkname, link);
        }
        if link.len() > NAME {
            records.name(b"linkpath", link);
        }
        if path.len() > NAME {
            records.name(b"path", path);
        }
        if !records.0.is_empty() {
            let mut before = Header::new_ustar();
            before.set_entry_type(EntryType::XHeader);
            before.set_mode(0o644);
            before.set_mtime(0);
            before.set_size(records.0.len() as u64);
            if let Some(fields) = before.as_ustar_mut() {
                put(&mut fields.name, &[b"PaxHeaders/", path].concat());
            }
            before.set_cksum();
            self.out.write_all(before.as_bytes())?;
            self.out.write_all(&records.0)?;
            self.pad(records.0.len() as u64)?;
        }
        header.set_cksum();
        self.out.write_all(header.as_bytes())?;
        Ok(())
    }

    /// Writes the pieces of a file, and zeros for unreadable parts, because its length is in the
    /// header.
    fn content(
        &mut self,
        path: &[u8],
        node: &HeldInode<'_>,
        pieces: &[(u64, u64)],
        copied: &mut Copied<'_>,
    ) -> Result<Option<Damage>> {
        let file = OfExport(InImage(node.file_system(), node.ino()), path);
        let mut salvage = Salvage::new(self.files.keep_going, Stop::new());
        let mut written = 0_u64;
        for (start, length) in pieces {
            let (start, end) = (*start, start.saturating_add(*length));
            let mut done = start;
            let Self { out, piece, .. } = self;
            if !salvage.has_ended() {
                let mut sink = |at: u64, data: &[u8]| {
                    zeros(out, at - done)?;
                    out.write_all(data)?;
                    done = at.saturating_add(data.len() as u64);
                    copied(data.len() as u64);
                    Ok(())
                };
                read_range(&file, start..end, piece, &mut salvage, &mut sink)?;
            }
            if done < end && !salvage.has_found() {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            zeros(&mut self.out, end.saturating_sub(done))?;
            written = written.saturating_add(*length);
        }
        self.pad(written)?;
        Ok(salvage.found())
    }

    /// Fills the last block of a content with `size` bytes.
    fn pad(&mut self, size: u64) -> Result<()> {
        let rest = (size % BLOCK as u64) as usize;
        if rest > 0 {
            let zeros = [0; BLOCK];
            self.out.write_all(zeros.get(rest..).unwrap_or_default())?;
        }
        Ok(())
    }
}

/// The content of a file that is exported under a path.
struct OfExport<'a>(InImage<'a>, &'a [u8]);

impl Content for OfExport<'_> {
    type Error = ExportError;

    fn read(&self, at: u64, buf: &mut [u8]) -> Result<usize> {
        self.0.read(at, buf).map_err(super::at(self.1))
    }

    fn data(&self, at: u64) -> Result<Option<u64>> {
        self.0.data(at).map_err(super::at(self.1))
    }

    fn hole(&self, at: u64) -> Result<u64> {
        self.0.hole(at).map_err(super::at(self.1))
    }

    fn damage(error: ExportError) -> Result<Cause> {
        match error {
            ExportError::Image { path, source } => {
                InImage::damage(source).map_err(|source| ExportError::Image { path, source })
            }
            other => Err(other),
        }
    }
}

fn zeros(out: &mut impl Write, mut count: u64) -> io::Result<()> {
    static ZEROS: [u8; PIECE] = [0; PIECE];
    while count > 0 {
        let most = usize::try_from(count).unwrap_or(PIECE).min(PIECE);
        out.write_all(ZEROS.get(..most).unwrap_or_default())?;
        count -= most as u64;
    }
    Ok(())
}

/// Puts as much of a name into a field as it can hold.
fn put(field: &mut [u8], name: &[u8]) {
    for (to, from) in field.iter_mut().zip(name) {
        *to = *from;
    }
}

/// A header with the attributes of an inode, and the records for those that it cannot hold.
fn attributes(attr: &Attr, records: &mut Records) -> Header {
    let mut header = Header::new_ustar();
    header.set_mode(attr.perm & 0o7777);
    for (key, id) in [("uid", attr.uid), ("gid", attr.gid)] {
        let field = if id < OWNERS { id } else { 0 };
        match key {
            "uid" => header.set_uid(u64::from(field)),
            _ => header.set_gid(u64::from(field)),
        }
        if id >= OWNERS {
            records.add(key.as_bytes(), id.to_string().as_bytes());
        }
    }
    let Timestamp { sec, nsec } = attr.mtime;
    let whole = u64::try_from(sec).ok().filter(|sec| *sec < SIZES);
    header.set_mtime(whole.unwrap_or(0));
    if whole.is_none() || nsec > 0 {
        records.add(b"mtime", time(attr.mtime).as_bytes());
    }
    header
}

/// A time of the pax format: seconds with a fraction.
fn time(time: Timestamp) -> String {
    let Timestamp { sec, nsec } = time;
    let (sign, whole, fraction) = match (sec < 0, nsec) {
        (true, 1..) => ("-", (sec + 1).unsigned_abs(), 1_000_000_000 - nsec),
        (true, 0) => ("-", sec.unsigned_abs(), 0),
        (false, _) => ("", sec.unsigned_abs(), nsec),
    };
    match fraction {
        0 => format!("{sign}{whole}"),
        _ => {
            let text = format!("{sign}{whole}.{fraction:09}");
            text.trim_end_matches('0').to_owned()
        }
    }
}

/// Sets the number of a device node; `None` if it does not fit.
fn device(header: &mut Header, rdev: u64) -> Option<()> {
    let (major, minor) = (device_number::major(rdev), device_number::minor(rdev));
    if major >= OWNERS || minor >= OWNERS {
        return None;
    }
    header.set_device_major(major).ok()?;
    header.set_device_minor(minor).ok()
}

/// The records of an extended attribute. An ACL also gets a record with its text, for tools that
/// read only that.
fn xattr(records: &mut Records, name: &[u8], value: &[u8]) {
    let mut key = b"SCHILY.xattr.".to_vec();
    if name.contains(&b'=') {
        for byte in name {
            match byte {
                b'=' => key.extend_from_slice(b"%3D"),
                b'%' => key.extend_from_slice(b"%25"),
                other => key.push(*other),
            }
        }
    } else {
        key.extend_from_slice(name);
    }
    records.add(&key, value);
    let text_key: &[u8] = match name {
        b"system.posix_acl_access" => b"SCHILY.acl.access",
        b"system.posix_acl_default" => b"SCHILY.acl.default",
        _ => return,
    };
    if let Ok(Some(acl)) = Acl::parse(value) {
        records.add(text_key, acl_text(&acl).as_bytes());
    }
}

/// An ACL as text, with numbers for users and groups.
fn acl_text(acl: &Acl) -> String {
    let entries = acl.entries().iter().map(|entry| {
        let who = match entry.tag {
            Tag::UserObj => "user:".to_owned(),
            Tag::User(id) => format!("user:{id}"),
            Tag::GroupObj => "group:".to_owned(),
            Tag::Group(id) => format!("group:{id}"),
            Tag::Mask => "mask:".to_owned(),
            Tag::Other => "other:".to_owned(),
        };
        let bit = |bit: u32, letter| {
            if entry.perm & bit != 0 { letter } else { '-' }
        };
        format!("{who}:{}{}{}", bit(4, 'r'), bit(2, 'w'), bit(1, 'x'))
    });
    entries.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_records_count_themselves() {
        for len in [1, 80, 87, 88, 89, 90, 985, 988, 990, 9990] {
            let mut records = Records::default();
            records.add(b"k", &vec![b'v'; len]);
            let text = String::from_utf8(records.0.clone()).unwrap();
            let length: usize = text.split(' ').next().unwrap().parse().unwrap();
            assert_eq!(length, records.0.len());
        }
    }

    #[test]
    fn names_that_are_no_text_are_marked_once() {
        let mut records = Records::default();
        records.name(b"linkpath", &[0xff; 120]);
        records.name(b"path", &[0xfe; 120]);
        assert!(records.0.starts_with(b"21 hdrcharset=BINARY\n"));
        let count = records.0.windows(10).filter(|part| part == b"hdrcharset");
        assert_eq!(count.count(), 1);
    }

    #[test]
    fn times_have_fractions_and_may_be_before_1970() {
        let text = |sec, nsec| time(Timestamp { sec, nsec });
        assert_eq!(text(17, 250_000_000), "17.25");
        assert_eq!(text(-2, 750_000_000), "-1.25");
        assert_eq!(text(-1, 500_000_000), "-0.5");
        assert_eq!(text(-3, 0), "-3");
        assert_eq!(text(1 << 40, 1), "1099511627776.000000001");
    }
}
