//! All findings of a check, one variant per cause.

use sapwood_base::findings;
use sapwood_btrfs_format::{BlockError, BlockGroupFlags, Checksum, InlineRef, Key, SuperError};
use thiserror::Error;

/// Reasons why a copy of a block is unusable.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BlockFault {
    /// The device could not read it.
    #[error("{0}")]
    Read(String),
    /// The validator refused it.
    #[error("{0}")]
    Invalid(#[from] BlockError),
    /// No chunk maps this address, or the range crosses the end of one.
    #[error("block {logical}: no chunk maps this address")]
    Unmapped {
        /// Address.
        logical: u64,
    },
}

findings! {
    /// One problem. [`Display`](std::fmt::Display) gives one line that names the block, key or
    /// inode. Addresses are logical unless the name says `physical`; `tree` is a tree id;
    /// lengths are bytes.
    enum Finding;
    /// A superblock copy that the validator refuses.
    Error "{device}: superblock at {offset}: {error}" SuperBad {
        device: String = "Device name.", offset: u64 = "Byte offset of the copy.",
        error: SuperError = "What is wrong."
    }
    /// A superblock copy that cannot be read.
    Error "{device}: superblock at {offset} cannot be read: {error}" SuperUnreadable {
        device: String = "Device name.", offset: u64 = "Byte offset of the copy.",
        error: String = "What the device said."
    }
    /// A superblock copy of another commit than the newest one.
    Warning "{device}: superblock at {offset} has generation {found}, the newest {newest}" SuperStale {
        device: String = "Device name.", offset: u64 = "Byte offset of the copy.",
        found: u64 = "Its generation.", newest: u64 = "Newest generation."
    }
    /// Two superblock copies of one commit that differ.
    Error "{device}: superblock at {offset} differs from the first from byte {at} on" SuperDiffers {
        device: String = "Device name.", offset: u64 = "Byte offset of the copy.",
        at: usize = "First byte that differs."
    }
    /// The newest backup root differs from the superblock.
    Warning "backup roots: {field} is {found}, the superblock says {expected}" BackupRoot {
        field: &'static str = "Field.", found: u64 = "In the backup.",
        expected: u64 = "In the superblock."
    }
    /// No backup of this commit's roots.
    Warning "backup roots: none of generation {generation}" BackupMissing {
        generation: u64 = "Generation of the superblock."
    }
    /// A superblock of a metadata dump where such a dump has none: only the first is restored.
    Warning "{device}: no superblock at {offset}; the image is a restored dump of metadata" SuperOfDump {
        device: String = "Device name.", offset: u64 = "Byte offset of the copy."
    }
    /// A field of the superblock with a wrong value that no other value determines.
    Error "superblock: {field} is {found}" SuperField {
        field: &'static str = "Field.", found: u64 = "Value."
    }
    /// `total_bytes` is not the sum of the devices.
    Error "superblock: total bytes {found}, the devices have {expected}" SuperTotalBytes {
        found: u64 = "In the superblock.", expected: u64 = "Sum of the device items."
    }
    /// `bytes_used` is not the sum of the extents.
    Error "superblock: bytes used {found}, the extents have {expected}" SuperBytesUsed {
        found: u64 = "In the superblock.", expected: u64 = "Sum of the extents."
    }
    /// `num_devices` is not the number of device items.
    Error "superblock: {found} devices, the chunk tree has {expected}" SuperDevices {
        found: u64 = "In the superblock.", expected: u64 = "Device items."
    }
    /// The device item in the superblock differs from the chunk tree's.
    Error "device {devid}: {field} is {found} in the superblock, {expected} in the chunk tree" DeviceItem {
        devid: u64 = "Device id.", field: &'static str = "Field.", found: u64 = "In the superblock.",
        expected: u64 = "In the chunk tree."
    }
    /// The device is smaller than the file system on it.
    Error "device {devid}: {size} bytes, the file system has {total_bytes} on it" DeviceSize {
        devid: u64 = "Device id.", size: u64 = "Size of the device.",
        total_bytes: u64 = "Size in the device item."
    }
    /// `bytes_used` of a device is not the sum of its extents.
    Error "device {devid}: {found} bytes used, its extents have {expected}" DeviceBytesUsed {
        devid: u64 = "Device id.", found: u64 = "In the device item.",
        expected: u64 = "Sum of the device extents."
    }
    /// One copy of a tree block is bad, another one is good.
    Error "tree {tree}: copy {copy} at {physical} of {device} is bad: {fault}" BlockCopy {
        tree: u64 = "Tree.", logical: u64 = "Address.", copy: usize = "Number of the copy.",
        device: String = "Device name.", physical: u64 = "Byte offset on the device.",
        fault: BlockFault = "What is wrong."
    }
    /// Copies of a tree block that are good and yet differ.
    Error "tree {tree}: copy {copy} of block {logical} differs from the first" BlockCopiesDiffer {
        tree: u64 = "Tree.", logical: u64 = "Address.", copy: usize = "Number of the copy."
    }
    /// No copy of a tree block is valid. Blocks below it were not checked.
    Error "tree {tree}: {fault}" BlockBad {
        tree: u64 = "Tree.", logical: u64 = "Address.", fault: BlockFault = "What is wrong."
    }
    /// Two pointers lead to one block whose extent has one owner.
    Error "tree {tree}: block {logical} is reached a second time, not being shared" BlockTwice {
        tree: u64 = "Tree.", logical: u64 = "Address."
    }
    /// The last key below a pointer is not smaller than the next pointer's key.
    Error "tree {tree} block {logical} slot {slot}: key {last} below it, the next slot begins with {next}" KeyOrder {
        tree: u64 = "Tree.", logical: u64 = "Address of the node.", slot: usize = "Slot.",
        last: Key = "Last key below the slot.", next: Key = "Key of the next slot."
    }
    /// An item of a kind that the tree does not have.
    Error "tree {tree} block {logical}: item {key} does not belong there" UnexpectedItem {
        tree: u64 = "Tree.", logical: u64 = "Address of the leaf.", key: Key = "Key."
    }
    /// A system chunk that the superblock does not have.
    Error "superblock: system chunk {logical} is missing" SysChunkMissing {
        logical: u64 = "Address."
    }
    /// A system chunk in the superblock that the chunk tree lacks or describes differently.
    Error "superblock: system chunk {logical} is not in the chunk tree" SysChunkStray {
        logical: u64 = "Address."
    }
    /// Two chunks that overlap.
    Error "chunk {logical} begins before its predecessor ends, at {end}" ChunkOverlap {
        logical: u64 = "Address.", end: u64 = "End of the chunk before."
    }
    /// A stripe of a chunk on a device without a device item.
    Error "chunk {logical}: device {devid} is not there" ChunkDevice {
        logical: u64 = "Address.", devid: u64 = "Device id."
    }
    /// A stripe of a chunk that names a device by another UUID than the device's item has.
    Error "chunk {logical}: another UUID for device {devid} than in the device's item" ChunkDeviceUuid {
        logical: u64 = "Address.", devid: u64 = "Device id."
    }
    /// A stripe of a chunk without a device extent.
    Error "chunk {logical}: no device extent at {physical} of device {devid}" DevExtentMissing {
        logical: u64 = "Chunk.", devid: u64 = "Device id.", physical: u64 = "Byte offset."
    }
    /// A device extent that no chunk has.
    Error "device {devid}: extent at {physical} says chunk {logical}, which does not have it" DevExtentStray {
        devid: u64 = "Device id.", physical: u64 = "Byte offset.", logical: u64 = "Chunk."
    }
    /// A device extent of another length than its chunk's stripe.
    Error "device {devid}: extent at {physical} has {found} bytes, its chunk {expected}" DevExtentLength {
        devid: u64 = "Device id.", physical: u64 = "Byte offset.", found: u64 = "In the item.",
        expected: u64 = "Of the chunk."
    }
    /// Two device extents that overlap.
    Error "device {devid}: extent at {physical} begins before its predecessor ends, at {end}" DevExtentOverlap {
        devid: u64 = "Device id.", physical: u64 = "Byte offset.", end: u64 = "End of the predecessor."
    }
    /// A device extent past the end of the device.
    Error "device {devid}: extent at {physical} ends at {end}, the device at {size}" DevExtentPastEnd {
        devid: u64 = "Device id.", physical: u64 = "Byte offset.", end: u64 = "Its end.",
        size: u64 = "Size in the device item."
    }
    /// A chunk without a block group.
    Error "chunk {logical}: no block group" BlockGroupMissing {
        logical: u64 = "Address."
    }
    /// A block group without a chunk.
    Error "block group {logical}: no chunk" BlockGroupStray {
        logical: u64 = "Address."
    }
    /// A block group of another length than its chunk.
    Error "block group {logical}: {found} bytes, its chunk {expected}" BlockGroupLength {
        logical: u64 = "Address.", found: u64 = "Of the group.", expected: u64 = "Of the chunk."
    }
    /// A block group of another kind than its chunk.
    Error "block group {logical}: flags {found}, its chunk {expected}" BlockGroupKind {
        logical: u64 = "Address.", found: BlockGroupFlags = "Of the group.",
        expected: BlockGroupFlags = "Of the chunk."
    }
    /// A block-group item in the extent tree although there is a block-group tree, or a second
    /// item.
    Error "block group {logical}: item in tree {tree}, where it does not belong" BlockGroupPlace {
        logical: u64 = "Address.", tree: u64 = "Tree."
    }
    /// A block group whose `used` is not the sum of its extents.
    Error "block group {logical}: {found} bytes used, its extents have {expected}" BlockGroupUsed {
        logical: u64 = "Address.", found: u64 = "In the item.", expected: u64 = "Sum of the extents."
    }
    /// Space in use without an extent item.
    Error "extent {bytenr}: {len} bytes used by {by:?}, but there is no extent item" ExtentMissing {
        bytenr: u64 = "Address.", len: u64 = "Bytes.", by: InlineRef = "One of its users."
    }
    /// An extent item of space that nothing uses.
    Error "extent {bytenr}: {len} bytes that nothing uses" ExtentUnused {
        bytenr: u64 = "Address.", len: u64 = "Bytes."
    }
    /// Two extents that overlap.
    Error "extent {bytenr} begins before its predecessor ends, at {end}" ExtentOverlap {
        bytenr: u64 = "Address.", end: u64 = "End of the predecessor."
    }
    /// An extent that does not lie in one block group.
    Error "extent {bytenr}: {len} bytes not within one block group" ExtentNoGroup {
        bytenr: u64 = "Address.", len: u64 = "Bytes."
    }
    /// Data in a metadata group or the reverse.
    Error "extent {bytenr}: does not belong in a block group of {flags}" ExtentWrongGroup {
        bytenr: u64 = "Address.", flags: BlockGroupFlags = "Of the group."
    }
    /// An extent on the place of a superblock.
    Error "extent {bytenr}: lies on the superblock at {offset}" ExtentOnSuper {
        bytenr: u64 = "Address.", offset: u64 = "Byte offset of the superblock."
    }
    /// A use of an extent with another length than its item has.
    Error "extent {bytenr}: {found} bytes in its item, {used} where it is used" ExtentLength {
        bytenr: u64 = "Address.", found: u64 = "In the item.", used: u64 = "Where it is used."
    }
    /// Data that is used as a tree block, or the reverse.
    Error "extent {bytenr}: data and tree block at once" ExtentKind {
        bytenr: u64 = "Address."
    }
    /// A tree block whose level differs from its extent item.
    Error "extent {bytenr}: level {found} in the item, the block has {expected}" ExtentLevel {
        bytenr: u64 = "Address.", found: u8 = "In the item.", expected: u8 = "Of the block."
    }
    /// A tree block whose generation differs from its extent item.
    Error "extent {bytenr}: generation {found} in the item, the block has {expected}" ExtentGeneration {
        bytenr: u64 = "Address.", found: u64 = "In the item.", expected: u64 = "Of the block."
    }
    /// A tree block made for a tree without a ref in its extent, while the block's own refs are
    /// still charged to that tree.
    Error "tree {tree}: block {bytenr} has owner {owner}, its extent has no ref of it" BlockOwner {
        tree: u64 = "Tree.", bytenr: u64 = "Address.", owner: u64 = "In the block's header."
    }
    /// The root block of a subvolume has the flag of blocks that a balance moved. Only blocks below
    /// a root get it.
    Error "tree {tree}: root block {bytenr} has the flag of a moved block" RootMoved {
        tree: u64 = "Tree.", bytenr: u64 = "Address."
    }
    /// A tree block whose extent has the wrong flag FULL_BACKREF. The flag decides whether the block
    /// itself or the tree that owns it counts as the user of its targets.
    Error "extent {bytenr}: the flag FULL_BACKREF of a block of tree {tree} is wrongly {found}" FullBackref {
        bytenr: u64 = "Address.", found: bool = "Whether it is set.", tree: u64 = "Tree."
    }
    /// The count in an extent item is not the sum of its refs.
    Error "extent {bytenr}: counts {found} refs, lists {expected}" RefCount {
        bytenr: u64 = "Address.", found: u64 = "In the item.", expected: u64 = "Sum of the refs."
    }
    /// The uses of an extent exceed its refs.
    Error "extent {bytenr}: {reference:?} counts {found}, used {expected} times" RefMissing {
        bytenr: u64 = "Address.", reference: InlineRef = "The ref.", found: u64 = "Listed.",
        expected: u64 = "Uses."
    }
    /// A ref that counts more uses than there are.
    Error "extent {bytenr}: {reference:?} counts {found}, used {expected} times" RefStray {
        bytenr: u64 = "Address.", reference: InlineRef = "The ref.", found: u64 = "Listed.",
        expected: u64 = "Uses."
    }
    /// A ref item of an extent that has no item.
    Error "extent {bytenr}: ref item {key} without an extent item" RefNoExtent {
        bytenr: u64 = "Address.", key: Key = "Key of the ref item."
    }

    /// A block group without its head in the free-space tree.
    Error "free space: block group {group} has no info item" FreeSpaceInfoMissing {
        group: u64 = "Block group."
    }
    /// A head in the free-space tree of a block group that is not there (any more).
    Warning "free space: info item of block group {group}, which does not exist" FreeSpaceInfoStray {
        group: u64 = "Begin in the key."
    }
    /// The number of free runs in the head differs from the number of items.
    Error "free space: block group {group} counts {found} runs, lists {expected}" FreeSpaceCount {
        group: u64 = "Block group.", found: u32 = "In the head.", expected: u64 = "Runs found."
    }
    /// Extents in a group with bitmaps, or the reverse.
    Error "free space: item {key} in a block group of the other form" FreeSpaceForm {
        key: Key = "Key."
    }
    /// Free space that the free-space tree does not list: lost.
    Error "free space: {len} bytes at {start} are free but not listed" FreeSpaceMissing {
        start: u64 = "Address.", len: u64 = "Bytes."
    }
    /// Used space that the free-space tree lists: would be overwritten.
    Error "free space: {len} bytes at {start} are listed as free but used" FreeSpaceUsed {
        start: u64 = "Address.", len: u64 = "Bytes."
    }
    /// An item of the free-space tree outside of every block group.
    Error "free space: item {key} lies in no block group" FreeSpaceOutside {
        key: Key = "Key."
    }
    /// Data in use without the checksums that its inode asks for.
    Error "subvolume {tree} inode {inode} offset {offset}: {len} bytes at {bytenr} have no checksums" ChecksumMissing {
        tree: u64 = "Subvolume.", inode: u64 = "Inode.", offset: u64 = "File offset.",
        bytenr: u64 = "Address.", len: u64 = "Bytes."
    }
    /// Checksums of space that is no data extent.
    Error "checksums: {len} bytes at {start} have some but hold no data" ChecksumStray {
        start: u64 = "Address.", len: u64 = "Bytes."
    }
    /// Data of an inode without checksums that has some.
    Warning "subvolume {tree} inode {inode} offset {offset}: data at {bytenr} has checksums, the inode says none" ChecksumUnwanted {
        tree: u64 = "Subvolume.", inode: u64 = "Inode.", offset: u64 = "File offset.",
        bytenr: u64 = "Address."
    }
    /// Flags that an inode of its type cannot have.
    Error "subvolume {tree} inode {inode}: flags {flags:#x} of a symbolic link" SymlinkFlags {
        tree: u64 = "Subvolume.", inode: u64 = "Inode.", flags: u64 = "Flags."
    }
    /// A field of a file extent that does not fit the others.
    Error "subvolume {tree} inode {inode} offset {offset}: {field} of the file extent is {found}, expected {expected}" FileExtentField {
        tree: u64 = "Subvolume.", inode: u64 = "Inode.", offset: u64 = "File offset.",
        field: &'static str = "Field.", found: u64 = "Value.", expected: u64 = "Value that fits."
    }
    /// Checksums of data that is allocated and not written.
    Error "subvolume {tree} inode {inode} offset {offset}: {len} bytes at {bytenr} have checksums, and nothing was written" ChecksumUnwritten {
        tree: u64 = "Subvolume.", inode: u64 = "Inode.", offset: u64 = "File offset.",
        bytenr: u64 = "Address.", len: u64 = "Bytes of the file extent."
    }
    /// Two checksum items that overlap.
    Error "checksums: item at {start} begins before its predecessor ends, at {end}" ChecksumOverlap {
        start: u64 = "Address.", end: u64 = "End of the predecessor."
    }
    /// Data was to be verified, and the image has none.
    Warning "checksums of data are not verified: the image is a restored dump of metadata" DataOfDump {}
    /// Data that does not have its checksum, from the first bad sector on.
    Error "data at {bytenr}: {bad} of {sectors} sectors of copy {copy} at {physical} of {device} are bad, the first has checksum {found}, expected {expected}" DataChecksum {
        bytenr: u64 = "Address of the first bad sector.", bad: u64 = "Bad sectors of the run.",
        sectors: u64 = "Sectors of the run from there on.", copy: usize = "Number of the copy.",
        device: String = "Device name.", physical: u64 = "Byte offset on the device.",
        found: Checksum = "Of the data.", expected: Checksum = "In the checksum tree."
    }
    /// Data that cannot be read.
    Error "data at {bytenr}: {len} bytes of copy {copy} cannot be read: {error}" DataUnreadable {
        bytenr: u64 = "Address.", len: u64 = "Bytes.", copy: usize = "Number of the copy.",
        error: String = "What the device said."
    }
    /// A tree that must be there has no root item.
    Error "tree {tree} is missing" TreeMissing {
        tree: u64 = "Tree."
    }
    /// A quota group whose numbers differ from its subvolumes, although the group is marked
    /// consistent.
    Error "quota group {level}/{id}: {field} {found}, its subvolumes have {expected}" QuotaGroup {
        level: u64 = "Level.", id: u64 = "Id within the level.", field: &'static str = "Field.",
        found: u64 = "In the item.", expected: u64 = "Sum of the extents."
    }
    /// A root item whose key has another offset than lookups of this tree use.
    Error "tree {tree}: root item with offset {offset}" RootOffset {
        tree: u64 = "Tree.", offset: u64 = "Offset in the key."
    }
    /// A subvolume whose root item names another top directory than 256.
    Error "subvolume {tree}: the root item has the top directory {found}" RootDirectory {
        tree: u64 = "Subvolume.", found: u64 = "In the root item."
    }
    /// A root backref of a subvolume without the matching ref of its parent.
    Error "subvolume {child}: parent {parent} has no ref to it" RootRefMissing {
        parent: u64 = "Parent subvolume.", child: u64 = "Subvolume."
    }
    /// A ref to a subvolume that has no ref back.
    Error "subvolume {parent}: {child} has no ref back to it" RootBackrefMissing {
        parent: u64 = "Parent subvolume.", child: u64 = "Subvolume."
    }
    /// Ref and backref that differ.
    Error "subvolumes {parent} and {child}: ref and backref differ" RootRefDiffers {
        parent: u64 = "Parent subvolume.", child: u64 = "Subvolume."
    }
    /// A ref to a subvolume without a root item.
    Error "subvolume {parent}: ref to {child}, which does not exist" RootRefStray {
        parent: u64 = "Parent subvolume.", child: u64 = "Subvolume."
    }
    /// A subvolume that no directory leads to.
    Error "subvolume {tree}: no parent has a ref to it" SubvolumeUnreachable {
        tree: u64 = "Subvolume."
    }
    /// A ref to a subvolume whose directory entry is missing or another one.
    Error "subvolume {parent}: directory {dir} has no entry {index} for subvolume {child}" SubvolumeEntryMissing {
        parent: u64 = "Parent subvolume.", child: u64 = "Subvolume.", dir: u64 = "Directory.",
        index: u64 = "Index in it."
    }
    /// A directory entry for a subvolume that has no ref (and is no leftover in a snapshot).
    Error "subvolume {tree}: entry {name} in directory {dir} for subvolume {child} without a ref" SubvolumeEntryStray {
        tree: u64 = "Subvolume of the entry.", dir: u64 = "Directory.", name: String = "Name, escaped.",
        child: u64 = "Subvolume that it names."
    }
    /// A deleted subvolume that will not be cleaned up.
    Error "subvolume {tree}: deleted, but without orphan item" DeadRootForgotten {
        tree: u64 = "Subvolume."
    }
    /// An orphan item of a subvolume that is not deleted.
    Error "subvolume {tree}: has an orphan item, but is in use" RootOrphanStray {
        tree: u64 = "Subvolume."
    }
    /// The default subvolume's entry leads nowhere.
    Error "default subvolume {tree} does not exist" DefaultSubvolume {
        tree: u64 = "Subvolume, 0 if the entry is missing."
    }
    /// A subvolume that is not in the uuid tree.
    Warning "uuid tree: subvolume {tree} is missing under {uuid:032x}" UuidMissing {
        tree: u64 = "Subvolume.", uuid: u128 = "The (own or received) uuid, big-endian."
    }
    /// An entry of the uuid tree for a subvolume that does not have this uuid.
    Warning "uuid tree: {uuid:032x} leads to {tree}, which does not have it" UuidStray {
        tree: u64 = "Subvolume.", uuid: u128 = "The uuid, big-endian."
    }
    /// Items of an inode that is not there.
    Error "subvolume {tree} inode {inode}: no inode item, but {key}" InodeMissing {
        tree: u64 = "Subvolume.", inode: u64 = "Inode.", key: Key = "First item of it."
    }
    /// A subvolume without its top directory.
    Error "subvolume {tree}: no top directory" TopDirectory {
        tree: u64 = "Subvolume."
    }
    /// A link count that is not the number of names.
    Error "subvolume {tree} inode {inode}: link count {found}, {expected} names" LinkCount {
        tree: u64 = "Subvolume.", inode: u64 = "Inode.", found: u32 = "In the inode item.",
        expected: u64 = "Names."
    }
    /// A directory with several names.
    Error "subvolume {tree} inode {inode}: a directory with {names} names" DirectoryNames {
        tree: u64 = "Subvolume.", inode: u64 = "Inode.", names: u64 = "Names."
    }
    /// A directory that is its own ancestor: no path from the top leads to it.
    Error "subvolume {tree} directory {inode}: is below itself" DirectoryLoop {
        tree: u64 = "Subvolume.", inode: u64 = "A directory of the loop, or one below it."
    }
    /// A directory whose size differs from the sum of its names.
    Error "subvolume {tree} directory {inode}: size {found}, its names have {expected}" DirectorySize {
        tree: u64 = "Subvolume.", inode: u64 = "Directory.", found: u64 = "In the inode item.",
        expected: u64 = "Twice the sum of the names' lengths."
    }
    /// A name that a lookup finds and a listing does not.
    Error "subvolume {tree} directory {inode}: {name} has no index" DirIndexMissing {
        tree: u64 = "Subvolume.", inode: u64 = "Directory.", name: String = "Name, escaped."
    }
    /// A name that a listing shows and a lookup does not find.
    Error "subvolume {tree} directory {inode}: {name} with index {index} has no dir item" DirItemMissing {
        tree: u64 = "Subvolume.", inode: u64 = "Directory.", name: String = "Name, escaped.",
        index: u64 = "Index."
    }
    /// Lookup and listing of a name lead to different things.
    Error "subvolume {tree} directory {inode}: dir item and index of {name} differ" DirItemDiffers {
        tree: u64 = "Subvolume.", inode: u64 = "Directory.", name: String = "Name, escaped."
    }
    /// A name twice in one directory, or an xattr twice in one inode.
    Error "subvolume {tree} inode {inode}: {name} appears twice" NameTwice {
        tree: u64 = "Subvolume.", inode: u64 = "Inode.", name: String = "Name, escaped."
    }
    /// A directory entry for an inode that is not there.
    Error "subvolume {tree} directory {dir}: {name} leads to inode {inode}, which does not exist" DirEntryDangling {
        tree: u64 = "Subvolume.", dir: u64 = "Directory.", name: String = "Name, escaped.",
        inode: u64 = "Inode."
    }
    /// A directory entry without a ref in its inode.
    Error "subvolume {tree} directory {dir}: {name} with index {index} is not a name of inode {inode}" InodeRefMissing {
        tree: u64 = "Subvolume.", dir: u64 = "Directory.", index: u64 = "Index.",
        name: String = "Name, escaped.", inode: u64 = "Inode."
    }
    /// A ref of an inode without an entry in the directory.
    Error "subvolume {tree} inode {inode}: its name {name} with index {index} is not in directory {dir}" DirEntryMissing {
        tree: u64 = "Subvolume.", dir: u64 = "Directory.", index: u64 = "Index.",
        name: String = "Name, escaped.", inode: u64 = "Inode."
    }
    /// A directory entry with another file type than its inode.
    Error "subvolume {tree} directory {dir}: {name} has file type {found}, inode {inode} has {expected}" DirEntryType {
        tree: u64 = "Subvolume.", dir: u64 = "Directory.", name: String = "Name, escaped.",
        inode: u64 = "Inode.", found: u8 = "Of the entry.", expected: u8 = "Of the inode."
    }
    /// Directory items in an inode that is no directory, or file extents in one that has no data.
    Error "subvolume {tree} inode {inode}: mode {mode:o} does not go with {key}" ItemNotOfMode {
        tree: u64 = "Subvolume.", inode: u64 = "Inode.", mode: u32 = "Mode.", key: Key = "An item."
    }
    /// Two file extents that overlap.
    Error "subvolume {tree} inode {inode}: file extent at {offset} begins before its predecessor ends" FileExtentOverlap {
        tree: u64 = "Subvolume.", inode: u64 = "Inode.", offset: u64 = "File offset."
    }
    /// A gap between file extents where holes need an item.
    Error "subvolume {tree} inode {inode}: no file extent at {offset}" FileExtentGap {
        tree: u64 = "Subvolume.", inode: u64 = "Inode.", offset: u64 = "File offset."
    }
    /// Data past the end of the file.
    Warning "subvolume {tree} inode {inode}: data at {offset}, past the end at {size}" FileExtentPastEnd {
        tree: u64 = "Subvolume.", inode: u64 = "Inode.", offset: u64 = "File offset.", size: u64 = "File size."
    }
    /// An inline extent that is longer than a sector.
    Error "subvolume {tree} inode {inode}: inline extent of {len} bytes" InlineTooLong {
        tree: u64 = "Subvolume.", inode: u64 = "Inode.", len: u64 = "Bytes once uncompressed."
    }
    /// A hash tree of fs-verity that is not complete, or of another file.
    Error "subvolume {tree} inode {inode}: hash tree of fs-verity: {reason}" HashTreeBad {
        tree: u64 = "Subvolume.", inode: u64 = "Inode.", reason: &'static str = "The defect."
    }
    /// Items of a hash tree of a file without the flag, and without an orphan item, as an unfinished
    /// seal has it. No reader uses them.
    Warning "subvolume {tree} inode {inode}: has items of a hash tree but is not sealed" HashTreeStray {
        tree: u64 = "Subvolume.", inode: u64 = "Inode."
    }
    /// `nbytes` differs from the sum of the extents.
    Error "subvolume {tree} inode {inode}: nbytes {found}, its extents have {expected}" InodeBytes {
        tree: u64 = "Subvolume.", inode: u64 = "Inode.", found: u64 = "In the inode item.",
        expected: u64 = "Of the extents."
    }
    /// A symbolic link whose target is missing or of another length.
    Error "subvolume {tree} inode {inode}: symbolic link of size {size} with a target of {found} bytes" SymlinkTarget {
        tree: u64 = "Subvolume.", inode: u64 = "Inode.", size: u64 = "In the inode item.",
        found: u64 = "Bytes of the target."
    }
    /// An inode without names that will not be cleaned up.
    Error "subvolume {tree} inode {inode}: no names and no orphan item" OrphanMissing {
        tree: u64 = "Subvolume.", inode: u64 = "Inode."
    }
    /// An orphan item of an inode that has names, or is not there.
    Warning "subvolume {tree}: orphan item of inode {inode}, which is none" OrphanStray {
        tree: u64 = "Subvolume.", inode: u64 = "Inode."
    }
    /// A block of the log inside of an extent in use.
    Error "log: block {logical} lies in an extent in use" LogBlockInUse {
        logical: u64 = "Address."
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
        let finding = Finding::DirIndexMissing {
            tree: 5,
            inode: 256,
            name: shown(b"a\nb"),
        };
        let line = "subvolume 5 directory 256: a\\nb has no index";
        assert_eq!(finding.to_string(), line);
        assert_eq!(
            (finding.code(), finding.severity()),
            ("DirIndexMissing", Severity::Error)
        );
        assert!(Finding::CODES.contains(&finding.code()));
    }
}
