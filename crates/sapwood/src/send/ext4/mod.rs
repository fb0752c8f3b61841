//! Directories of ext4 images as the trees of a send.
//!
//! # How it works
//! 1. `index` reads all names of both images, and `state` all inodes.
//! 2. `matching` finds the inodes of the old state that become inodes of the new one.
//! 3. Matched inodes are compared. A file needs no read of its content if both images have the same
//!    UUID, the inode is the same to the byte (access time aside), and the time of its last change
//!    is from a running clock: each write changes times and version of its inode. The content of
//!    any other file is compared block by block. So is every file of an image that was not
//!    unmounted, because written data may be on disk without the change of its inode.
//!
//! The UUID of a state is made from its names and inodes, so the same image always has the same
//! one, and a receiver that has received the state knows it by that UUID.

mod index;
mod matching;
mod state;

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use sapwood_ext4::Ext4;
use sapwood_ext4::compare::{InodeRecord, RangeContent};

use super::SendOptions;
use super::content::Cut;
use super::error::{Result, SendError};
use super::output::Output;
use super::source::{FileRange, Source, Stored, Tree as _};
use crate::fs::FileSystem;
use crate::image::Mounted;
use crate::progress::Stop;
use crate::vfs::{ChangedInode, FileKind, Parts, StoredInode};
use state::State;
pub(crate) use state::{RECEIVED_STATE, content_digest, linked_outside, state_uuid};

/// The transaction of every state: states of an image have no order that its receivers need.
const TRANSACTION: u64 = 1;

/// Bytes that are compared at a time: whole blocks of any size.
const PIECE: u64 = 128 * 1024;

/// Most bytes of one changed part, so that its bytes are still cached when they are sent.
const PART: u64 = 8 * 1024 * 1024;

/// The state to send, and the state that the receiver has.
pub(super) struct States<'a> {
    new: Arc<State<'a>>,
    old: Option<Arc<State<'a>>>,
    changes: Arc<Vec<ChangedInode>>,
    /// Compare the content of all files.
    content: bool,
    buffers: [Vec<u8>; 2],
}

/// The engine of an ext4 image that does not change.
fn engine(fs: &FileSystem) -> Result<&Ext4> {
    let Mounted::Ext4(image) = fs.engine() else {
        return Err(SendError::ParentFormat(fs.image_path().to_owned()));
    };
    if fs.engine().read_only() {
        Ok(image)
    } else {
        Err(SendError::OpenForWriting(fs.image_path().to_owned()))
    }
}

impl<'a> States<'a> {
    pub(super) fn find(fs: &'a FileSystem, path: &Path, options: &'a SendOptions) -> Result<Self> {
        if !options.clone_sources.is_empty() {
            return Err(SendError::CloneSources);
        }
        let stop = &options.stop;
        let image = engine(fs)?;
        let new = State::read(image, path.as_os_str().as_bytes(), stop)?;
        let parent = options.parent.as_deref();
        let parent = parent.or(options.parent_image.as_ref().map(|_| Path::new("")));
        let mut states = Self {
            new: Arc::new(new),
            old: None,
            changes: Arc::default(),
            content: options.content || !image.was_unmounted(),
            buffers: [Vec::new(), Vec::new()],
        };
        if let Some(parent) = parent {
            let image = engine(options.parent_image.as_ref().unwrap_or(fs))?;
            let mut old = State::read(image, parent.as_os_str().as_bytes(), stop)?;
            old.renumber(matching::matched(&old, &states.new, stop)?);
            states.compare(Arc::new(old), stop)?;
            let data = states.changes.iter().any(|change| change.parts.data);
            // Receivers would take one state for the other.
            if data && states.old.as_ref().map(|old| old.uuid) == Some(states.new.uuid) {
                return Err(SendError::SameIdentity);
            }
        }
        Ok(states)
    }

    /// Finds all inodes that differ from the old state.
    fn compare(&mut self, old: Arc<State<'a>>, stop: &Stop) -> Result<()> {
        self.old = Some(Arc::clone(&old));
        let new = Arc::clone(&self.new);
        let mut changes = Vec::new();
        let named = merged(new.index.numbers(), old.index.numbers());
        // The top has no name, and one number on both sides.
        for number in merged(named, std::iter::once(new.top())) {
            if stop.is_stopped() {
                return Err(SendError::Stopped);
            }
            let has = |state: &State<'_>| number == state.top() || state.index.contains(number);
            let parts = if has(&old) && has(&new) {
                self.compare_inode(&old, number)?
            } else {
                Parts {
                    inode: true,
                    names: true,
                    ..Parts::default()
                }
            };
            if parts != Parts::default() {
                changes.push(ChangedInode { number, parts });
            }
        }
        changes.shrink_to_fit();
        self.changes = Arc::new(changes);
        Ok(())
    }

    fn compare_inode(&mut self, old: &State<'_>, number: u64) -> Result<Parts> {
        let new = Arc::clone(&self.new);
        let directory = number == new.top() || new.index.kind(number) == Some(FileKind::Directory);
        let mut parts = Parts {
            names: old.index.names(number) != new.index.names(number),
            // The receiver changes the times of a directory with its names.
            inode: directory && !new.index.has_entries_of(&old.index, number),
            ..Parts::default()
        };
        if !self.content && old.is_marked_as(&new, number) {
            return Ok(parts);
        }
        let (before, after) = (old.record(number)?, new.record(number)?);
        let same = old.is_related(&new) && old.own(number) == new.own(number);
        parts.inode |= differs(&before.inode, &after.inode, same);
        let unchanged = same && is_unchanged(&before, &after);
        if !unchanged {
            parts.xattrs = old.xattrs(number)? != new.xattrs(number)?;
        }
        if after.inode.kind == FileKind::Regular && (!unchanged || self.content) {
            parts.data = before.inode.size != after.inode.size
                || self.content_differs(old, number, after.inode.size)?;
        }
        Ok(parts)
    }

