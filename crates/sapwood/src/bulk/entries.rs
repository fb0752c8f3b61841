//! Entries on their way to the daemon.
//!
//! An entry is its length (4 bytes), and then numbers and byte strings in the order of [`encode`];
//! a string begins with its length (4 bytes). A file with a size has its content after it: pieces
//! a string begins with its length (4 bytes). The content of a file with a size follows its entry:
//! pieces of an offset (8 bytes), a length (4 bytes) and the bytes. A length of 0 ends the content.
//! [`INCOMPLETE`] means that the client could not read all of it. [`CUT`] means that the client
//! could read it only up to the offset, where the file must end. An entry of length 0 is the end.
//! The daemon trusts nothing of it: lengths are bounded before memory is allocated.

use std::io::{self, Read};

use crate::archive::{ArchiveError, Attributes, Entries, Entry, EntryKind, PIECE, path};
use crate::vfs::{FileKind, Timestamp};

type Result<T> = std::result::Result<T, ArchiveError>;

/// Most bytes of an entry.
const MOST: usize = 4 << 20;
/// The end of all entries.
pub(super) const END: [u8; 4] = [0; 4];
/// The length of a piece that ends a content which is not complete.
const INCOMPLETE: u32 = u32::MAX;
/// The length of a piece that ends a content whose rest could not be read.
const CUT: u32 = u32::MAX - 1;

const REGULAR: u8 = 0;
const DIRECTORY: u8 = 1;
const SYMLINK: u8 = 2;
const LINK: u8 = 3;
const CHAR_DEVICE: u8 = 4;
const BLOCK_DEVICE: u8 = 5;
const FIFO: u8 = 6;
const SOCKET: u8 = 7;

/// The header of a piece.
pub(super) fn piece(at: u64, length: usize) -> [u8; 12] {
    header(at, u32::try_from(length).unwrap_or(INCOMPLETE))
}

/// How the content of a file ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// All of it was sent.
    Complete,
    /// The file must get this length, because the rest could not be read.
    Cut(u64),
    /// The file is to be removed.
    Incomplete,
}

/// The header that ends a content.
pub(super) fn end_of_content(content: Content) -> [u8; 12] {
    match content {
        Content::Complete => header(0, 0),
        Content::Cut(length) => header(length, CUT),
        Content::Incomplete => header(0, INCOMPLETE),
    }
}

fn header(at: u64, length: u32) -> [u8; 12] {
    let mut header = [0; 12];
    let (first, last) = header.split_at_mut(8);
    first.copy_from_slice(&at.to_ne_bytes());
    last.copy_from_slice(&length.to_ne_bytes());
    header
}

/// Appends an entry.
///
/// # Errors
/// `InvalidInput` if it is too long.
pub(super) fn encode(entry: &Entry, to: &mut Vec<u8>) -> io::Result<()> {
    let start = to.len();
    to.extend(END);
    let (kind, number, target) = match &entry.kind {
        EntryKind::Regular => (REGULAR, 0, &[][..]),
        EntryKind::Directory => (DIRECTORY, 0, &[][..]),
        EntryKind::Symlink(target) => (SYMLINK, 0, target.as_slice()),
        EntryKind::Link(target) => (LINK, 0, target.as_slice()),
        EntryKind::Special(kind, number) => match kind {
            FileKind::CharDevice => (CHAR_DEVICE, *number, &[][..]),
            FileKind::BlockDevice => (BLOCK_DEVICE, *number, &[][..]),
            FileKind::Socket => (SOCKET, 0, &[][..]),
            _ => (FIFO, 0, &[][..]),
        },
    };
    let attributes = &entry.attributes;
    let (mtime, atime) = (
        attributes.mtime,
        attributes.atime.unwrap_or(attributes.mtime),
    );
    to.push(kind);
    to.extend(number.to_ne_bytes());
    to.extend(entry.size.to_ne_bytes());
    for number in [attributes.perm, attributes.uid, attributes.gid] {
        to.extend(number.to_ne_bytes());
    }
    for time in [mtime, atime] {
        to.extend(time.sec.to_ne_bytes());
        to.extend(time.nsec.to_ne_bytes());
    }
    let strings = [entry.path.as_slice(), target].into_iter();
    let xattrs = attributes.xattrs.iter();
    let xattrs = xattrs.flat_map(|(name, value)| [name.as_slice(), value.as_slice()]);
    for string in strings.chain(xattrs) {
        let length = u32::try_from(string.len()).unwrap_or(u32::MAX);
        to.extend(length.to_ne_bytes());
        to.extend(string);
    }
    let length = to.len() - start - END.len();
    let field = to.get_mut(start..start + END.len());
    match (u32::try_from(length), field) {
        (Ok(number), Some(field)) if length <= MOST => field.copy_from_slice(&number.to_ne_bytes()),
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    }
    Ok(())
}

/// The fields of an entry that are still to be read.
struct Fields<'f>(&'f [u8]);

