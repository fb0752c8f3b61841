//! All findings of a check, one variant per cause.

use sapwood_base::findings;
use sapwood_ext4_format::{
    AclFormatError, BitmapKind, DirError, ExtentError, FormatError, HtreeError, IndirectError,
    OrphanError, XattrError,
};
use thiserror::Error;

findings! {
    /// One problem. [`Display`](std::fmt::Display) gives one line that names the group, inode,
    /// block or name. `block` is a block of the device, `logical` a block of a file; names are
    /// escaped.
    enum Finding;
    /// A block that the device did not give.
    Error "block {block}: cannot be read: {error}" Unreadable {
        block: u64 = "Block.", error: String = "What the device said."
    }
    /// The superblock's checksum is another.
    Error "{error}" SuperChecksum {
        error: FormatError = "Both checksums."
    }
    /// A field of the superblock that cannot be so.
    Error "{error}" SuperField {
        error: FormatError = "Field and value."
    }
    /// A copy of the superblock that is none, or has another checksum.
    Warning "group {group}: copy of the superblock: {error}" SuperBackupBad {
        group: u32 = "Group of the copy.", error: FormatError = "What is wrong."
    }
    /// A copy of the superblock that differs in a field that must agree.
    Warning "group {group}: copy of the superblock has {field} {found}, the superblock {expected}" SuperBackupDiffers {
        group: u32 = "Group of the copy.", field: &'static str = "Field.",
        found: u64 = "In the copy.", expected: u64 = "In the superblock."
    }
    /// A copy of a group's descriptor names other places.
    Warning "block {block}: copy of the descriptor of group {group} names another {field}" DescriptorBackupDiffers {
        block: u64 = "Block of the copy.", group: u32 = "Group described.",
        field: &'static str = "Which place."
    }
    /// Free blocks in the superblock are not the sum over the groups.
    Error "superblock: {found} free blocks, the groups have {expected}" SuperFreeBlocks {
        found: u64 = "In the superblock.", expected: u64 = "Counted."
    }
    /// Free inodes in the superblock are not the sum over the groups.
    Error "superblock: {found} free inodes, the groups have {expected}" SuperFreeInodes {
        found: u64 = "In the superblock.", expected: u64 = "Counted."
    }
    /// The file system was not unmounted, and there is no journal that would help.
    Warning "superblock: not unmounted cleanly" NotClean {}
    /// An earlier mount met errors in this file system and recorded it.
    Warning "superblock: {count} errors were noted by earlier users" ErrorsNoted {
        count: u32 = "How many; 0 if only the state says so."
    }
    /// The journal needs recovery. The check continues as after one.
    Warning "journal: needs recovery" NeedsRecovery {}
    /// Compatible features that are not known here.
    Warning "unknown compatible features: {names}" UnknownFeatures {
        names: String = "Their names."
    }
    /// The block against several mounts is damaged.
    Error "block {block}: multiple mount protection: {error}" MmpBad {
        block: u64 = "Block.", error: FormatError = "What is wrong."
    }
    /// Multiple mount protection shows the file system open elsewhere.
    Warning "block {block}: multiple mount protection: in use, sequence {sequence:#x}" MmpInUse {
        block: u64 = "Block.", sequence: u32 = "What it says."
    }
    /// A group descriptor that the validator refuses.
    Error "{error}" GroupBad {
        group: u32 = "Group.", error: FormatError = "What is wrong."
    }
    /// A bitmap or table lies over another group's.
    Error "group {group}: {what} at block {block} lies over other metadata" GroupOverlap {
        group: u32 = "Group.", what: &'static str = "Bitmap or table.", block: u64 = "First such block."
    }
    /// A bitmap's checksum is another.
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
    /// Blocks that are used and free in the bitmap.
    Error "group {group}: {count} blocks from {block} on are in use, but free in the bitmap" BlocksNotMarked {
        group: u32 = "Group.", block: u64 = "First block.", count: u64 = "Blocks side by side."
    }
    /// Blocks that nothing uses and that are taken in the bitmap.
    Error "group {group}: {count} blocks from {block} on are taken in the bitmap, but not in use" BlocksNotUsed {
        group: u32 = "Group.", block: u64 = "First block.", count: u64 = "Blocks side by side."
    }
    /// Inodes that are used and free in the bitmap.
    Error "group {group}: {count} inodes from {ino} on are in use, but free in the bitmap" InodesNotMarked {
        group: u32 = "Group.", ino: u32 = "First inode.", count: u32 = "Inodes side by side."
    }
    /// Inodes that are not used and taken in the bitmap.
    Error "group {group}: {count} inodes from {ino} on are taken in the bitmap, but not in use" InodesNotUsed {
        group: u32 = "Group.", ino: u32 = "First inode.", count: u32 = "Inodes side by side."
    }
    /// An inode in use in the part of the table that was never used according to the descriptor.
    Error "group {group}: inode {ino} is in use in the part of the table that never was" InodeInUnused {
        group: u32 = "Group.", ino: u32 = "Inode."
    }
    /// An inode's checksum is another.
    Error "{error}" InodeChecksum {
        ino: u32 = "Inode.", error: FormatError = "Both checksums."
    }
    /// An inode that the validator refuses. Its contents were not checked.
    Error "{error}" InodeBad {
        ino: u32 = "Inode.", error: FormatError = "What is wrong."
    }
    /// Flags or fields of an inode that do not go together.
    Error "inode {ino}: {why}" InodeField {
        ino: u32 = "Inode.", why: &'static str = "What is wrong."
    }
    /// An inode in use with a time of deletion.
    Error "inode {ino}: in use, with a time of deletion" DeletedInUse {
        ino: u32 = "Inode."
    }
    /// An inode without links that was not deleted.
    Error "inode {ino}: no links and no time of deletion" NotDeleted {
        ino: u32 = "Inode."
    }
    /// The inode's sector count differs from its blocks.
    Error "inode {ino}: {found} sectors, counted {expected}" InodeSectors {
        ino: u32 = "Inode.", found: u64 = "In the inode, of 512 bytes.", expected: u64 = "Counted."
    }
    /// A size that does not go with the blocks.
    Error "inode {ino}: size {size}, {blocks} blocks are mapped" InodeSize {
        ino: u32 = "Inode.", size: u64 = "Bytes.", blocks: u64 = "One past the last mapped block."
    }
    /// A damaged node of an extent tree. Blocks below it were not checked.
    Error "inode {ino}: extent node at block {block}: {error}" ExtentNodeBad {
        ino: u32 = "Inode.", block: u64 = "Block of the node; 0: in the inode.", error: ExtentError = "What is wrong."
    }
    /// A node of an extent tree whose first block differs from the parent's entry.
    Error "inode {ino}: extent node at block {block} begins at {found}, its parent says {expected}" ExtentNodeStart {
        ino: u32 = "Inode.", block: u64 = "Block of the node.", found: u32 = "First logical block.",
        expected: u32 = "In the parent."
    }
    /// An extent that lies otherwise in its clusters than the file.
    Error "inode {ino}: extent of {logical} at block {block} is not aligned to clusters" ExtentCluster {
        ino: u32 = "Inode.", logical: u32 = "First logical block.", block: u64 = "First block."
    }
    /// A pointer of a block map leads out of the file system.
    Error "inode {ino}: block map at block {block}: {error}" PointerBad {
        ino: u32 = "Inode.", block: u64 = "Block of the pointer; 0: in the inode.", error: IndirectError = "What is wrong."
    }
    /// Blocks that several inodes use, or one twice.
    Error "inode {ino}: {count} blocks from {block} on are used elsewhere too" BlocksShared {
        ino: u32 = "One of the users.", block: u64 = "First block.", count: u64 = "Blocks side by side."
    }
    /// An inode uses a superblock, descriptors, bitmaps or inode tables.
    Error "inode {ino}: {count} blocks from {block} on are metadata of groups" BlocksOfGroups {
        ino: u32 = "Inode.", block: u64 = "First block.", count: u64 = "Blocks side by side."
    }
    /// A symbolic link whose target does not match its size.
    Error "inode {ino}: symbolic link: {why}" SymlinkBad {
        ino: u32 = "Inode.", why: &'static str = "What is wrong."
    }
    /// Data in an inode that is not as long as its size, or has no place.
    Error "inode {ino}: {found} bytes in the inode, size {size}" InlineSize {
        ino: u32 = "Inode.", found: u64 = "Bytes there.", size: u64 = "In the inode."
    }
    /// A reserved inode with wrong contents.
    Error "inode {ino}: reserved: {why}" ReservedInode {
        ino: u32 = "Inode.", why: &'static str = "What is wrong."
    }
    /// The journal cannot be used.
    Error "journal: {why}" JournalBad {
        why: String = "What is wrong."
    }
    /// The resize inode lacks blocks that are reserved for descriptors, or has others.
    Error "resize inode: {why}, at block {block}" ResizeBad {
        block: u64 = "Block that names it, or is missing.", why: &'static str = "What is wrong."
    }
    /// A quota file without its head.
    Error "inode {ino}: no quota file" QuotaBad {
        ino: u32 = "Inode."
    }
    /// Attributes of an inode, in the inode.
    Error "inode {ino}: {error}" XattrBad {
        ino: u32 = "Inode.", error: XattrError = "What is wrong."
    }
    /// A block of attributes.
    Error "inode {ino}: attribute block {block}: {error}" XattrBlockBad {
        ino: u32 = "First inode that names it.", block: u64 = "Block.", error: XattrError = "What is wrong."
    }
    /// The hash of a block of attributes is another.
    Error "attribute block {block}: hash {found:#010x}, expected {expected:#010x}" XattrBlockHash {
        block: u64 = "Block.", found: u32 = "In its head.", expected: u32 = "Of its entries."
    }
    /// A block of attributes counts other inodes than use it.
    Error "attribute block {block}: {found} references, counted {expected}" XattrRefcount {
        block: u64 = "Block.", found: u32 = "In its head.", expected: u64 = "Counted."
    }
    /// An access control list that does not parse.
    Error "inode {ino}: {error}" AclBad {
        ino: u32 = "Inode.", error: AclFormatError = "What is wrong."
    }
    /// An attribute's value in an inode that is none of this kind, or another value.
    Error "inode {ino}: attribute value in inode {value}: {why}" XattrValueBad {
        ino: u32 = "Inode with the attribute.", value: u32 = "Inode with the value.", why: &'static str = "What is wrong."
    }
    /// An inode with an attribute's value counts other attributes than name it.
    Error "inode {ino}: attribute value with {found} references, counted {expected}" XattrValueRefcount {
        ino: u32 = "Inode with the value.", found: u64 = "In it.", expected: u64 = "Counted."
    }
    /// A directory without a block in its middle.
    Error "directory {dir}: block {logical} is a hole" DirHole {
        dir: u32 = "Directory.", logical: u32 = "Block."
    }
    /// A block of a directory that is damaged.
    Error "directory {dir} block {logical}: {error}" DirBlockBad {
        dir: u32 = "Directory.", logical: u32 = "Block; 0 for entries in the inode.", error: DirError = "What is wrong."
    }
    /// `.` or `..` is missing, not where it belongs, or there again.
    Error "directory {dir} block {logical}: {why}" DirDots {
        dir: u32 = "Directory.", logical: u32 = "Block.", why: &'static str = "What is wrong."
    }
    /// `..` names another directory than the one with the name.
    Error "directory {dir}: `..` is {found}, its name is in {expected}" DotDotWrong {
        dir: u32 = "Directory.", found: u32 = "What it says.", expected: u32 = "Where its name is."
    }
    /// A name twice in a directory.
    Error "directory {dir}: {name} stands there twice" NameTwice {
        dir: u32 = "Directory.", name: String = "Name."
    }
    /// A name for an inode that is not in use.
    Error "directory {dir}: {name} leads to inode {ino}, which is not in use" EntryDangling {
        dir: u32 = "Directory.", name: String = "Name.", ino: u32 = "Inode."
    }
    /// A name for an inode of the file system's own.
    Error "directory {dir}: {name} leads to inode {ino}, which may have no name" EntryReserved {
        dir: u32 = "Directory.", name: String = "Name.", ino: u32 = "Inode."
    }
    /// A name with another file type than its inode.
    Error "directory {dir}: {name} has file type {found}, inode {ino} has {expected}" EntryType {
        dir: u32 = "Directory.", name: String = "Name.", ino: u32 = "Inode.", found: u8 = "Of the entry.",
        expected: u8 = "Of the inode."
    }
    /// A name in an encrypted directory that cannot be one.
    Error "directory {dir}: {name} of inode {ino}: {why}" EntryEncryption {
        dir: u32 = "Directory.", name: String = "Name.", ino: u32 = "Inode.", why: &'static str = "What is wrong."
    }
    /// A node of a hash tree that is damaged.
    Error "directory {dir} block {logical}: {error}" HtreeBad {
        dir: u32 = "Directory.", logical: u32 = "Block.", error: HtreeError = "What is wrong."
    }
    /// A kind of hash that is not known, or does not go with the directory.
    Error "directory {dir}: hash version {version} cannot be" HtreeVersion {
        dir: u32 = "Directory.", version: u8 = "In the root."
    }
    /// A block of a directory that its hash tree names twice.
    Error "directory {dir}: the hash tree names block {logical} twice" HtreeTwice {
        dir: u32 = "Directory.", logical: u32 = "Block."
    }
    /// A block of a directory that its hash tree does not name.
    Error "directory {dir}: the hash tree does not name block {logical}" HtreeForgotten {
        dir: u32 = "Directory.", logical: u32 = "Block."
    }
    /// An inner node with hashes outside of its range in the parent.
    Error "directory {dir} block {logical}: hash {hash:#010x} is outside of what its parent says" HtreeRange {
        dir: u32 = "Directory.", logical: u32 = "Block of the node.", hash: u32 = "The hash."
    }
    /// A name that a lookup by its hash does not find.
    Error "directory {dir} block {logical}: {name} with hash {hash:#010x} belongs into another block" HtreeHash {
        dir: u32 = "Directory.", logical: u32 = "Block.", name: String = "Name.", hash: u32 = "Its hash."
    }
    /// An inode in use without a name.
    Error "inode {ino}: in use, but no directory has a name of it" Unattached {
        ino: u32 = "Inode."
    }
    /// A directory with several names.
    Error "directory {ino}: has {names} names" DirectoryNames {
        ino: u32 = "Directory.", names: u32 = "Names."
    }
    /// A directory that no path from the root leads to.
    Error "directory {ino}: is below itself" DirectoryLoop {
        ino: u32 = "A directory of the loop, or one below it."
    }
    /// A link count that is not the number of names.
    Error "inode {ino}: {found} links, counted {expected}" LinkCount {
        ino: u32 = "Inode.", found: u32 = "In the inode.", expected: u64 = "Counted."
    }
    /// An orphan in a file system that was unmounted.
    Error "inode {ino}: an orphan, in a file system that is clean" OrphanOnClean {
        ino: u32 = "Inode."
    }
    /// The list of orphans is damaged.
    Error "orphan list: inode {ino}: {why}" OrphanListBad {
        ino: u32 = "Inode.", why: &'static str = "What is wrong."
    }
    /// A block of the orphan file is damaged.
    Error "orphan file: block {block}: {error}" OrphanFileBad {
        block: u64 = "Block.", error: OrphanError = "What is wrong."
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
        let line = "directory 2: a\\nb stands there twice";
        assert_eq!(finding.to_string(), line);
        assert_eq!(
            (finding.code(), finding.severity()),
            ("NameTwice", Severity::Error)
        );
        assert!(Finding::CODES.contains(&finding.code()));
    }
}
