//! Reading cpio archives: the formats `newc` and `crc`, as initramfs images have them.
//!
//! # How it works
//! A header of 110 characters has 13 numbers in hexadecimal digits. The name follows, then the
//! content, each up to a multiple of 4 bytes. If a file has several names, only the last one has
//! the content. Several archives may follow each other, with zeros between them.

use std::collections::HashMap;
use std::io::{self, Read};

use super::entry::{Attributes, Entries, Entry, EntryKind, device};
use super::error::{ArchiveError, Result, path};
use crate::vfs::{FileKind, Timestamp};

const HEADER: usize = 110;
const NAME_MAX: u64 = 4096;
const TRAILER: &[u8] = b"TRAILER!!!";

/// A cpio archive that is being read, decompressed.
pub(crate) struct CpioReader<R> {
    reader: R,
    position: u64,
    /// Bytes of the content that were not read, and their place in the file.
    left: u64,
    at: u64,
    /// The checksum in the header, and the checksum of the bytes that were read.
    expected: Option<u32>,
    sum: u32,
    current: Option<Vec<u8>>,
    /// First names of inodes that have several.
    firsts: HashMap<[u32; 3], Vec<u8>>,
    ended: bool,
}

/// The fields of a header, without the magic.
struct Fields {
    crc: bool,
    numbers: [u32; 13],
}

impl Fields {
    fn parse(header: &[u8; HEADER]) -> Option<Self> {
        let crc = match header.get(..6)? {
            b"070701" => false,
            b"070702" => true,
            _ => return None,
        };
        let mut numbers = [0; 13];
        for (number, digits) in numbers.iter_mut().zip(header.get(6..)?.chunks_exact(8)) {
            let digits = std::str::from_utf8(digits).ok()?;
            let hexadecimal = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            *number = u32::from_str_radix(digits, 16)
                .ok()
                .filter(|_| hexadecimal)?;
        }
        Some(Self { crc, numbers })
    }
}

