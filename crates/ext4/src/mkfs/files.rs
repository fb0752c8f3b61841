//! The inodes that every image has, and their blocks.

use sapwood_ext4_format::{
    Compat, DirFormat, GOOD_OLD_FIRST_INO, Geometry, INDIRECT_DIRECT, Incompat, Inode, InodeFlags,
    MMP_MIN_CHECK_INTERVAL, MMP_UPDATE_INTERVAL, MmpBlock, NewEntry, QuotaKind, RoCompat,
    Timestamp, dir_type, file_mode, orphan_init, orphan_seal, special_ino,
};
use sapwood_jbd2::NewJournal;

use super::error::MkfsError;
use super::layout::{Layout, Run};
use super::map::{self, Block, Mapped};
use super::options::MkfsOptions;
use super::quota;
use super::sizes::JournalSize;

/// Bytes of lost+found, if this many fit without blocks of pointers.
const LOST_FOUND_SIZE: u64 = 16 << 10;
/// The orphan file has one block per this many blocks of the file system, within these bounds.
const BLOCKS_PER_ORPHAN_BLOCK: u64 = 4096;
const ORPHAN_BLOCKS: (u64, u64) = (32, 512);

/// Contents of the files.
#[derive(Default)]
pub(super) struct Files {
    /// Inodes in use, by number.
    pub(super) inodes: Vec<(u32, Inode)>,
    /// Blocks with something in them.
    pub(super) blocks: Vec<Block>,
    /// Blocks that must be zero.
    pub(super) zeros: Vec<Run>,
    /// Blocks of the journal.
    pub(super) journal_blocks: u64,
    /// The journal's map and size, for the superblock.
    pub(super) journal_copy: Option<([u8; 60], u64)>,
    /// The block of multiple mount protection.
    pub(super) mmp_block: Option<u64>,
    /// Inodes of the quota files of users, groups and projects; 0: none.
    pub(super) quotas: [u32; 3],
    /// Inode of the orphan file.
    pub(super) orphan_file: Option<u32>,
}

impl Files {
    /// The highest inode in use.
    pub(super) fn last_inode(&self) -> u32 {
        self.inodes.iter().map(|(ino, _)| *ino).max().unwrap_or(0)
    }
}

/// Creates files one after another.
struct Maker<'a> {
    layout: &'a mut Layout,
    geometry: Geometry,
    now: Timestamp,
    files: Files,
}

/// Creates all files and allocates their blocks.
///
/// # Errors
/// [`MkfsError::TooSmall`].
pub(super) fn make(
    layout: &mut Layout,
    options: &MkfsOptions,
    now: u64,
    journal: Option<&JournalSize>,
) -> Result<Files, MkfsError> {
    let geometry = layout.geometry.clone();
    let mut maker = Maker {
        layout,
        now: Timestamp {
            seconds: i64::try_from(now).unwrap_or(i64::MAX),
            nanos: 0,
        },
        files: Files::default(),
        geometry,
    };
    let features = maker.geometry.features();
    maker.reserved()?;
    maker.root(options.root_owner)?;
    maker.lost_found()?;
    if features.has_compat(Compat::RESIZE_INODE) {
        maker.resize_inode()?;
    }
    if let Some(size) = journal {
        maker.journal(*size)?;
    }
    if features.has_incompat(Incompat::MMP) {
        maker.mmp(now, options)?;
    }
    if features.has_compat(Compat::ORPHAN_FILE) {
        maker.orphan_file()?;
    }
    if features.has_ro_compat(RoCompat::QUOTA) {
        maker.quotas()?;
    }
    Ok(maker.files)
}

