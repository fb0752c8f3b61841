//! The state of a directory of an ext4 image.

use std::collections::HashSet;

use sapwood_ext4::Ext4;
use sapwood_ext4::compare::{InodeRecord, RangeContent};
use sha2::{Digest, Sha256};

use super::super::contradiction;
use super::super::error::{Result, SendError, at};
use super::super::source::{Content, ContentKind, Range, Ranges, Tree, Xattrs};
use super::index::{Index, ONLY_OLD};
use super::matching::Matches;
use crate::progress::Stop;
use crate::tree::{self, HeldInode};
use crate::vfs::{self, FileKind, Ino, LinkName, NamedInode, StoredInode};

/// Prefix of the input to the digest that becomes the UUID of a state.
const STATE: &[u8] = b"sapwood ext4 state 1";

/// Prefix of the input to a digest of the content of a directory.
const CONTENT: &[u8] = b"sapwood ext4 content 1";

/// Extended attribute of a directory that received a state in place: its UUID, and the digest of
/// its content at that time. It is not part of that digest, and not sent.
pub(crate) const RECEIVED_STATE: &[u8] = b"trusted.sapwood.state";

/// Bytes of a file that are read at a time.
const PIECE: usize = 128 * 1024;

/// Most directories above a file.
const DEEPEST: usize = 4096;

impl Content for RangeContent {
    fn hole() -> Self {
        Self::Hole
    }

    fn kind(&self) -> ContentKind {
        match self {
            Self::Hole => ContentKind::Hole,
            Self::Unwritten => ContentKind::Prealloc,
            Self::Data => ContentKind::Data,
        }
    }

    fn skip(&self, _by: u64) -> Self {
        *self
    }
}

/// A directory of an image with everything below it.
pub(in crate::send) struct State<'a> {
    image: &'a Ext4,
    pub(super) index: Index,
    top: u64,
    /// Numbers of inodes that have another one on disk, which follows; in ascending order.
    own: Vec<(u32, u32)>,
    /// Marks of the inodes with times of a running clock, by their numbers on disk, in ascending
    /// order.
    marks: Vec<(u32, Mark)>,
    pub(super) uuid: [u8; 16],
}

/// The front of a digest of an inode, access time included.
type Mark = [u8; 16];

/// The front of a digest.
fn front(digest: Sha256) -> [u8; 16] {
    let mut bytes = [0; 16];
    for (byte, found) in bytes.iter_mut().zip(digest.finalize()) {
        *byte = found;
    }
    bytes
}

fn mark(record: &InodeRecord) -> Mark {
    let mut digest = Sha256::new();
    digest.update(&record.bytes);
    digest.update(record.inode.atime.sec.to_le_bytes());
    digest.update(record.inode.atime.nsec.to_le_bytes());
    front(digest)
}

fn digest_xattrs(all: &Xattrs, digest: &mut Sha256) {
    for bytes in all.iter().flat_map(|(name, value)| [name, value]) {
        digest.update((bytes.len() as u64).to_le_bytes());
        digest.update(bytes);
    }
}

/// The UUID of the state of the directory at `path`, as its streams have it.
pub(crate) fn state_uuid(image: &Ext4, path: &[u8], stop: &Stop) -> Result<[u8; 16]> {
    Ok(State::read(image, path, stop)?.uuid)
}

/// A digest of everything in the directory at `path`, without access times, the UUID of its state
/// and where its own inode is stored. All content is written back.
pub(crate) fn content_digest(image: &Ext4, path: &[u8], stop: &Stop) -> Result<[u8; 16]> {
    let mut state = State::with_names(image, path, stop)?;
    let mut digest = Sha256::new();
    digest.update(CONTENT);
    digest.update(image.uuid());
    state.digest_top(&mut digest)?;
    state.digest(digest, stop)
}

/// The inodes, except directories, that have more links than names in the directory at `path`.
pub(crate) fn linked_outside(image: &Ext4, path: &[u8], stop: &Stop) -> Result<HashSet<u64>> {
    let state = State::with_names(image, path, stop)?;
    let mut found = HashSet::new();
    for number in state.index.numbers() {
        if stop.is_stopped() {
            return Err(SendError::Stopped);
        }
        let inode = state.record(number)?.inode;
        if inode.kind != FileKind::Directory
            && inode.nlink > 1
            && inode.nlink as usize > state.index.names(number).len()
        {
            found.insert(number);
        }
    }
    Ok(found)
}

impl<'a> State<'a> {
    /// Reads the names below the directory at `path`, and all inodes for the UUID.
    pub(super) fn read(image: &'a Ext4, path: &[u8], stop: &Stop) -> Result<Self> {
        let mut state = Self::with_names(image, path, stop)?;
        let mut digest = Sha256::new();
        digest.update(STATE);
        digest.update(image.uuid());
        state.digest_inode(state.top, &mut digest, stop)?;
        state.uuid = state.digest(digest, stop)?;
        Ok(state)
    }

