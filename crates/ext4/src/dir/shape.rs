//! [`Dir`]: a directory for the time of one call, and access to its blocks.
//!
//! A block is validated when it is read: its checksum, and its structure as a block of names or a
//! node of the index. [`Buffer::kind`] has the validated kind.

use std::sync::Arc;

use sapwood_ext4_format::{
    Compat, DirEntries, DirEntry, DirError, DirFormat, DirScan, Geometry, HtreeError, Incompat,
    InodeFlags, NewEntry, casefold,
};
use sapwood_jbd2::{Buffer, Handle};
use sapwood_vfs::FileKind;

use crate::inode::Inode;
use crate::seal::SealKind;
use crate::store::Store;
use crate::{Error, Result, block_alloc, map};

/// Blocks of a directory whose map is looked up quickly enough.
const FEW: u32 = 4;

/// A name that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    /// Inode that it leads to.
    pub(crate) ino: u32,
    /// Type in the entry, if the image stores types.
    pub(crate) kind: Option<FileKind>,
}

/// The form of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// In the inode.
    Inline,
    /// In blocks, one after another.
    Linear,
    /// In blocks that an index of hashes leads to.
    Indexed,
}

/// A directory in its present form. Each call makes one, and another one after a change of the
/// form.
pub(super) struct Dir<'a> {
    pub(super) store: &'a Store,
    pub(super) inode: &'a Inode,
    pub(super) format: DirFormat,
    pub(super) flags: InodeFlags,
    pub(super) form: Form,
    /// Blocks that it has; 0 if its names are in the inode.
    pub(super) blocks: u32,
}

/// The form of blocks of names under the file system's features.
pub(crate) fn format_of(geometry: &Geometry, flags: InodeFlags) -> DirFormat {
    let features = geometry.features();
    DirFormat {
        block_size: geometry.block_size() as usize,
        checksums: geometry.metadata_csum(),
        file_type: features.has_incompat(Incompat::FILETYPE),
        hash_in_entry: flags.contains(InodeFlags::ENCRYPT | InodeFlags::CASEFOLD),
        large_dir: features.has_incompat(Incompat::LARGEDIR),
        inodes: geometry.inodes_count(),
    }
}

/// A name that is looked for.
pub(super) struct Wanted<'n> {
    name: &'n [u8],
    /// The folded form of the name in a casefolded directory.
    folded: Option<Vec<u8>>,
}

impl<'n> Wanted<'n> {
    pub(super) fn new(dir: &Dir<'_>, name: &'n [u8]) -> Self {
        let folds = dir.flags.contains(InodeFlags::CASEFOLD);
        Self {
            name,
            folded: folds.then(|| casefold(name)).flatten(),
        }
    }

    /// The entry with this name, if it is among `entries`.
    pub(super) fn among<'a>(
        &self,
        mut entries: DirEntries<'a>,
    ) -> Result<Option<DirEntry<'a>>, DirError> {
        entries
            .find(|entry| {
                entry
                    .as_ref()
                    .map_or(true, |entry| entry.inode != 0 && self.is(entry.name))
            })
            .transpose()
    }

    /// Looks for the name in a block, and for room for an entry of `room` bytes.
    pub(super) fn scan<'a>(
        &self,
        format: &DirFormat,
        block: &'a [u8],
        room: usize,
    ) -> Result<DirScan<'a>, DirError> {
        if self.folded.is_none() {
            return format.scan(block, self.name, room);
        }
        let mut found = DirScan::default();
        for entry in format.entries(block) {
            let entry = entry?;
            if entry.inode != 0 && self.is(entry.name) {
                found.hit = Some(entry);
                return Ok(found);
            }
            if found.room.is_none() && format.has_room_in(&entry, room) {
                found.room = Some(entry.offset);
            }
            found.before = Some(entry.offset);
        }
        Ok(found)
    }

    fn is(&self, name: &[u8]) -> bool {
        name == self.name || (self.folded.is_some() && casefold(name) == self.folded)
    }
}

/// An entry to write.
pub(super) fn new_entry(name: &[u8], inode: u32, kind: FileKind) -> NewEntry<'_> {
    NewEntry {
        name,
        inode,
        file_type: kind.entry_type(),
        hash: (0, 0),
    }
}