impl Maker<'_> {
    fn block_size(&self) -> u64 {
        u64::from(self.geometry.block_size())
    }

    /// Inodes without a file: zeros except for a checksum. The list of bad blocks has times.
    fn reserved(&mut self) -> Result<(), MkfsError> {
        let zeros = vec![0; usize::from(self.geometry.inode_size())];
        for ino in 1..GOOD_OLD_FIRST_INO {
            let mut inode = Inode::read(&zeros, &self.geometry)?;
            if ino == special_ino::BAD_BLOCKS {
                self.stamp(&mut inode);
            }
            inode.set_checksum(ino, &self.geometry);
            self.files.inodes.push((ino, inode));
        }
        Ok(())
    }

    fn stamp(&self, inode: &mut Inode) {
        inode.set_atime(self.now);
        inode.set_ctime(self.now);
        inode.set_mtime(self.now);
    }

    /// Adds a file whose blocks are allocated. `shape` may change the defaults.
    fn add(
        &mut self,
        ino: u32,
        mode: u16,
        size: u64,
        mapped: Mapped,
        shape: impl FnOnce(&mut Inode),
    ) -> Result<(), MkfsError> {
        let geometry = &self.geometry;
        let mut inode = Inode::new(geometry);
        inode.set_mode(mode);
        inode.set_links(1);
        inode.set_flags(mapped.flags);
        inode.set_size(size, geometry)?;
        inode.set_sectors(mapped.all_blocks() * (self.block_size() / 512), geometry)?;
        *inode.block_mut() = mapped.root;
        self.stamp(&mut inode);
        inode.set_crtime(self.now);
        shape(&mut inode);
        inode.set_checksum(ino, geometry);
        self.files.inodes.retain(|(other, _)| *other != ino);
        self.files.inodes.push((ino, inode));
        self.files.blocks.extend(mapped.blocks);
        Ok(())
    }

    fn dir_format(&self) -> DirFormat {
        let features = self.geometry.features();
        DirFormat {
            block_size: self.geometry.block_size() as usize,
            checksums: self.geometry.metadata_csum(),
            file_type: features.has_incompat(Incompat::FILETYPE),
            hash_in_entry: false,
            large_dir: features.has_incompat(Incompat::LARGEDIR),
            inodes: self.geometry.inodes_count(),
        }
    }

    /// A directory with this many blocks. Its first block also has `entry`, if given.
    fn directory(
        &mut self,
        ino: u32,
        mode: u16,
        blocks: u64,
        entry: Option<&NewEntry<'_>>,
        shape: impl FnOnce(&mut Inode),
    ) -> Result<(), MkfsError> {
        let format = self.dir_format();
        let goal = self.layout.inode_goal();
        let mapped = map::new(self.layout, ino, goal, blocks)?;
        let seed = self.geometry.inode_seed(ino, 0);
        for (n, number) in mapped.numbers().enumerate() {
            let mut block = vec![0; format.block_size];
            if n == 0 {
                format.init_dots(&mut block, ino, special_ino::ROOT)?;
                if let Some(entry) = entry {
                    format.insert(&mut block, entry)?;
                }
            } else {
                format.init_block(&mut block)?;
            }
            format.seal(&mut block, seed)?;
            self.files.blocks.push((number, block));
        }
        let size = blocks * self.block_size();
        self.add(ino, file_mode::DIR | mode, size, mapped, |inode| {
            inode.set_links(2);
            shape(inode);
        })
    }

    fn root(&mut self, (uid, gid): (u32, u32)) -> Result<(), MkfsError> {
        let entry = NewEntry {
            name: b"lost+found",
            inode: special_ino::LOST_FOUND,
            file_type: dir_type::DIRECTORY,
            hash: (0, 0),
        };
        self.directory(special_ino::ROOT, 0o755, 1, Some(&entry), |inode| {
            inode.set_links(3);
            inode.set_uid(uid);
            inode.set_gid(gid);
        })
    }

    fn lost_found(&mut self) -> Result<(), MkfsError> {
        let blocks = (LOST_FOUND_SIZE / self.block_size()).min(u64::from(INDIRECT_DIRECT));
        self.directory(special_ino::LOST_FOUND, 0o700, blocks, None, |_| ())
    }

    fn resize_inode(&mut self) -> Result<(), MkfsError> {
        let mapped = map::reserved_for_descriptors(self.layout, &self.geometry)?;
        let per_block = self.block_size() / 4;
        // Everything up to the end of the range of a block of blocks of pointers.
        let all = per_block * per_block + per_block + u64::from(INDIRECT_DIRECT);
        let size = all * self.block_size();
        let mode = file_mode::REGULAR | 0o600;
        self.add(special_ino::RESIZE, mode, size, mapped, |_| ())
    }

    fn journal(&mut self, size: JournalSize) -> Result<(), MkfsError> {
        let goal = self.layout.journal_goal()?;
        let blocks = u64::from(size.blocks);
        let mapped = map::new(self.layout, special_ino::JOURNAL, goal, blocks)?;
        let first = NewJournal {
            block_size: self.geometry.block_size(),
            blocks: size.blocks,
            fast_commit_blocks: size.fast_commit,
            uuid: *self.geometry.uuid(),
            external_at: None,
        };
        if let Some(number) = mapped.numbers().next() {
            self.files.blocks.push((number, first.superblock()?));
        }
        self.files.zeros.extend(&mapped.data);
        self.files.journal_blocks = mapped.data_blocks();
        let bytes = blocks * self.block_size();
        self.files.journal_copy = Some((mapped.root, bytes));
        let mode = file_mode::REGULAR | 0o600;
        self.add(special_ino::JOURNAL, mode, bytes, mapped, |_| ())
    }

    /// The block of multiple mount protection.
    fn mmp(&mut self, now: u64, options: &MkfsOptions) -> Result<(), MkfsError> {
        let interval = options.mmp_update_interval.unwrap_or(MMP_UPDATE_INTERVAL);
        let mut mmp = MmpBlock::clean(now, interval.max(MMP_MIN_CHECK_INTERVAL));
        if self.geometry.metadata_csum() {
            mmp.set_checksum(self.geometry.csum_seed());
        }
        let taken = self.layout.take(0, 1)?;
        let number = taken.first().ok_or_else(|| self.layout.full())?.start;
        let mut block = mmp.bytes().to_vec();
        block.resize(self.geometry.block_size() as usize, 0);
        self.files.blocks.push((number, block));
        self.files.mmp_block = Some(number);
        Ok(())
    }

    /// Quota files; for projects only with the feature `project`.
    fn quotas(&mut self) -> Result<(), MkfsError> {
        self.files.quotas[0] = self.quota(QuotaKind::User, special_ino::USER_QUOTA)?;
        self.files.quotas[1] = self.quota(QuotaKind::Group, special_ino::GROUP_QUOTA)?;
        if self.geometry.features().has_ro_compat(RoCompat::PROJECT) {
            // An ordinary inode without a name.
            let ino = self.files.last_inode() + 1;
            self.files.quotas[2] = self.quota(QuotaKind::Project, ino)?;
        }
        Ok(())
    }

    fn quota(&mut self, kind: QuotaKind, ino: u32) -> Result<u32, MkfsError> {
        let content = quota::content(kind, &self.files.inodes, &self.geometry);
        let block_size = self.geometry.block_size() as usize;
        let blocks = content.len().div_ceil(block_size) as u64;
        let goal = self.layout.inode_goal();
        let mapped = map::new(self.layout, ino, goal, blocks)?;
        for (number, part) in mapped.numbers().zip(content.chunks(block_size)) {
            let mut block = part.to_vec();
            block.resize(block_size, 0);
            self.files.blocks.push((number, block));
        }
        let mode = file_mode::REGULAR | 0o600;
        self.add(ino, mode, content.len() as u64, mapped, |inode| {
            inode.set_flags(inode.flags() | InodeFlags::IMMUTABLE | InodeFlags::NOATIME);
        })?;
        Ok(ino)
    }

    fn orphan_file(&mut self) -> Result<(), MkfsError> {
        // It is an ordinary inode, but has no name.
        let ino = special_ino::LOST_FOUND + 1;
        let (least, most) = ORPHAN_BLOCKS;
        let blocks = self.geometry.blocks_count() / BLOCKS_PER_ORPHAN_BLOCK;
        let blocks = blocks.clamp(least, most);
        let goal = self.layout.inode_goal();
        let mapped = map::new(self.layout, ino, goal, blocks)?;
        let seed = self.geometry.inode_seed(ino, 0);
        for number in mapped.numbers() {
            let mut block = vec![0; self.geometry.block_size() as usize];
            orphan_init(&mut block)?;
            if self.geometry.metadata_csum() {
                orphan_seal(&mut block, seed, number)?;
            }
            self.files.blocks.push((number, block));
        }
        self.files.orphan_file = Some(ino);
        let size = blocks * self.block_size();
        self.add(ino, file_mode::REGULAR | 0o600, size, mapped, |_| ())
    }
}
