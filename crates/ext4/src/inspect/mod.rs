//! Shows the raw contents of an image, without replay or repair. For readers who know the format.
//!
//! Contents are read from the device, and each step through a tree is validated as in the engine.
//! Damage is an error, or a line in the output if more can follow.

mod file;

use sapwood_jbd2::{LayoutMap, Log, LogEntry};
use std::sync::Arc;

use sapwood_block::Device;
use sapwood_ext4_format::{
    DirFormat, DumpGroup, DumpSuper, Geometry, GroupDesc, Incompat, Inode, InodeFlags, SuperBlock,
    file_mode, inline_dir_parent, special_ino,
};

use crate::{Error, mount};

/// Receives the output line by line.
pub type Lines<'a> = dyn FnMut(String) + 'a;

/// Errors of an inspection.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// The device, or damage on it.
    #[error(transparent)]
    Image(#[from] Error),
    /// A component of the path does not exist.
    #[error("there is no {0}")]
    NoSuchPath(String),
    /// It must be a directory.
    #[error("inode {0} is not a directory")]
    NotADirectory(u32),
    /// The image has no journal.
    #[error("there is no journal in the image")]
    NoJournal,
    /// The journal.
    #[error("journal: {0}")]
    Journal(#[from] sapwood_jbd2::Error),
}

impl From<sapwood_ext4_format::FormatError> for InspectError {
    fn from(error: sapwood_ext4_format::FormatError) -> Self {
        Self::Image(error.into())
    }
}

impl From<sapwood_block::Error> for InspectError {
    fn from(error: sapwood_block::Error) -> Self {
        Self::Image(error.into())
    }
}

type Result<T> = std::result::Result<T, InspectError>;

/// An inode, by its number or by its path from the root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    /// Number of the inode.
    Ino(u32),
    /// Path of the inode.
    Path(String),
}

/// The object to show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// The superblock.
    Super,
    /// The descriptors of all groups.
    Groups,
    /// The descriptor of one group.
    Group(u32),
    /// An inode and its attributes.
    Inode(Which),
    /// The nodes of its map: extents or block pointers.
    Map(Which),
    /// The blocks of a directory: entries, and nodes of its index.
    Dir(Which),
    /// Extended attributes as they are stored.
    Attributes(Which),
    /// The journal's log: transactions, blocks, revokes.
    Journal,
}

impl What {
    /// Parses `super`, `groups`, `group:N`, `inode:X`, `map:X`, `dir:X`, `attrs:X` (with the number
    /// or path of an inode), `journal`.
    #[must_use]
    pub fn named(words: &str) -> Option<Self> {
        let which = |text: &str| match text.parse() {
            Ok(ino) => Which::Ino(ino),
            Err(_) => Which::Path(text.to_owned()),
        };
        match words.split_once(':') {
            None => match words {
                "super" => Some(Self::Super),
                "groups" => Some(Self::Groups),
                "journal" => Some(Self::Journal),
                _ => None,
            },
            Some((_, "")) => None,
            Some((kind, of)) => match kind {
                "group" => of.parse().ok().map(Self::Group),
                "inode" => Some(Self::Inode(which(of))),
                "map" => Some(Self::Map(which(of))),
                "dir" => Some(Self::Dir(which(of))),
                "attrs" => Some(Self::Attributes(which(of))),
                _ => None,
            },
        }
    }
}

/// An open image.
pub struct Image {
    device: Arc<dyn Device>,
    super_block: SuperBlock,
    geometry: Geometry,
}

impl Image {
    /// Reads the superblock.
    ///
    /// # Errors
    /// The image is not ext4, or has contradicting sizes; errors of the device.
    pub fn open(device: Arc<dyn Device>) -> Result<Self> {
        let super_block = mount::read_super(&*device)?;
        let geometry = Geometry::new(&super_block)?;
        Ok(Self {
            device,
            super_block,
            geometry,
        })
    }

    /// The superblock.
    #[must_use]
    pub fn super_block(&self) -> &SuperBlock {
        &self.super_block
    }

    /// Shows an object.
    ///
    /// # Errors
    /// The object does not exist, or is too damaged to read; errors of the device.
    pub fn show(&self, what: &What, lines: &mut Lines<'_>) -> Result<()> {
        match what {
            What::Super => lines(DumpSuper(&self.super_block).to_string()),
            What::Groups => {
                for group in 0..self.geometry.group_count() {
                    self.group(group, lines)?;
                }
            }
            What::Group(group) => self.group(*group, lines)?,
            What::Inode(which) => file::inode(self, self.find(which)?, lines)?,
            What::Map(which) => file::map(self, self.find(which)?, lines)?,
            What::Dir(which) => file::directory(self, self.find(which)?, lines)?,
            What::Attributes(which) => file::attributes(self, self.find(which)?, lines)?,
            What::Journal => show(self, lines)?,
        }
        Ok(())
    }

    fn group(&self, group: u32, lines: &mut Lines<'_>) -> Result<()> {
        let geometry = &self.geometry;
        let (block, offset) = geometry.descriptor_block(group)?;
        let bytes = self.block(block)?;
        let bytes = bytes.get(offset as usize..).unwrap_or_default();
        let desc = &GroupDesc::read(bytes, geometry)?;
        let dump = DumpGroup {
            group,
            desc,
            geometry,
        };
        lines(dump.to_string());
        if let Err(error) = desc.verify_checksum(group, geometry) {
            lines(format!("  {error}"));
        }
        Ok(())
    }