impl<'f> Fields<'f> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*array)
    }

    fn short(&mut self) -> Option<u32> {
        self.array().map(u32::from_ne_bytes)
    }

    fn long(&mut self) -> Option<u64> {
        self.array().map(u64::from_ne_bytes)
    }

    fn time(&mut self) -> Option<Timestamp> {
        let sec = i64::from_ne_bytes(self.array()?);
        let nsec = self.short().filter(|nsec| *nsec < 1_000_000_000)?;
        Some(Timestamp { sec, nsec })
    }

    fn string(&mut self) -> Option<&'f [u8]> {
        let length = usize::try_from(self.short()?).ok()?;
        let (string, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(string)
    }
}

fn decode(bytes: &[u8]) -> Option<Entry> {
    let mut fields = Fields(bytes);
    let [kind] = fields.array()?;
    let (number, size) = (fields.long()?, fields.long()?);
    let (perm, uid, gid) = (fields.short()?, fields.short()?, fields.short()?);
    let (mtime, atime) = (fields.time()?, fields.time()?);
    let path = fields.string()?.to_vec();
    let target = fields.string()?.to_vec();
    let mut xattrs = Vec::new();
    while !fields.0.is_empty() {
        xattrs.push((fields.string()?.to_vec(), fields.string()?.to_vec()));
    }
    let kind = match kind {
        REGULAR => EntryKind::Regular,
        DIRECTORY => EntryKind::Directory,
        SYMLINK => EntryKind::Symlink(target),
        LINK => EntryKind::Link(target),
        CHAR_DEVICE => EntryKind::Special(FileKind::CharDevice, number),
        BLOCK_DEVICE => EntryKind::Special(FileKind::BlockDevice, number),
        FIFO => EntryKind::Special(FileKind::Fifo, 0),
        SOCKET => EntryKind::Special(FileKind::Socket, 0),
        _ => return None,
    };
    // Only a file that is made here gets content: the target of a link may belong to another user.
    let fits = size == 0 || kind == EntryKind::Regular;
    let valid = perm <= 0o7777 && uid != u32::MAX && gid != u32::MAX && fits;
    valid.then_some(Entry {
        path,
        kind,
        attributes: Attributes {
            perm,
            uid,
            gid,
            mtime,
            atime: Some(atime),
            xattrs,
        },
        size,
    })
}

/// The entries that a client sends.
pub(super) struct Received<R> {
    inner: R,
    buffer: Vec<u8>,
    /// Name of the last entry, if its content has not ended.
    open: Option<Vec<u8>>,
    /// Length of the last entry, if its content was cut.
    cut: Option<u64>,
    ended: bool,
}

impl<R: Read> Received<R> {
    pub(super) fn new(inner: R) -> Self {
        Self {
            inner,
            buffer: Vec::new(),
            open: None,
            cut: None,
            ended: false,
        }
    }

    fn number(&mut self) -> Result<u32> {
        let mut number = [0; 4];
        self.inner.read_exact(&mut number)?;
        Ok(u32::from_ne_bytes(number))
    }
}

fn invalid() -> ArchiveError {
    ArchiveError::Read(io::ErrorKind::InvalidData.into())
}

impl<R: Read> Entries for Received<R> {
    fn next(&mut self) -> Result<Option<Entry>> {
        let mut piece = Vec::new();
        // Skips the rest of a file that was left out, whether or not it is complete.
        while self.open.is_some() {
            piece.resize(PIECE, 0);
            match self.read(&mut piece) {
                Ok(_) | Err(ArchiveError::Truncated(_)) => {}
                Err(error) => return Err(error),
            }
        }
        let length = if self.ended {
            0
        } else {
            usize::try_from(self.number()?).map_err(|_| invalid())?
        };
        if length == 0 {
            self.ended = true;
            return Ok(None);
        }
        if length > MOST {
            return Err(invalid());
        }
        self.buffer.resize(length, 0);
        self.inner.read_exact(&mut self.buffer)?;
        let entry = decode(&self.buffer).ok_or_else(invalid)?;
        self.open = (entry.size > 0).then(|| entry.path.clone());
        self.cut = None;
        Ok(Some(entry))
    }

    fn read(&mut self, piece: &mut [u8]) -> Result<(u64, usize)> {
        let Some(named) = self.open.take() else {
            return Ok((0, 0));
        };
        let mut at = [0; 8];
        self.inner.read_exact(&mut at)?;
        let length = match self.number()? {
            0 => return Ok((0, 0)),
            INCOMPLETE => return Err(ArchiveError::Truncated(path(&named))),
            CUT => {
                self.cut = Some(u64::from_ne_bytes(at));
                return Ok((0, 0));
            }
            length => usize::try_from(length).map_err(|_| invalid())?,
        };
        let data = piece.get_mut(..length).ok_or_else(invalid)?;
        self.inner.read_exact(data)?;
        self.open = Some(named);
        Ok((u64::from_ne_bytes(at), length))
    }