    /// Reads the names below the directory at `path`.
    fn with_names(image: &'a Ext4, path: &[u8], stop: &Stop) -> Result<Self> {
        let fs: &dyn vfs::FileSystem = image;
        let node = tree::resolve(fs, path, true).map_err(at(path))?;
        if !node.is_dir() {
            return Err(at(path)(vfs::Error::NotDirectory));
        }
        let top = node.ino().0;
        Ok(Self {
            image,
            index: Index::read(fs, top, stop)?,
            top,
            own: Vec::new(),
            marks: Vec::new(),
            uuid: [0; 16],
        })
    }

    /// Whether the other state is in an image with the same UUID, hence in a copy.
    pub(super) fn is_related(&self, other: &Self) -> bool {
        self.image.uuid() == other.image.uuid()
    }

    /// Whether the inode is known to be the same to the byte in the other state, access time
    /// included, and its times are from a running clock.
    pub(super) fn is_marked_as(&self, other: &Self, number: u64) -> bool {
        let mark = |state: &Self| {
            let own = state.own(number);
            let found = state
                .marks
                .binary_search_by_key(&own, |(number, _)| u64::from(*number));
            Some((own, state.marks.get(found.ok()?)?.1))
        };
        self.is_related(other) && mark(self).is_some_and(|found| Some(found) == mark(other))
    }

    /// The number on disk.
    pub(super) fn own(&self, number: u64) -> u64 {
        if number >= ONLY_OLD {
            return number - ONLY_OLD;
        }
        let found = self
            .own
            .binary_search_by_key(&number, |(number, _)| u64::from(*number));
        let found = found.ok().and_then(|at| self.own.get(at));
        found.map_or(number, |(_, own)| u64::from(*own))
    }

    /// Gives the inodes the numbers of their counterparts.
    pub(super) fn renumber(&mut self, matches: Matches) {
        let number = |own: u64| matches.new_of(own).unwrap_or(own | ONLY_OLD);
        self.index.renumber(number);
        self.top = number(self.top);
        self.own = matches.renumbered();
    }

    /// The path of an inode, for messages.
    fn path(&self, number: u64) -> Vec<u8> {
        let (mut names, mut at) = (Vec::new(), number);
        while at != self.top && names.len() < DEEPEST {
            let Some(name) = self.index.names(at).into_iter().next() else {
                break;
            };
            names.push(name.name);
            at = name.dir;
        }
        names.reverse();
        names.join(&b'/')
    }

    fn at(&self, number: u64) -> impl FnOnce(vfs::Error) -> SendError {
        move |error| at(&self.path(number))(error)
    }

    pub(super) fn record(&self, number: u64) -> Result<InodeRecord> {
        Ok(self.image.inode_record(self.own(number))?)
    }