    /// Reads a block.
    fn block(&self, block: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.geometry.block_size() as usize];
        self.device
            .read_at(self.geometry.block_offset(block)?, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads an inode, even if its checksum is wrong.
    fn inode(&self, ino: u32) -> Result<Inode> {
        Ok(mount::read_inode_unverified(
            &*self.device,
            &self.geometry,
            ino,
        )?)
    }

    fn dir_format(&self, inode: &Inode) -> DirFormat {
        let features = self.geometry.features();
        DirFormat {
            block_size: self.geometry.block_size() as usize,
            checksums: self.geometry.metadata_csum(),
            file_type: features.has_incompat(Incompat::FILETYPE),
            hash_in_entry: inode
                .flags()
                .contains(InodeFlags::ENCRYPT | InodeFlags::CASEFOLD),
            large_dir: features.has_incompat(Incompat::LARGEDIR),
            inodes: self.geometry.inodes_count(),
        }
    }

    /// The number of an inode. Does not follow symbolic links.
    fn find(&self, which: &Which) -> Result<u32> {
        let path = match which {
            Which::Ino(ino) => return Ok(*ino),
            Which::Path(path) => path,
        };
        let mut at = special_ino::ROOT;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            at = self
                .child(at, name.as_bytes())?
                .ok_or_else(|| InspectError::NoSuchPath(path.clone()))?;
        }
        Ok(at)
    }

    /// The inode of a name in a directory. Searches all blocks, because the index may be damaged.
    fn child(&self, dir: u32, name: &[u8]) -> Result<Option<u32>> {
        let inode = self.inode(dir)?;
        if inode.mode() & file_mode::TYPE != file_mode::DIR {
            return Err(InspectError::NotADirectory(dir));
        }
        if name == b".." && inode.flags().contains(InodeFlags::INLINE_DATA) {
            return Ok(inline_dir_parent(inode.block()));
        }
        let format = self.dir_format(&inode);
        let mut found = None;
        file::each_region(self, dir, &inode, &mut |part| {
            let entries = match part {
                file::Region::Block { bytes, .. } => format.entries(bytes),
                file::Region::Inline(bytes) => format.region_entries(bytes),
            };
            for entry in entries.flatten() {
                if found.is_none() && entry.inode != 0 && entry.name == name {
                    found = Some(entry.inode);
                }
            }
        })?;
        Ok(found)
    }
}

/// Home locations per line.
const PER_LINE: usize = 8;

pub(super) fn show(image: &Image, lines: &mut Lines<'_>) -> Result<()> {
    if image.super_block.journal_inum.get() == 0 {
        return Err(InspectError::NoJournal);
    }
    let runs = mount::journal_layout(&*image.device, &image.super_block, &image.geometry)?;
    let layout = LayoutMap::new(runs, image.geometry.blocks_count())?;
    let device = std::sync::Arc::clone(&image.device);
    let log = Log::load(device, layout, image.geometry.block_size())?;
    lines(format!(
        "Journal: inode {}, {} blocks of log, {} of fast commits, features {:?}",
        image.super_block.journal_inum.get(),
        log.size(),
        log.fast_commit_blocks(),
        log.features(),
    ));
    lines(match log.errno() {
        0 => "No error noted".to_owned(),
        errno => format!("Error noted: {errno}"),
    });
    for run in log.layout().runs() {
        let (first, last) = (run.logical, run.logical + run.len - 1);
        lines(format!("  blocks {first}-{last} at {}", run.physical));
    }
    if !log.needs_recovery() {
        lines("The log is empty".to_owned());
        return Ok(());
    }
    log.entries(&mut |entry| one(&entry, lines))?;
    Ok(())
}

fn one(entry: &LogEntry, lines: &mut Lines<'_>) {
    match entry {
        LogEntry::Descriptor {
            sequence,
            block,
            copies,
            good,
        } => {
            lines(format!(
                "Block {block}: transaction {sequence}, copies of {} blocks{}",
                copies.len(),
                bad(*good)
            ));
            for part in copies.chunks(PER_LINE) {
                let words = part.iter().map(|copy| {
                    let mark = if copy.escaped { "*" } else { "" };
                    let bad = if copy.good { "" } else { "!" };
                    format!("{}@{}{mark}{bad}", copy.home, copy.at)
                });
                lines(format!("  {}", words.collect::<Vec<_>>().join(" ")));
            }
        }
        LogEntry::Revoke {
            sequence,
            block,
            homes,
            good,
        } => {
            lines(format!(
                "Block {block}: transaction {sequence}, revokes {} blocks{}",
                homes.len(),
                bad(*good)
            ));
            for part in homes.chunks(PER_LINE) {
                let words: Vec<_> = part.iter().map(u64::to_string).collect();
                lines(format!("  {}", words.join(" ")));
            }
        }
        LogEntry::Commit {
            sequence,
            block,
            seconds,
            good,
        } => lines(format!(
            "Block {block}: transaction {sequence}, committed at {seconds}{}",
            bad(*good)
        )),
        LogEntry::End { sequence, block } => lines(format!(
            "Block {block}: nothing of transaction {sequence}; the log ends"
        )),
    }
}

fn bad(good: bool) -> &'static str {
    if good { "" } else { ", wrong checksum" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_name_what_to_show() {
        let path = |text: &str| Which::Path(text.to_owned());
        for (words, expected) in [
            ("super", Some(What::Super)),
            ("groups", Some(What::Groups)),
            ("group:7", Some(What::Group(7))),
            ("inode:8", Some(What::Inode(Which::Ino(8)))),
            ("map:/a:b", Some(What::Map(path("/a:b")))),
            ("dir:/", Some(What::Dir(path("/")))),
            ("attrs:x", Some(What::Attributes(path("x")))),
            ("journal", Some(What::Journal)),
            ("journal:1", None),
            ("group:x", None),
            ("inode:", None),
            ("turbo", None),
        ] {
            assert_eq!(What::named(words), expected, "{words}");
        }
    }
}