impl<'a> Dir<'a> {
    /// The directory as it is now.
    ///
    /// # Errors
    /// The size is impossible for a directory.
    pub(super) fn open(store: &'a Store, inode: &'a Inode) -> Result<Self> {
        let (flags, size) = {
            let state = inode.state.lock();
            (state.raw.flags(), state.size)
        };
        let indexed = flags.contains(InodeFlags::INDEX)
            && store.geometry.features().has_compat(Compat::DIR_INDEX);
        let form = if flags.contains(InodeFlags::INLINE_DATA) {
            Form::Inline
        } else if indexed && size > 0 {
            Form::Indexed
        } else {
            Form::Linear
        };
        let blocks = match form {
            Form::Inline => Some(0),
            _ if size % store.block_size() == 0 => u32::try_from(size / store.block_size()).ok(),
            _ => None,
        };
        Ok(Self {
            store,
            inode,
            format: format_of(&store.geometry, flags),
            flags,
            form,
            blocks: blocks.ok_or_else(|| Error::BadInode {
                ino: inode.ino,
                reason: format!("a directory of {size} bytes"),
            })?,
        })
    }

    /// Whether a directory of one full block gets an index.
    pub(super) fn may_index(&self) -> bool {
        self.store.geometry.features().has_compat(Compat::DIR_INDEX)
    }

    /// Refuses a directory with encrypted names, which may have bytes that no name has.
    ///
    /// # Errors
    /// `NotSupported`.
    pub(super) fn check_readable(&self) -> Result<()> {
        if self.flags.contains(InodeFlags::ENCRYPT) {
            Err(Error::Vfs(sapwood_vfs::Error::NotSupported))
        } else {
            Ok(())
        }
    }

    /// The error for an invalid block.
    pub(super) fn bad_block(&self, block: u64, reason: impl ToString) -> Error {
        Error::BadBlock {
            ino: self.inode.ino,
            block,
            reason: reason.to_string(),
        }
    }

    /// The error for an inode that contradicts itself.
    pub(super) fn bad(&self, reason: impl ToString) -> Error {
        Error::BadInode {
            ino: self.inode.ino,
            reason: reason.to_string(),
        }
    }

    /// A block of the directory, not validated.
    fn block(&self, logical: u32) -> Result<Arc<Buffer>> {
        if let Some(place) = self.inode.dir.places.get(logical) {
            return self.store.block(place);
        }
        let buffer = map::block_of(self.store, self.inode, logical.into())?;
        if self.blocks > FEW {
            self.inode.dir.places.note(logical, buffer.block());
        }
        Ok(buffer)
    }

    /// A block of names.
    ///
    /// # Errors
    /// It is damaged; errors of the device.
    pub(super) fn leaf(&self, logical: u32) -> Result<Arc<Buffer>> {
        let buffer = self.block(logical)?;
        match buffer.kind() {
            kind if kind == SealKind::DirLeaf as u8 => {}
            kind if kind == SealKind::HashNode as u8 => {
                return Err(self.bad_block(buffer.block(), "is of the index and has names too"));
            }
            _ => {
                let content = buffer.read();
                let seed = self.inode.seed(self.store);
                self.format
                    .verify(&content, seed)
                    .and_then(|()| self.check_names(&content))
                    .map_err(|reason| self.bad_block(buffer.block(), reason))?;
                self.label(&buffer, SealKind::DirLeaf);
            }
        }
        Ok(buffer)
    }

    /// Validates the structure of a block of names.
    fn check_names(&self, content: &[u8]) -> Result<(), DirError> {
        if !self.flags.contains(InodeFlags::ENCRYPT) {
            return self.format.check(content);
        }
        // Encrypted names have any bytes.
        self.format
            .entries(content)
            .try_for_each(|entry| entry.map(|_| ()))
    }

    /// Records the kind of a buffer, for readers and for the commit.
    pub(super) fn label(&self, buffer: &Buffer, kind: SealKind) {
        buffer.set_seal(Some(kind.of(self.inode.ino, self.inode.generation)));
        buffer.set_kind(kind as u8);
    }