    /// An inode, open for reading.
    pub(super) fn held(&self, number: u64) -> Result<HeldInode<'_>> {
        self.open(number).map_err(self.at(number))
    }

    /// The target of a symbolic link.
    pub(super) fn target(&self, number: u64) -> Result<Vec<u8>> {
        let node = self.held(number)?;
        node.target().map_err(self.at(number))
    }

    /// Reads from a file until the buffer is full; bytes after its end are zeros.
    pub(super) fn fill(
        &self,
        node: &HeldInode<'_>,
        number: u64,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        let filled = vfs::read_padded(node.file_system(), node.ino(), offset, buf);
        filled.map_err(self.at(number))
    }

    /// The attributes of the top that stay the same when an extended attribute is set.
    fn digest_top(&self, digest: &mut Sha256) -> Result<()> {
        let inode = self.record(self.top)?.inode;
        digest.update(self.top.to_le_bytes());
        for number in [inode.perm, inode.uid, inode.gid, inode.mtime.nsec] {
            digest.update(number.to_le_bytes());
        }
        digest.update(inode.mtime.sec.to_le_bytes());
        digest_xattrs(&self.xattrs(self.top)?, digest);
        Ok(())
    }

    /// A UUID that is the same for the same names, inodes and content, whatever the access times
    /// are. The content of an inode whose times prove nothing is part of it. The digest has the top.
    fn digest(&mut self, mut digest: Sha256, stop: &Stop) -> Result<[u8; 16]> {
        let mut marks = Vec::new();
        for number in self.index.numbers() {
            if stop.is_stopped() {
                return Err(SendError::Stopped);
            }
            let names = self.index.names(number);
            for name in &names {
                digest.update(name.dir.to_le_bytes());
                digest.update((name.name.len() as u64).to_le_bytes());
                digest.update(&name.name);
            }
            let record = self.digest_inode(number, &mut digest, stop)?;
            let links = record.inode.nlink as usize;
            if record.inode.kind != FileKind::Directory && links < names.len() {
                return Err(contradiction(
                    number,
                    "its link count is smaller than its names",
                ));
            }
            if let Ok(number) = u32::try_from(number)
                && record.is_timed()
            {
                marks.push((number, mark(&record)));
            }
            if self.index.kind(number) != Some(record.inode.kind) {
                return Err(contradiction(number, "its directory has another type"));
            }
        }
        marks.shrink_to_fit();
        self.marks = marks;
        let mut uuid = front(digest);
        // RFC 9562: version 8, made by a rule of the application.
        uuid[6] = uuid[6] & 0x0f | 0x80;
        uuid[8] = uuid[8] & 0x3f | 0x80;
        Ok(uuid)
    }

    fn digest_inode(&self, number: u64, digest: &mut Sha256, stop: &Stop) -> Result<InodeRecord> {
        let record = self.record(number)?;
        let (kind, size) = (record.inode.kind, record.inode.size);
        digest.update(number.to_le_bytes());
        digest.update(&record.bytes);
        if record.is_timed() {
            return Ok(record);
        }
        digest_xattrs(&self.xattrs(number)?, digest);
        match kind {
            FileKind::Symlink => digest.update(self.target(number)?),
            FileKind::Regular => self.digest_content(number, size, digest, stop)?,
            _ => {}
        }
        Ok(record)
    }

    fn digest_content(
        &self,
        number: u64,
        size: u64,
        digest: &mut Sha256,
        stop: &Stop,
    ) -> Result<()> {
        let node = self.held(number)?;
        let mut buffer = vec![0; PIECE];
        for range in self.ranges(number, size)? {
            let range = range?;
            if range.content != RangeContent::Data {
                continue;
            }
            let (mut offset, end) = (range.start, range.end.min(size));
            digest.update(offset.to_le_bytes());
            while offset < end {
                if stop.is_stopped() {
                    return Err(SendError::Stopped);
                }
                let len = usize::try_from(end - offset).map_or(PIECE, |len| len.min(PIECE));
                let piece = buffer.get_mut(..len).unwrap_or_default();
                self.fill(&node, number, offset, piece)?;
                digest.update(&*piece);
                offset += len as u64;
            }
        }
        Ok(())
    }
}

impl Tree for State<'_> {
    type Content = RangeContent;

    fn top(&self) -> u64 {
        self.top
    }

    fn sector(&self) -> u64 {
        self.image.block_size()
    }

    fn inode(&self, number: u64) -> Result<Option<StoredInode>> {
        if number != self.top && !self.index.contains(number) {
            return Ok(None);
        }
        let inode = self.record(number)?.inode;
        // Matched inodes count as the same one, whatever their generations are.
        Ok(Some(StoredInode {
            generation: 0,
            ..inode
        }))
    }

    fn names(&self, number: u64) -> Result<Vec<LinkName>> {
        Ok(self.index.names(number))
    }

    fn find(&self, dir: u64, name: &[u8]) -> Result<Option<u64>> {
        Ok(self.index.find(dir, name))
    }

    fn entries(&self, dir: u64) -> Result<Vec<NamedInode>> {
        Ok(self.index.entries(dir))
    }

    fn xattrs(&self, number: u64) -> Result<Xattrs> {
        let node = self.held(number)?;
        let mut all = node.xattrs().map_err(self.at(number))?;
        if number == self.top {
            all.retain(|(name, _)| name != RECEIVED_STATE);
        }
        Ok(all)
    }

    fn open(&self, number: u64) -> vfs::Result<HeldInode<'_>> {
        let fs: &dyn vfs::FileSystem = self.image;
        Ok(HeldInode::new(fs, fs.reference(Ino(self.own(number)))?))
    }

    fn ranges(&self, number: u64, size: u64) -> Result<Ranges<'_, RangeContent>> {
        let (own, mut next) = (self.own(number), 0);
        let mut one = move || -> Result<Option<Range<RangeContent>>> {
            if next >= size {
                return Ok(None);
            }
            let mut found = self.image.file_range(own, next, size)?;
            // Extents that follow each other in the file are one range, wherever they are.
            while found.end < size {
                let more = self.image.file_range(own, found.end, size)?;
                if more.content != found.content {
                    break;
                }
                found.end = more.end;
            }
            let whole = size - size % self.sector();
            if found.content == RangeContent::Unwritten && found.end > whole {
                // Receivers write zeros to preallocated space at the end of a file, if the end is
                // within a block. A hole there stays one.
                if found.start < whole {
                    found.end = whole;
                } else {
                    found.content = RangeContent::Hole;
                }
            }
            next = found.end;
            Ok(Some(Range {
                start: found.start,
                end: found.end,
                content: found.content,
            }))
        };
        Ok(Box::new(std::iter::from_fn(move || one().transpose())))
    }
}
