//! All findings of a check, one variant per cause.

use std::fmt;

use sapwood_base::findings;
use sapwood_ext4_format::{
    AclFormatError, BitmapKind, DirError, ExtentError, FormatError, HtreeError, IndirectError,
    OrphanError, QuotaKind, XattrError,
};
use thiserror::Error;

findings! {
    /// One problem. [`Display`](std::fmt::Display) gives one line that names the group, inode,
    /// block or name. `block` is a block of the device, `logical` a block of a file; names are
    /// escaped.
    enum Finding;
    /// A block that the device could not read.
    Error "block {block}: cannot be read: {error}" Unreadable {
        block: u64 = "Block.", error: String = "Error of the device."
    }
    /// A wrong checksum of the superblock.
    Error "{error}" SuperChecksum {
        error: FormatError = "Both checksums."
    }
    /// An impossible value in the superblock.
    Error "{error}" SuperField {
        error: FormatError = "Field and value."
    }
    /// A copy of the superblock that is damaged.
    Warning "group {group}: copy of the superblock: {error}" SuperBackupBad {
        group: u32 = "Group of the copy.", error: FormatError = "The defect."
    }
    /// A copy of the superblock with another value in a field that all copies share.
    Warning "group {group}: copy of the superblock has {field} {found}, the superblock {expected}" SuperBackupDiffers {
        group: u32 = "Group of the copy.", field: &'static str = "Field.",
        found: u64 = "In the copy.", expected: u64 = "In the superblock."
    }
    /// A copy of a group's descriptor with another location of a bitmap or table.
    Warning "block {block}: copy of the descriptor of group {group} has another {field}" DescriptorBackupDiffers {
        block: u64 = "Block of the copy.", group: u32 = "Group described.",
        field: &'static str = "Bitmap or table."
    }
    /// The superblock's number of free blocks is not the sum over the groups.
    Error "superblock: {found} free blocks, the groups have {expected}" SuperFreeBlocks {
        found: u64 = "In the superblock.", expected: u64 = "Counted."
    }
    /// The superblock's number of free inodes is not the sum over the groups.
    Error "superblock: {found} free inodes, the groups have {expected}" SuperFreeInodes {
        found: u64 = "In the superblock.", expected: u64 = "Counted."
    }
    /// The file system was not unmounted and has no journal.
    Warning "superblock: not unmounted cleanly" NotClean {}
    /// An earlier mount recorded errors.
    Warning "superblock: earlier mounts recorded {count} errors" ErrorsNoted {
        count: u32 = "Number of errors; 0 if only the state records that there were some."
    }
    /// The journal needs recovery. The check continues with the recovered state.
    Warning "journal: needs recovery" NeedsRecovery {}
    /// Compatible features that Sapwood does not know.
    Warning "unknown compatible features: {names}" UnknownFeatures {
        names: String = "Their names."
    }
    /// A damaged block of multiple mount protection.
    Error "block {block}: multiple mount protection: {error}" MmpBad {
        block: u64 = "Block.", error: FormatError = "The defect."
    }
    /// Multiple mount protection shows the file system open elsewhere.
    Warning "block {block}: multiple mount protection: in use, with sequence number {sequence:#x}" MmpInUse {
        block: u64 = "Block.", sequence: u32 = "Its sequence number."
    }
    /// A group descriptor that the validator refuses.
    Error "{error}" GroupBad {
        group: u32 = "Group.", error: FormatError = "The defect."
    }
    /// A bitmap or table that overlaps other metadata.
    Error "group {group}: {what} overlaps other metadata at block {block}" GroupOverlap {
        group: u32 = "Group.", what: &'static str = "Bitmap or table.", block: u64 = "First such block."
    }
    /// A wrong checksum of a bitmap.
    Error "{error}" BitmapChecksum {
        group: u32 = "Group.", kind: BitmapKind = "Which bitmap.", error: FormatError = "Both checksums."
    }
    /// Bits after the last block or inode of a group are not set.
    Error "group {group}: {kind}: padding is not set" BitmapPadding {
        group: u32 = "Group.", kind: BitmapKind = "Which bitmap."
    }
    /// The descriptor's number of free blocks (clusters) differs from the group's.
    Error "group {group}: {found} free blocks, counted {expected}" GroupFreeBlocks {
        group: u32 = "Group.", found: u32 = "In the descriptor.", expected: u32 = "Counted."
    }
    /// The descriptor's number of free inodes differs from the group's.
    Error "group {group}: {found} free inodes, counted {expected}" GroupFreeInodes {
        group: u32 = "Group.", found: u32 = "In the descriptor.", expected: u32 = "Counted."
    }
    /// The descriptor's number of directories differs from the group's.
    Error "group {group}: {found} directories, counted {expected}" GroupDirectories {
        group: u32 = "Group.", found: u32 = "In the descriptor.", expected: u32 = "Counted."
    }
    /// Blocks in use that are free in the bitmap.
    Error "group {group}: {count} blocks from block {block} on are in use, but free in the bitmap" BlocksNotMarked {
        group: u32 = "Group.", block: u64 = "First block.", count: u64 = "Number of blocks in a row."
    }
    /// Unused blocks that are allocated in the bitmap.
    Error "group {group}: {count} blocks from block {block} on are allocated in the bitmap, but not in use" BlocksNotUsed {
        group: u32 = "Group.", block: u64 = "First block.", count: u64 = "Number of blocks in a row."
    }
    /// Inodes in use that are free in the bitmap.
    Error "group {group}: {count} inodes from inode {ino} on are in use, but free in the bitmap" InodesNotMarked {
        group: u32 = "Group.", ino: u32 = "First inode.", count: u32 = "Number of inodes in a row."
    }
    /// Unused inodes that are allocated in the bitmap.
    Error "group {group}: {count} inodes from inode {ino} on are allocated in the bitmap, but not in use" InodesNotUsed {
        group: u32 = "Group.", ino: u32 = "First inode.", count: u32 = "Number of inodes in a row."
    }
    /// An inode in use in the part of the table that the descriptor declares never used.
    Error "group {group}: inode {ino} is in use, but the descriptor declares its part of the table never used" InodeInUnused {
        group: u32 = "Group.", ino: u32 = "Inode."
    }
    /// A wrong checksum of an inode.
    Error "{error}" InodeChecksum {
        ino: u32 = "Inode.", error: FormatError = "Both checksums."
    }
    /// An inode that the validator refuses. Its contents were not checked.
    Error "{error}" InodeBad {
        ino: u32 = "Inode.", error: FormatError = "The defect."
    }
    /// Flags or fields of an inode that contradict each other.
    Error "inode {ino}: {why}" InodeField {
        ino: u32 = "Inode.", why: &'static str = "The defect."
    }
    /// An inode in use with a time of deletion.
    Error "inode {ino}: in use, with a time of deletion" DeletedInUse {
        ino: u32 = "Inode."
    }
    /// An inode without links that was not deleted: without a time of deletion, or with the number
    /// of an inode in its place, as in a list of orphans.
    Error "inode {ino}: no links and no time of deletion" NotDeleted {
        ino: u32 = "Inode."
    }
    /// The inode's sector count differs from its blocks.
    Error "inode {ino}: {found} sectors, counted {expected}" InodeSectors {
        ino: u32 = "Inode.", found: u64 = "In the inode, of 512 bytes.", expected: u64 = "Counted."
    }
    /// A size that contradicts the mapped blocks.
    Error "inode {ino}: size {size}, but its blocks end after {blocks}" InodeSize {
        ino: u32 = "Inode.", size: u64 = "Bytes.", blocks: u64 = "One past the last mapped block."
    }
    /// A damaged node of an extent tree. Blocks below it were not checked.
    Error "inode {ino}: extent node at block {block}: {error}" ExtentNodeBad {
        ino: u32 = "Inode.", block: u64 = "Block of the node; 0: in the inode.", error: ExtentError = "The defect."
    }
    /// A node of an extent tree whose first block differs from the parent's entry.
    Error "inode {ino}: extent node at block {block} begins at {found}, but at {expected} in its parent" ExtentNodeStart {
        ino: u32 = "Inode.", block: u64 = "Block of the node.", found: u32 = "First logical block.",
        expected: u32 = "In the parent."
    }
    /// An extent whose offset in its cluster differs from the offset in the file.
    Error "inode {ino}: extent of {logical} at block {block} is not aligned to clusters" ExtentCluster {
        ino: u32 = "Inode.", logical: u32 = "First logical block.", block: u64 = "First block."
    }
    /// A pointer of a block map that leads out of the file system.
    Error "inode {ino}: block map at block {block}: {error}" PointerBad {
        ino: u32 = "Inode.", block: u64 = "Block of the pointer; 0: in the inode.", error: IndirectError = "The defect."
    }
    /// Blocks that several inodes use, or one inode twice.
    Error "inode {ino}: {count} blocks from block {block} on have another user" BlocksShared {
        ino: u32 = "One of the users.", block: u64 = "First block.", count: u64 = "Number of blocks in a row."
    }
    /// An inode uses a superblock, descriptors, bitmaps or inode tables.
    Error "inode {ino}: {count} blocks from block {block} on are metadata of groups" BlocksOfGroups {
        ino: u32 = "Inode.", block: u64 = "First block.", count: u64 = "Number of blocks in a row."
    }
    /// A symbolic link whose target does not match its size.
    Error "inode {ino}: symbolic link: {why}" SymlinkBad {
        ino: u32 = "Inode.", why: &'static str = "The defect."
    }
    /// Inline data of another length than the size, or without room in the inode.
    Error "inode {ino}: {found} bytes of inline data, size {size}" InlineSize {
        ino: u32 = "Inode.", found: u64 = "Bytes of inline data.", size: u64 = "In the inode."
    }
    /// A reserved inode with wrong contents.
    Error "inode {ino}: reserved: {why}" ReservedInode {
        ino: u32 = "Inode.", why: &'static str = "The defect."
    }
    /// A journal that cannot be used.
    Error "journal: {why}" JournalBad {
        why: String = "The defect."
    }
    /// A resize inode that lacks reserved blocks of the descriptors, or has other blocks.
    Error "resize inode: {why}, at block {block}" ResizeBad {
        block: u64 = "Missing block, or block with the wrong pointer.", why: &'static str = "The defect."
    }
    /// A quota file without a valid header.
    Error "inode {ino}: not a quota file" QuotaBad {
        ino: u32 = "Inode."
    }
    /// A damaged tree or a damaged block of entries of a quota file. Its usage was not compared.
    Error "inode {ino}: quota file: block {block}: {why}" QuotaTree {
        ino: u32 = "Inode.", block: u32 = "Block of the file, of 1 KiB.", why: &'static str = "The defect."
    }
    /// Usage of an owner in a quota file that differs from the inodes.
    Error "inode {ino}: {kind} quota of {id}: {found}, counted {expected}" QuotaUsage {
        ino: u32 = "Inode of the file.", kind: QuotaKind = "Kind of the owner.", id: u32 = "Owner.",
        found: QuotaSum = "In the file.", expected: QuotaSum = "Counted."
    }
    /// An owner of inodes without an entry in a quota file.
    Error "inode {ino}: {kind} quota of {id}: no entry, counted {expected}" QuotaMissing {
        ino: u32 = "Inode of the file.", kind: QuotaKind = "Kind of the owner.", id: u32 = "Owner.",
        expected: QuotaSum = "Counted."
    }
    /// Damaged attributes in an inode.
    Error "inode {ino}: {error}" XattrBad {
        ino: u32 = "Inode.", error: XattrError = "The defect."
    }
    /// A damaged attribute block.
    Error "inode {ino}: attribute block {block}: {error}" XattrBlockBad {
        ino: u32 = "First inode that uses the block.", block: u64 = "Block.", error: XattrError = "The defect."
    }
    /// A wrong hash of an attribute block.
    Error "attribute block {block}: hash {found:#010x}, expected {expected:#010x}" XattrBlockHash {
        block: u64 = "Block.", found: u32 = "In its header.", expected: u32 = "Of its entries."
    }
    /// An attribute block whose reference count is not the number of its users.
    Error "attribute block {block}: {found} references, counted {expected}" XattrRefcount {
        block: u64 = "Block.", found: u32 = "In its header.", expected: u64 = "Counted."
    }
    /// An access control list that does not parse.
    Error "inode {ino}: {error}" AclBad {
        ino: u32 = "Inode.", error: AclFormatError = "The defect."
    }
    /// An attribute value in an inode that is not for values, or that has another value.
    Error "inode {ino}: attribute value in inode {value}: {why}" XattrValueBad {
        ino: u32 = "Inode with the attribute.", value: u32 = "Inode with the value.", why: &'static str = "The defect."
    }
    /// A value inode whose reference count is not the number of its attributes.
    Error "inode {ino}: value of an attribute with {found} references, counted {expected}" XattrValueRefcount {
        ino: u32 = "Inode with the value.", found: u64 = "In the inode.", expected: u64 = "Counted."
    }
    /// A directory with a hole.
    Error "directory {dir}: block {logical} is a hole" DirHole {
        dir: u32 = "Directory.", logical: u32 = "Block."
    }
    /// A damaged directory block.
    Error "directory {dir} block {logical}: {error}" DirBlockBad {
        dir: u32 = "Directory.", logical: u32 = "Block; 0 for entries in the inode.", error: DirError = "The defect."
    }
    /// A missing, misplaced or repeated `.` or `..`.
    Error "directory {dir} block {logical}: {why}" DirDots {
        dir: u32 = "Directory.", logical: u32 = "Block.", why: &'static str = "The defect."
    }
    /// A `..` that leads to another directory than the one with the entry.
    Error "directory {dir}: `..` leads to {found}, its entry is in {expected}" DotDotWrong {
        dir: u32 = "Directory.", found: u32 = "Inode in `..`.", expected: u32 = "Directory with its entry."
    }
    /// A repeated name in a directory.
    Error "directory {dir}: {name} appears twice" NameTwice {
        dir: u32 = "Directory.", name: String = "Name."
    }
    /// A name that leads to an unused inode.
    Error "directory {dir}: {name} leads to inode {ino}, which is not in use" EntryDangling {
        dir: u32 = "Directory.", name: String = "Name.", ino: u32 = "Inode."
    }
    /// A name that leads to a reserved inode.
    Error "directory {dir}: {name} leads to the reserved inode {ino}" EntryReserved {
        dir: u32 = "Directory.", name: String = "Name.", ino: u32 = "Inode."
    }
    /// A name with another file type than its inode.
    Error "directory {dir}: {name} has file type {found}, inode {ino} has {expected}" EntryType {
        dir: u32 = "Directory.", name: String = "Name.", ino: u32 = "Inode.", found: u8 = "Of the entry.",
        expected: u8 = "Of the inode."
    }
    /// An impossible name in an encrypted directory.
    Error "directory {dir}: {name} of inode {ino}: {why}" EntryEncryption {
        dir: u32 = "Directory.", name: String = "Name.", ino: u32 = "Inode.", why: &'static str = "The defect."
    }
    /// A damaged node of a hash tree.
    Error "directory {dir} block {logical}: {error}" HtreeBad {
        dir: u32 = "Directory.", logical: u32 = "Block.", error: HtreeError = "The defect."
    }
    /// A hash version that is unknown, or wrong for the directory.
    Error "directory {dir}: impossible hash version {version}" HtreeVersion {
        dir: u32 = "Directory.", version: u8 = "Version in the root of the tree."
    }
    /// A directory block to which the hash tree leads twice.
    Error "directory {dir}: the hash tree leads to block {logical} twice" HtreeTwice {
        dir: u32 = "Directory.", logical: u32 = "Block."
    }
    /// A directory block to which the hash tree does not lead.
    Error "directory {dir}: the hash tree does not lead to block {logical}" HtreeForgotten {
        dir: u32 = "Directory.", logical: u32 = "Block."
    }
    /// An inner node with a hash outside of its range.
    Error "directory {dir} block {logical}: hash {hash:#010x} is outside of the range in the parent" HtreeRange {
        dir: u32 = "Directory.", logical: u32 = "Block of the node.", hash: u32 = "The hash."
    }
    /// A name in another block than a lookup by its hash searches.
    Error "directory {dir} block {logical}: {name} with hash {hash:#010x} belongs in another block" HtreeHash {
        dir: u32 = "Directory.", logical: u32 = "Block.", name: String = "Name.", hash: u32 = "Its hash."
    }
    /// An inode in use without a name.
    Error "inode {ino}: in use, but in no directory" Unattached {
        ino: u32 = "Inode."
    }
    /// A directory with several names.
    Error "directory {ino}: has {names} names" DirectoryNames {
        ino: u32 = "Directory.", names: u32 = "Names."
    }
    /// A directory that no path from the root leads to.
    Error "directory {ino}: is below itself" DirectoryLoop {
        ino: u32 = "A directory in the loop, or below it."
    }
    /// A link count that is not the number of names.
    Error "inode {ino}: {found} links, counted {expected}" LinkCount {
        ino: u32 = "Inode.", found: u32 = "In the inode.", expected: u64 = "Counted."
    }
    /// An orphan in a file system that was unmounted.
    Error "inode {ino}: an orphan, in a file system that is clean" OrphanOnClean {
        ino: u32 = "Inode."
    }
    /// A damaged list of orphans.
    Error "orphan list: inode {ino}: {why}" OrphanListBad {
        ino: u32 = "Inode.", why: &'static str = "The defect."
    }
    /// A damaged block of the orphan file.
    Error "orphan file: block {block}: {error}" OrphanFileBad {
        block: u64 = "Block.", error: OrphanError = "The defect."
    }
}

/// Usage of an owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaSum {
    /// Bytes of blocks.
    pub space: u64,
    /// Inodes.
    pub inodes: u64,
}

impl fmt::Display for QuotaSum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let noun = if self.inodes == 1 { "inode" } else { "inodes" };
        write!(f, "{} bytes and {} {noun}", self.space, self.inodes)
    }
}

/// A name as findings show it: ASCII with escapes.
pub(super) fn shown(name: &[u8]) -> String {
    name.escape_ascii().to_string()
}

#[cfg(test)]
mod tests {
    use sapwood_base::finding::Severity;

    use super::*;

    #[test]
    fn every_finding_is_one_line_and_has_a_code() {
        let finding = Finding::NameTwice {
            dir: 2,
            name: shown(b"a\nb"),
        };
        let line = "directory 2: a\\nb appears twice";
        assert_eq!(finding.to_string(), line);
        assert_eq!(
            (finding.code(), finding.severity()),
            ("NameTwice", Severity::Error)
        );
        assert!(Finding::CODES.contains(&finding.code()));
    }
}