    /// Whether the content of a file differs, whose size is the same in both states.
    fn content_differs(&mut self, old: &State<'_>, number: u64, size: u64) -> Result<bool> {
        let new = Arc::clone(&self.new);
        let mut before = Cut::new(old.ranges(number, size)?);
        let mut after = Cut::new(new.ranges(number, size)?);
        let mut start = 0;
        while start < size {
            let (then, old_end) = before.at(start)?;
            let (now, new_end) = after.at(start)?;
            let end = old_end.min(new_end).min(size);
            let range = FileRange {
                number,
                path: b"",
                start,
                end,
                content: &now,
            };
            if self.changed_part(&then, &range)?.is_some() {
                return Ok(true);
            }
            start = end;
        }
        Ok(false)
    }

    /// The first part of a data range whose bytes differ from the old state.
    fn changed_bytes(
        &mut self,
        old: &State<'_>,
        number: u64,
        (start, end): (u64, u64),
    ) -> Result<Option<(u64, u64)>> {
        let new = &self.new;
        let old_node = old.held(number)?;
        let new_node = new.held(number)?;
        let block = usize::try_from(new.sector()).unwrap_or(usize::MAX);
        let [one, two] = &mut self.buffers;
        let mut begin = None;
        let mut offset = start;
        while offset < end {
            let len = usize::try_from((end - offset).min(PIECE)).unwrap_or_default();
            one.resize(len, 0);
            two.resize(len, 0);
            old.fill(&old_node, number, offset, one)?;
            new.fill(&new_node, number, offset, two)?;
            for (then, now) in one.chunks(block).zip(two.chunks(block)) {
                match begin {
                    None if then != now => begin = Some(offset),
                    Some(begin) if then == now || offset - begin >= PART => {
                        return Ok(Some((begin, offset)));
                    }
                    _ => {}
                }
                offset += now.len() as u64;
            }
        }
        Ok(begin.map(|begin| (begin, end)))
    }
}

/// The numbers of two ascending sequences in ascending order, each once.
fn merged(
    one: impl Iterator<Item = u64>,
    two: impl Iterator<Item = u64>,
) -> impl Iterator<Item = u64> {
    let (mut one, mut two) = (one.peekable(), two.peekable());
    std::iter::from_fn(move || {
        let next = match (one.peek(), two.peek()) {
            (Some(a), Some(b)) => *a.min(b),
            (Some(a), None) | (None, Some(a)) => *a,
            (None, None) => return None,
        };
        one.next_if_eq(&next);
        two.next_if_eq(&next);
        Some(next)
    })
}

/// Whether attributes differ that a stream has. The times of change and creation of two inodes
/// differ always; they are compared for the same inode only.
fn differs(old: &StoredInode, new: &StoredInode, same: bool) -> bool {
    let attributes = |inode: &StoredInode| {
        let owner = (inode.perm, inode.uid, inode.gid);
        (owner, inode.size, inode.atime, inode.mtime)
    };
    let regular = new.kind == FileKind::Regular;
    let sized = |inode: &StoredInode| StoredInode {
        // Directories have different sizes with the same names.
        size: if regular { inode.size } else { 0 },
        ..*inode
    };
    attributes(&sized(old)) != attributes(&sized(new))
        || same && (old.ctime, old.otime) != (new.ctime, new.otime)
}

/// Whether one inode of an image and of its copy did not change; see the module.
fn is_unchanged(old: &InodeRecord, new: &InodeRecord) -> bool {
    new.is_timed() && old.bytes == new.bytes
}

impl<'a> Source for States<'a> {
    type Tree = State<'a>;

    const SEALED: u64 = 0x10_0000;

    fn new_tree(&self) -> &Arc<State<'a>> {
        &self.new
    }

    fn old_tree(&self) -> Option<&Arc<State<'a>>> {
        self.old.as_ref()
    }

    fn identity(&self, tree: &State<'a>) -> ([u8; 16], u64) {
        (tree.uuid, TRANSACTION)
    }

    fn changes(&self) -> Result<Box<dyn Iterator<Item = Result<ChangedInode>>>> {
        let changes = Arc::clone(&self.changes);
        let mut at = 0..;
        Ok(Box::new(std::iter::from_fn(move || {
            changes.get(at.next()?).cloned().map(Ok)
        })))
    }

    fn check_unchanged(&self) -> Result<()> {
        // The images are open for reading only.
        Ok(())
    }

    fn changed_part(
        &mut self,
        old: &RangeContent,
        range: &FileRange<'_, RangeContent>,
    ) -> Result<Option<(u64, u64)>> {
        let whole = (range.start, range.end);
        if old != range.content {
            return Ok((range.start < range.end).then_some(whole));
        }
        match (&self.old, range.content) {
            (Some(old), RangeContent::Data) => {
                let old = Arc::clone(old);
                self.changed_bytes(&old, range.number, whole)
            }
            _ => Ok(None),
        }
    }

    fn send_stored<W: Write>(
        &mut self,
        _out: &mut Output<W>,
        range: &FileRange<'_, RangeContent>,
    ) -> Result<Stored> {
        Ok(Stored {
            rest: range.start,
            content: 0,
        })
    }
}
