//! Prints the content of one item on one line.

use std::fmt;

use super::{Text, Tree, Uuid};
use crate::{
    BlockGroupFlags, BlockGroupItem, ChunkItem, DevExtent, DevItem, DevStats, DirItemRef,
    DirLogItem, ExtentItemRef, FileExtent, FreeSpaceHeader, FreeSpaceInfo, InlineRef, InodeItem,
    ItemError, Key, QgroupInfo, QgroupLimit, QgroupStatus, RegularExtent, RootItem, Timespec,
    compression, dir_items, file_type, inode_extrefs, inode_refs, kind, objectid, root_ref,
    uuid_item,
};

/// Prints an item's content, beginning with `: `; prints nothing for an item without data.
pub(crate) struct DumpItem<'a> {
    /// Key of the item.
    pub key: Key,
    /// Data of the item.
    pub data: &'a [u8],
}

/// Reasons why an item could not be printed.
enum Stop {
    Format(fmt::Error),
    Item(ItemError),
}

impl From<fmt::Error> for Stop {
    fn from(err: fmt::Error) -> Self {
        Self::Format(err)
    }
}

impl From<ItemError> for Stop {
    fn from(err: ItemError) -> Self {
        Self::Item(err)
    }
}

type Printed = Result<(), Stop>;

impl fmt::Display for DumpItem<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.data.is_empty() {
            return Ok(());
        }
        write!(f, ":")?;
        match self.print(f) {
            Ok(()) => Ok(()),
            Err(Stop::Item(err)) => write!(f, " BAD: {err}"),
            Err(Stop::Format(err)) => Err(err),
        }
    }
}

impl DumpItem<'_> {
    fn print(&self, f: &mut fmt::Formatter<'_>) -> Printed {
        let data = self.data;
        match self.key.kind {
            kind::INODE_ITEM => inode(f, &InodeItem::read(data)?)?,
            kind::INODE_REF => {
                for entry in inode_refs(data) {
                    let entry = entry?;
                    write!(f, " index {} name {}", entry.index, Text(entry.name))?;
                }
            }
            kind::INODE_EXTREF => {
                for entry in inode_extrefs(data) {
                    let entry = entry?;
                    write!(f, " parent {} index {}", entry.parent, entry.index)?;
                    write!(f, " name {}", Text(entry.name))?;
                }
            }
            kind::DIR_ITEM | kind::DIR_INDEX | kind::XATTR_ITEM => {
                for entry in dir_items(data) {
                    dir_entry(f, &entry?)?;
                }
            }
            kind::DIR_LOG_ITEM | kind::DIR_LOG_INDEX => {
                write!(f, " end {}", DirLogItem::read(data)?.end)?;
            }
            kind::EXTENT_DATA => file_extent(f, &FileExtent::parse(data)?)?,
            kind::ROOT_ITEM => root(f, &RootItem::parse(data)?)?,
            kind::ROOT_REF | kind::ROOT_BACKREF => {
                let entry = root_ref(data)?;
                write!(f, " dir {} index {}", entry.dirid, entry.sequence)?;
                write!(f, " name {}", Text(entry.name))?;
            }
            kind::EXTENT_ITEM | kind::METADATA_ITEM => {
                extent(f, &ExtentItemRef::parse(self.key.kind, data)?)?;
            }
            kind::EXTENT_DATA_REF | kind::SHARED_DATA_REF => {
                inline_ref(f, &InlineRef::parse_keyed(&self.key, data)?)?;
            }
            kind::CHUNK_ITEM => write!(f, "{}", Chunk(&ChunkItem::parse(data)?))?,
            _ => return self.print_rest(f),
        }
        Ok(())
    }

    fn print_rest(&self, f: &mut fmt::Formatter<'_>) -> Printed {
        let data = self.data;
        match self.key.kind {
            kind::BLOCK_GROUP_ITEM => {
                let group = BlockGroupItem::read(data)?;
                let flags = BlockGroupFlags::from_bits_retain(group.flags.get());
                write!(f, " used {} {flags}", group.used)?;
            }
            kind::DEV_ITEM => {
                let dev = DevItem::read(data)?;
                write!(f, " device {} total {}", dev.devid, dev.total_bytes)?;
                write!(f, " used {} uuid {}", dev.bytes_used, Uuid(&dev.uuid))?;
            }
            kind::DEV_EXTENT => {
                let extent = DevExtent::read(data)?;
                write!(f, " chunk {} length {}", extent.chunk_offset, extent.length)?;
            }
            kind::FREE_SPACE_INFO => {
                let info = FreeSpaceInfo::read(data)?;
                write!(f, " extents {} {}", info.extent_count, info.info_flags())?;
            }
            kind::FREE_SPACE_BITMAP => {
                let free: u32 = data.iter().map(|b| b.count_ones()).sum();
                write!(f, " {free} bits set")?;
            }
            kind::EXTENT_CSUM => {
                write!(f, " ")?;
                hex(f, data)?;
            }
            kind::UUID_KEY_SUBVOL | kind::UUID_KEY_RECEIVED_SUBVOL => {
                write!(f, " trees")?;
                uuid_item(data).try_for_each(|id| write!(f, " {id}"))?;
            }
            0 if self.key.objectid == objectid::FREE_SPACE => {
                let head = FreeSpaceHeader::read(data)?;
                write!(
                    f,
                    " cache in {} generation {}",
                    head.location.get(),
                    head.generation
                )?;
                write!(
                    f,
                    " entries {} bitmaps {}",
                    head.num_entries, head.num_bitmaps
                )?;
            }
            kind::PERSISTENT_ITEM if data.len() >= DevStats::SIZE => {
                let s = DevStats::read(data)?;
                write!(
                    f,
                    " errors: write {} read {}",
                    s.write_errors, s.read_errors
                )?;
                write!(
                    f,
                    " flush {} corruption {}",
                    s.flush_errors, s.corruption_errors
                )?;
                write!(f, " generation {}", s.generation_errors)?;
            }
            _ => return self.print_qgroup(f),
        }
        Ok(())
    }

    fn print_qgroup(&self, f: &mut fmt::Formatter<'_>) -> Printed {
        match self.key.kind {
            kind::QGROUP_STATUS => {
                let s = QgroupStatus::read(self.data)?;
                write!(f, " version {} generation {}", s.version, s.generation)?;
                write!(f, " flags {:#x} rescan {}", s.flags.get(), s.rescan)?;
            }
            kind::QGROUP_INFO => {
                let s = QgroupInfo::read(self.data)?;
                write!(
                    f,
                    " generation {} referenced {}",
                    s.generation, s.referenced
                )?;
                write!(f, " exclusive {}", s.exclusive)?;
            }
            kind::QGROUP_LIMIT => {
                let s = QgroupLimit::read(self.data)?;
                write!(
                    f,
                    " flags {:#x} referenced {}",
                    s.flags.get(),
                    s.max_referenced
                )?;
                write!(f, " exclusive {}", s.max_exclusive)?;
            }
            _ => {
                write!(f, " ")?;
                hex(f, self.data)?;
            }
        }
        Ok(())
    }
}