    fn cut(&self) -> Option<u64> {
        self.cut
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(kind: EntryKind, size: u64) -> Entry {
        Entry {
            path: b"d/f".to_vec(),
            kind,
            attributes: Attributes {
                perm: 0o640,
                uid: 7,
                gid: 8,
                mtime: Timestamp { sec: -3, nsec: 5 },
                atime: Some(Timestamp { sec: 4, nsec: 6 }),
                xattrs: vec![(b"user.k".to_vec(), b"v".to_vec())],
            },
            size,
        }
    }

    fn same(one: &Entry, other: &Entry) -> bool {
        format!("{one:?}") == format!("{other:?}")
    }

    fn stream(entries: &[Entry], content: Content) -> Vec<u8> {
        let mut bytes = Vec::new();
        for entry in entries {
            encode(entry, &mut bytes).unwrap();
            if entry.size > 0 {
                bytes.extend(piece(0, 3));
                bytes.extend(b"abc");
                bytes.extend(piece(9, 1));
                bytes.extend(b"d");
                bytes.extend(end_of_content(content));
            }
        }
        bytes.extend(END);
        bytes
    }

    #[test]
    fn entries_arrive_as_they_were_sent() {
        let kinds = [
            EntryKind::Directory,
            EntryKind::Symlink(b"t".to_vec()),
            EntryKind::Link(b"d/old".to_vec()),
            EntryKind::Special(FileKind::CharDevice, 259),
            EntryKind::Special(FileKind::Socket, 0),
        ];
        let mut all: Vec<Entry> = kinds.into_iter().map(|kind| entry(kind, 0)).collect();
        all.push(entry(EntryKind::Regular, 10));
        all.push(entry(EntryKind::Regular, 10));
        all.push(entry(EntryKind::Regular, 0));
        let bytes = stream(&all, Content::Complete);
        let mut received = Received::new(bytes.as_slice());
        let mut piece = [0; 8];
        for (number, sent) in all.iter().enumerate() {
            assert!(same(&received.next().unwrap().unwrap(), sent), "{sent:?}");
            // The content of the other file is skipped.
            if number == 5 {
                assert_eq!(received.read(&mut piece).unwrap(), (0, 3));
                assert_eq!(received.read(&mut piece).unwrap(), (9, 1));
                assert_eq!(piece[0], b'd');
                assert_eq!(received.read(&mut piece).unwrap(), (0, 0));
            }
        }
        assert!(received.next().unwrap().is_none());
        assert!(received.next().unwrap().is_none());
    }

    #[test]
    fn only_the_mark_of_the_end_ends_a_stream() {
        let bytes = stream(&[entry(EntryKind::Regular, 10)], Content::Complete);
        for cut in 0..bytes.len() {
            let mut received = Received::new(bytes.get(..cut).unwrap());
            let ended = (0..3).find_map(|_| match received.next() {
                Ok(Some(_)) => None,
                other => Some(other.is_ok()),
            });
            assert_eq!(ended, Some(false), "{cut}");
        }
    }

    #[test]
    fn content_that_the_client_could_not_read_is_an_error() {
        let bytes = stream(&[entry(EntryKind::Regular, 10)], Content::Incomplete);
        let mut received = Received::new(bytes.as_slice());
        received.next().unwrap().unwrap();
        let mut piece = [0; 8];
        let read = (0..3).find_map(|_| received.read(&mut piece).err());
        assert!(matches!(read, Some(ArchiveError::Truncated(_))));
        assert!(received.next().unwrap().is_none());
    }

    #[test]
    fn content_that_was_cut_has_a_length() {
        let two = [entry(EntryKind::Regular, 20), entry(EntryKind::Regular, 0)];
        let bytes = stream(&two, Content::Cut(12));
        let mut received = Received::new(bytes.as_slice());
        let mut piece = [0; 8];
        received.next().unwrap().unwrap();
        while received.read(&mut piece).unwrap().1 > 0 {
            assert_eq!(received.cut(), None);
        }
        assert_eq!(received.cut(), Some(12));
        received.next().unwrap().unwrap();
        assert_eq!(received.cut(), None);
        assert!(received.next().unwrap().is_none());
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let refused = |bytes: &[u8]| Received::new(bytes).next().is_err();
        let whole = stream(&[entry(EntryKind::Regular, 0)], Content::Complete);
        for at in [4, 4 + 17 + 3, whole.len() - 4 - 5] {
            let mut bytes = whole.clone();
            bytes[at] = 0xff;
            assert!(refused(&bytes), "{at}");
        }
        assert!(refused(&u32::MAX.to_ne_bytes()));
        let mut bytes = Vec::new();
        encode(&entry(EntryKind::Link(b"x".to_vec()), 1), &mut bytes).unwrap();
        assert!(refused(&bytes));
        let mut long = entry(EntryKind::Regular, 0);
        long.path = vec![b'x'; MOST];
        assert!(encode(&long, &mut bytes).is_err());
    }
}