impl<R: Read> CpioReader<R> {
    pub(crate) fn new(reader: R) -> Self {
        Self {
            reader,
            position: 0,
            left: 0,
            at: 0,
            expected: None,
            sum: 0,
            current: None,
            firsts: HashMap::new(),
            ended: false,
        }
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

    fn fill(&mut self, buf: &mut [u8]) -> Result<usize> {
        let mut filled = 0;
        while let Some(rest) = buf.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.reader.read(rest) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => {
                    return Err(match self.path() {
                        Some(path) => ArchiveError::Content { path, source },
                        None => ArchiveError::Read(source),
                    });
                }
            }
        }
        self.position = self.position.saturating_add(filled as u64);
        Ok(filled)
    }

    /// Reads up to the next multiple of 4 bytes.
    fn align(&mut self) -> Result<()> {
        let mut rest = [0; 3];
        let count = usize::try_from(self.position.wrapping_neg() % 4).unwrap_or(0);
        let rest = rest.get_mut(..count).unwrap_or_default();
        if self.fill(rest)? < count {
            Err(self.truncated())
        } else {
            Ok(())
        }
    }

    /// The next header. Zeros before it, as between archives, are skipped. `None` at the end.
    fn header(&mut self) -> Result<Option<Fields>> {
        let mut header = [0; HEADER];
        let after_trailer = self.ended;
        loop {
            let at = self.position;
            let word = header.get_mut(..4).unwrap_or_default();
            match self.fill(word)? {
                0 if after_trailer => return Ok(None),
                0 => return Err(ArchiveError::NoEnd(self.path())),
                _ if after_trailer && header.iter().all(|byte| *byte == 0) => continue,
                4 => {}
                _ => return Err(self.truncated()),
            }
            let rest = header.get_mut(4..).unwrap_or_default();
            if self.fill(rest)? < HEADER - 4 && header.starts_with(b"0707") {
                return Err(self.truncated());
            }
            let fields = Fields::parse(&header).ok_or_else(|| ArchiveError::Header {
                format: "cpio (newc)",
                offset: at,
                after: self.path(),
            });
            return fields.map(Some);
        }
    }

    fn name(&mut self, length: u32) -> Result<Vec<u8>> {
        let size = u64::from(length);
        if !(2..=NAME_MAX).contains(&size) {
            return Err(ArchiveError::TooLong {
                path: self.path().unwrap_or_default(),
                field: "the name after this entry",
                size,
                limit: NAME_MAX,
            });
        }
        let mut name = vec![0; usize::try_from(size).unwrap_or(0)];
        if self.fill(&mut name)? < name.len() {
            return Err(self.truncated());
        }
        self.align()?;
        match name.pop() {
            Some(0) if !name.contains(&0) => Ok(name),
            _ => Err(ArchiveError::NulInName(path(&name))),
        }
    }

    fn content(&mut self) -> Result<Vec<u8>> {
        let size = self.left;
        if size > NAME_MAX {
            return Err(ArchiveError::TooLong {
                path: self.path().unwrap_or_default(),
                field: "the target of a link",
                size,
                limit: NAME_MAX,
            });
        }
        let mut content = vec![0; usize::try_from(size).unwrap_or(0)];
        let read = self.read(&mut content)?.1;
        if read < content.len() {
            Err(self.truncated())
        } else {
            Ok(content)
        }
    }

    fn skip(&mut self) -> Result<()> {
        let mut piece = [0; 16 << 10];
        while self.left > 0 {
            self.read(&mut piece)?;
        }
        if self
            .expected
            .take()
            .is_some_and(|expected| expected != self.sum)
        {
            return Err(ArchiveError::Checksum(self.path().unwrap_or_default()));
        }
        self.align()
    }

    fn entry(&mut self, fields: &Fields, named: Vec<u8>) -> Result<Entry> {
        let [
            ino,
            mode,
            uid,
            gid,
            nlink,
            mtime,
            size,
            major,
            minor,
            rmajor,
            rminor,
            ..,
        ] = fields.numbers;
        let wrong = |field| ArchiveError::Field {
            path: path(&named),
            field,
        };
        let kind = FileKind::from_mode(mode).ok_or_else(|| wrong("the mode"))?;
        (self.left, self.at, self.sum) = (size.into(), 0, 0);
        let several = nlink > 1 && kind != FileKind::Directory;
        let first = self.firsts.get(&[major, minor, ino]).filter(|_| several);
        let kind = match (kind, first) {
            (_, Some(first)) => EntryKind::Link(first.clone()),
            (FileKind::Regular, _) => EntryKind::Regular,
            (FileKind::Directory, _) => EntryKind::Directory,
            (FileKind::Symlink, _) => {
                let target = self.content()?;
                let good = !target.is_empty() && !target.contains(&0);
                EntryKind::Symlink(
                    good.then_some(target)
                        .ok_or_else(|| wrong("the target of a link"))?,
                )
            }
            (FileKind::CharDevice | FileKind::BlockDevice, _) => {
                let number = device(rmajor.into(), rminor.into());
                EntryKind::Special(kind, number.ok_or_else(|| wrong("the device number"))?)
            }
            (FileKind::Fifo | FileKind::Socket, _) => EntryKind::Special(kind, 0),
        };
        if several && !matches!(kind, EntryKind::Link(_)) {
            self.firsts.insert([major, minor, ino], named.clone());
        }
        let regular = matches!(kind, EntryKind::Regular | EntryKind::Link(_));
        self.expected = fields
            .numbers
            .last()
            .copied()
            .filter(|_| fields.crc && regular);
        if uid == u32::MAX || gid == u32::MAX {
            return Err(wrong("the owner"));
        }
        Ok(Entry {
            path: named,
            attributes: Attributes {
                perm: mode & 0o7777,
                uid,
                gid,
                mtime: Timestamp {
                    sec: mtime.into(),
                    nsec: 0,
                },
                atime: None,
                xattrs: Vec::new(),
            },
            size: if regular { size.into() } else { 0 },
            kind,
        })
    }
}

impl<R: Read> Entries for CpioReader<R> {
    fn next(&mut self) -> Result<Option<Entry>> {
        self.skip()?;
        loop {
            let Some(fields) = self.header()? else {
                return Ok(None);
            };
            self.ended = false;
            let [.., size, _, _, _, _, length, _] = fields.numbers;
            let named = self.name(length)?;
            if named == TRAILER {
                // Numbers of inodes begin anew in an archive that follows.
                self.firsts.clear();
                self.left = size.into();
                self.skip()?;
                self.ended = true;
                continue;
            }
            self.current = Some(named.clone());
            return self.entry(&fields, named).map(Some);
        }
    }

    fn read(&mut self, piece: &mut [u8]) -> Result<(u64, usize)> {
        let most = usize::try_from(self.left)
            .unwrap_or(usize::MAX)
            .min(piece.len());
        let piece = piece.get_mut(..most).unwrap_or_default();
        if self.fill(piece)? < most {
            return Err(self.truncated());
        }
        self.sum = piece
            .iter()
            .fold(self.sum, |sum, byte| sum.wrapping_add(u32::from(*byte)));
        let at = self.at;
        self.left -= most as u64;
        self.at += most as u64;
        Ok((at, most))
    }
}