/// The first bytes in hexadecimal.
fn hex(f: &mut fmt::Formatter<'_>, data: &[u8]) -> fmt::Result {
    const SHOWN: usize = 32;
    data.iter()
        .take(SHOWN)
        .try_for_each(|b| write!(f, "{b:02x}"))?;
    if data.len() > SHOWN {
        write!(f, "...")
    } else {
        Ok(())
    }
}

struct Time<'a>(&'a Timespec);

impl fmt::Display for Time<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.0.seconds(), self.0.nsec.get())
    }
}

fn inode(f: &mut fmt::Formatter<'_>, inode: &InodeItem) -> fmt::Result {
    write!(f, " mode {:o} links {}", inode.mode.get(), inode.nlink)?;
    write!(f, " uid {} gid {}", inode.uid, inode.gid)?;
    write!(f, " size {} nbytes {}", inode.size, inode.nbytes)?;
    write!(
        f,
        " generation {} transid {}",
        inode.generation, inode.transid
    )?;
    write!(f, " sequence {}", inode.sequence)?;
    if inode.rdev.get() != 0 {
        write!(f, " rdev {:#x}", inode.rdev.get())?;
    }
    if inode.flags.get() != 0 {
        write!(f, " flags {}", inode.inode_flags())?;
    }
    write!(
        f,
        " atime {} mtime {}",
        Time(&inode.atime),
        Time(&inode.mtime)
    )?;
    write!(
        f,
        " ctime {} otime {}",
        Time(&inode.ctime),
        Time(&inode.otime)
    )
}

fn dir_entry(f: &mut fmt::Formatter<'_>, entry: &DirItemRef<'_>) -> fmt::Result {
    if entry.kind == file_type::XATTR {
        write!(f, " name {} value {}", Text(entry.name), Text(entry.data))?;
        return write!(f, " transid {}", entry.transid);
    }
    write!(f, " {}", Text(entry.name))?;
    match file_type::name(entry.kind) {
        Some(name) => write!(f, " {name}")?,
        None => write!(f, " type {}", entry.kind)?,
    }
    write!(f, " -> {} transid {}", entry.location, entry.transid)
}