    /// A root or node of the index, validated by `check` when it is read.
    ///
    /// # Errors
    /// It is damaged; errors of the device.
    pub(super) fn node(
        &self,
        logical: u32,
        check: impl FnOnce(&[u8]) -> Result<(), HtreeError>,
    ) -> Result<Arc<Buffer>> {
        let buffer = self.block(logical)?;
        match buffer.kind() {
            kind if kind == SealKind::HashNode as u8 => {}
            kind if kind == SealKind::DirLeaf as u8 => {
                return Err(self.bad_block(buffer.block(), "has names and is of the index too"));
            }
            _ => {
                let content = buffer.read();
                let seed = self.inode.seed(self.store);
                self.format
                    .dx_verify(&content, seed)
                    .and_then(|()| check(&content))
                    .map_err(|reason| self.bad_block(buffer.block(), reason))?;
                self.label(&buffer, SealKind::HashNode);
            }
        }
        Ok(buffer)
    }

    /// Adds a block, without content, at the end.
    ///
    /// # Errors
    /// No space; the directory cannot have more blocks.
    pub(super) fn append(&mut self, h: &Handle, kind: SealKind) -> Result<(u32, Arc<Buffer>)> {
        let logical = self.blocks;
        let blocks = logical.checked_add(1).ok_or(Error::NoSpace)?;
        let size = u64::from(blocks) * self.store.block_size();
        let geometry = &self.store.geometry;
        // Checked on a copy: a size that does not fit must not cost a block.
        let mut raw = self.inode.state.lock().raw.clone();
        raw.set_size(size, geometry).map_err(|_| Error::NoSpace)?;
        let buffer = map::append_block(self.store, h, self.inode, logical.into())?;
        {
            let mut state = self.inode.state.lock();
            state.raw.set_size(size, geometry)?;
            state.size = size;
        }
        self.label(&buffer, kind);
        self.blocks = blocks;
        Ok((logical, buffer))
    }

    /// Changes a block of names.
    ///
    /// # Errors
    /// The change is refused; errors of the journal.
    pub(super) fn change<R, E: ToString>(
        &self,
        h: &Handle,
        buffer: &Arc<Buffer>,
        with: impl FnOnce(&DirFormat, &mut [u8]) -> Result<R, E>,
    ) -> Result<R> {
        with(&self.format, &mut h.modify(buffer)?)
            .map_err(|reason| self.bad_block(buffer.block(), reason))
    }

    /// Sets and clears flags of the inode.
    pub(super) fn set_flags(&mut self, set: InodeFlags, clear: InodeFlags) {
        let mut state = self.inode.state.lock();
        self.flags = (state.raw.flags() - clear) | set;
        state.raw.set_flags(self.flags);
    }

    /// The result for an entry that was found.
    pub(super) fn found(&self, entry: &DirEntry<'_>) -> Found {
        Found {
            ino: entry.inode,
            kind: FileKind::from_entry_type(entry.file_type),
        }
    }
}

/// Blocks that one change of names may touch.
pub(super) struct Growth {
    /// Existing blocks.
    pub(super) changed: u32,
    /// New blocks.
    pub(super) added: u32,
}

impl Growth {
    /// Credits for mapping the new blocks.
    pub(super) fn map_credits(&self, dir: &Dir<'_>) -> u32 {
        match self.added {
            0 => 0,
            added => map::append_credits(dir.store, dir.inode, added),
        }
    }

    /// Credits for all of it.
    pub(super) fn credits(&self, dir: &Dir<'_>) -> u32 {
        let map = self.map_credits(dir);
        // Each new block may be in another group.
        self.changed + (1 + block_alloc::CREDITS) * self.added + map
    }
}

/// Puts the checksum into a block of names.
pub(crate) fn seal_leaf(geometry: &Geometry, content: &mut [u8], seed: u32) -> Result<(), String> {
    format_of(geometry, InodeFlags::empty())
        .seal(content, seed)
        .map_err(|reason| reason.to_string())
}

/// Puts the checksum into a root or node of a hash tree.
pub(crate) fn seal_node(geometry: &Geometry, content: &mut [u8], seed: u32) -> Result<(), String> {
    format_of(geometry, InodeFlags::empty())
        .dx_seal(content, seed)
        .map_err(|reason| reason.to_string())
}
