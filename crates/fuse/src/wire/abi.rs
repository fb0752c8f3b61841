//! Layout of messages on `/dev/fuse`: protocol 7.31 and newer, in the machine's byte order.
//!
//! Facts from the protocol's documentation (fuse(4), the kernel's "FUSE" pages) and from the ABI
//! module of the MIT-licensed crate `fuser`. Field names are the protocol's. Sizes are asserted at
//! compile time, because one field too many would shift all that follow.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Declares structs of the protocol, each with its size in bytes.
macro_rules! wire {
    ($($(#[$doc:meta])* $name:ident: $size:literal { $($(#[$field_doc:meta])* $field:ident: $kind:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub(crate) struct $name {
            $($(#[$field_doc])* pub(crate) $field: $kind,)*
        }
        const _: () = assert!(size_of::<$name>() == $size);
    )*};
}

wire! {
    /// Precedes each request.
    InHeader: 40 {
        /// Length of the whole message in bytes, including this header.
        len: u32,
        opcode: u32,
        unique: u64,
        nodeid: u64,
        uid: u32,
        gid: u32,
        pid: u32,
        /// Extensions after the arguments, in units of 8 bytes. None are negotiated.
        total_extlen: u16,
        padding: u16,
    }

    /// Precedes each answer and, with `unique` 0 and the code as `error`, each notification.
    OutHeader: 16 {
        /// Length of the whole message in bytes, including this header.
        len: u32,
        /// 0 or a negated errno.
        error: i32,
        unique: u64,
    }

    InitIn: 64 {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u32,
        flags2: u32,
        unused: [u32; 11],
    }

    InitOut: 64 {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u32,
        max_background: u16,
        congestion_threshold: u16,
        max_write: u32,
        /// Granularity of times in nanoseconds.
        time_gran: u32,
        max_pages: u16,
        map_alignment: u16,
        flags2: u32,
        max_stack_depth: u32,
        request_timeout: u16,
        unused: [u16; 11],
    }

    Attr: 88 {
        ino: u64,
        size: u64,
        /// In units of 512 bytes.
        blocks: u64,
        atime: i64,
        mtime: i64,
        ctime: i64,
        atimensec: u32,
        mtimensec: u32,
        ctimensec: u32,
        mode: u32,
        nlink: u32,
        uid: u32,
        gid: u32,
        rdev: u32,
        blksize: u32,
        flags: u32,
    }

    EntryOut: 128 {
        /// 0 if the name does not exist.
        nodeid: u64,
        generation: u64,
        entry_valid: u64,
        attr_valid: u64,
        entry_valid_nsec: u32,
        attr_valid_nsec: u32,
        attr: Attr,
    }

    AttrOut: 104 {
        attr_valid: u64,
        attr_valid_nsec: u32,
        dummy: u32,
        attr: Attr,
    }

    ForgetIn: 8 {
        nlookup: u64,
    }

    BatchForgetIn: 8 {
        count: u32,
        dummy: u32,
    }

    ForgetOne: 16 {
        nodeid: u64,
        nlookup: u64,
    }

    SetAttrIn: 88 {
        valid: u32,
        padding: u32,
        fh: u64,
        size: u64,
        lock_owner: u64,
        atime: i64,
        mtime: i64,
        ctime: i64,
        atimensec: u32,
        mtimensec: u32,
        ctimensec: u32,
        mode: u32,
        unused4: u32,
        uid: u32,
        gid: u32,
        unused5: u32,
    }

    StatxIn: 24 {
        getattr_flags: u32,
        reserved: u32,
        fh: u64,
        sx_flags: u32,
        sx_mask: u32,
    }

    SxTime: 16 {
        tv_sec: i64,
        tv_nsec: u32,
        reserved: i32,
    }

    Statx: 256 {
        mask: u32,
        blksize: u32,
        attributes: u64,
        nlink: u32,
        uid: u32,
        gid: u32,
        mode: u16,
        spare0: u16,
        ino: u64,
        size: u64,
        /// In units of 512 bytes.
        blocks: u64,
        attributes_mask: u64,
        atime: SxTime,
        btime: SxTime,
        ctime: SxTime,
        mtime: SxTime,
        rdev_major: u32,
        rdev_minor: u32,
        dev_major: u32,
        dev_minor: u32,
        spare2: [u64; 14],
    }

    StatxOut: 288 {
        attr_valid: u64,
        attr_valid_nsec: u32,
        flags: u32,
        spare: [u64; 2],
        stat: Statx,
    }

    MknodIn: 16 {
        mode: u32,
        rdev: u32,
        umask: u32,
        padding: u32,
    }

    MkdirIn: 8 {
        mode: u32,
        umask: u32,
    }

    RenameIn: 8 {
        newdir: u64,
    }

    Rename2In: 16 {
        newdir: u64,
        flags: u32,
        padding: u32,
    }

    LinkIn: 8 {
        oldnodeid: u64,
    }

    /// Argument of `FUSE_TMPFILE` (and `FUSE_CREATE`, which is not served).
    CreateIn: 16 {
        flags: u32,
        mode: u32,
        umask: u32,
        open_flags: u32,
    }

    OpenOut: 16 {
        fh: u64,
        open_flags: u32,
        backing_id: i32,
    }

    /// Argument of reads of files and directories.
    ReadIn: 40 {
        fh: u64,
        offset: u64,
        size: u32,
        read_flags: u32,
        lock_owner: u64,
        flags: u32,
        padding: u32,
    }

    WriteIn: 40 {
        fh: u64,
        offset: u64,
        size: u32,
        write_flags: u32,
        lock_owner: u64,
        flags: u32,
        padding: u32,
    }

    WriteOut: 8 {
        size: u32,
        padding: u32,
    }

    AccessIn: 8 {
        mask: u32,
        padding: u32,
    }

    FsyncIn: 16 {
        fh: u64,
        fsync_flags: u32,
        padding: u32,
    }

    SyncFsIn: 8 {
        padding: u64,
    }

    StatFsOut: 80 {
        blocks: u64,
        bfree: u64,
        bavail: u64,
        files: u64,
        ffree: u64,
        bsize: u32,
        namelen: u32,
        frsize: u32,
        padding: u32,
        spare: [u32; 6],
    }

    /// Argument of `FUSE_SETXATTR` without `FUSE_SETXATTR_EXT`.
    SetXattrCompatIn: 8 {
        size: u32,
        flags: u32,
    }

    SetXattrIn: 16 {
        size: u32,
        flags: u32,
        setxattr_flags: u32,
        padding: u32,
    }

    GetXattrIn: 8 {
        size: u32,
        padding: u32,
    }

    GetXattrOut: 8 {
        size: u32,
        padding: u32,
    }

    IoctlIn: 32 {
        fh: u64,
        flags: u32,
        cmd: u32,
        arg: u64,
        in_size: u32,
        out_size: u32,
    }

    IoctlOut: 16 {
        result: i32,
        flags: u32,
        in_iovs: u32,
        out_iovs: u32,
    }

    FallocateIn: 32 {
        fh: u64,
        offset: u64,
        length: u64,
        mode: u32,
        padding: u32,
    }

    LseekIn: 24 {
        fh: u64,
        offset: u64,
        whence: u32,
        padding: u32,
    }

    LseekOut: 8 {
        offset: u64,
    }

    CopyFileRangeIn: 56 {
        fh_in: u64,
        off_in: u64,
        nodeid_out: u64,
        fh_out: u64,
        off_out: u64,
        len: u64,
        flags: u64,
    }

    /// Answer to `FUSE_COPY_FILE_RANGE_64`.
    CopyFileRangeOut: 8 {
        bytes_copied: u64,
    }

    /// Entry of a directory page; the name follows, padded to 8 bytes.
    Dirent: 24 {
        ino: u64,
        /// Cookie from which the listing continues after this entry.
        off: u64,
        namelen: u32,
        /// `S_IFMT` bits, shifted down by 12.
        kind: u32,
    }

    /// Over io_uring: identifies the request.
    RingHeader: 32 {
        flags: u64,
        /// Identifies the request when its answer is committed.
        commit_id: u64,
        /// Payload size of the request, and then of the answer.
        payload_sz: u32,
        padding: u32,
        reserved: u64,
    }

    /// The argument of a command that registers an entry or commits an answer.
    RingCommand: 24 {
        flags: u64,
        commit_id: u64,
        /// The queue: a CPU's number.
        qid: u16,
        padding: [u16; 3],
    }

    InvalInodeOut: 24 {
        ino: u64,
        off: i64,
        len: i64,
    }

    /// The name and a NUL follow.
    InvalEntryOut: 16 {
        parent: u64,
        namelen: u32,
        flags: u32,
    }

    /// The node ids follow.
    PruneOut: 16 {
        count: u32,
        padding: u32,
        spare: u64,
    }
}