fn file_extent(f: &mut fmt::Formatter<'_>, extent: &FileExtent<'_>) -> fmt::Result {
    let packed = |f: &mut fmt::Formatter<'_>, raw: u8| match compression::name(raw) {
        Some("none") => Ok(()),
        Some(name) => write!(f, " {name}"),
        None => write!(f, " compression {raw}"),
    };
    let regular = |f: &mut fmt::Formatter<'_>, e: &RegularExtent| {
        write!(
            f,
            " {} of {}+{}",
            e.num_bytes, e.disk_bytenr, e.disk_num_bytes
        )?;
        write!(f, " from {} ram {}", e.offset, e.ram_bytes)?;
        packed(f, e.compression)
    };
    match extent {
        FileExtent::Inline {
            ram_bytes,
            compression,
            data,
            ..
        } => {
            write!(f, " inline {} ram {ram_bytes}", data.len())?;
            packed(f, *compression)?;
        }
        FileExtent::Regular(e) if e.is_hole() => write!(f, " hole {}", e.num_bytes)?,
        FileExtent::Regular(e) => {
            write!(f, " regular")?;
            regular(f, e)?;
        }
        FileExtent::Prealloc(e) => {
            write!(f, " prealloc")?;
            regular(f, e)?;
        }
    }
    write!(f, " generation {}", extent.generation())
}

fn root(f: &mut fmt::Formatter<'_>, root: &RootItem) -> fmt::Result {
    write!(f, " block {} level {}", root.bytenr, root.level)?;
    write!(f, " generation {} refs {}", root.generation, root.refs)?;
    if root.root_dirid.get() != 0 {
        write!(f, " top dir {}", root.root_dirid)?;
    }
    if root.flags.get() != 0 {
        write!(f, " flags {}", root.root_flags())?;
    }
    if root.last_snapshot.get() != 0 {
        write!(f, " last snapshot {}", root.last_snapshot)?;
    }
    if root.drop_progress.get() != Key::MIN {
        write!(
            f,
            " dropped to {} level {}",
            root.drop_progress.get(),
            root.drop_level
        )?;
    }
    for (name, id) in [
        ("uuid", &root.uuid),
        ("parent uuid", &root.parent_uuid),
        ("received uuid", &root.received_uuid),
    ] {
        if id != &[0; 16] {
            write!(f, " {name} {}", Uuid(id))?;
        }
    }
    if root.otransid.get() != 0 || root.ctransid.get() != 0 {
        write!(f, " made in {} at {}", root.otransid, Time(&root.otime))?;
        write!(f, " changed in {} at {}", root.ctransid, Time(&root.ctime))?;
    }
    Ok(())
}

fn extent(f: &mut fmt::Formatter<'_>, item: &ExtentItemRef<'_>) -> Printed {
    write!(
        f,
        " refs {} generation {} {}",
        item.refs, item.generation, item.flags
    )?;
    if let Some((key, level)) = item.tree_block {
        write!(f, " first key {key} level {level}")?;
    }
    for r in item.inline_refs() {
        write!(f, ";")?;
        inline_ref(f, &r?)?;
    }
    Ok(())
}

fn inline_ref(f: &mut fmt::Formatter<'_>, r: &InlineRef) -> fmt::Result {
    match *r {
        InlineRef::TreeBlock { root } => write!(f, " tree {}", Tree(root)),
        InlineRef::SharedBlock { parent } => write!(f, " parent {parent}"),
        InlineRef::ExtentData {
            root,
            objectid,
            offset,
            count,
        } => {
            write!(f, " {count} in tree {} inode {objectid}", Tree(root))?;
            write!(f, " offset {}", offset as i64)
        }
        InlineRef::SharedData { parent, count } => write!(f, " {count} in leaf {parent}"),
        InlineRef::Owner { root } => write!(f, " owner {}", Tree(root)),
    }
}

/// A chunk, beginning with a space.
pub(super) struct Chunk<'a>(pub(super) &'a ChunkItem);

impl fmt::Display for Chunk<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let chunk = self.0;
        write!(f, " length {} {}", chunk.length, chunk.flags.content())?;
        write!(f, " {}", chunk.flags.profile_name())?;
        for stripe in &chunk.stripes {
            write!(f, "; device {} at {}", stripe.devid, stripe.offset)?;
        }
        Ok(())
    }
}
