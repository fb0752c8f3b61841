//! Contents of requests and answers, for all transports.

use sapwood_vfs::{Attr, Credentials, SetAttr, SyncKind};

use crate::node::NodeId;

/// Result of a request: the answer, or an errno.
pub(crate) type Reply<T> = Result<T, i32>;

/// Sender of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Caller {
    /// File-system user id.
    pub uid: u32,
    /// File-system group id.
    pub gid: u32,
    /// Its umask, if the request carries one.
    pub umask: u32,
    /// Process or thread id; 0 for the kernel itself.
    pub pid: u32,
}

/// Changes that must be durable before they are answered, by the mount's options.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Synchronous {
    /// All changes (`-o sync`). The kernel makes writes synchronous itself.
    pub all: bool,
    /// Changes of names (`-o dirsync`).
    pub names: bool,
}

impl Caller {
    /// The credentials for the engine. The kernel has cleared the set-group-id bit if it must not
    /// stay.
    pub(crate) fn credentials(self) -> Credentials {
        Credentials {
            uid: self.uid,
            gid: self.gid,
            umask: self.umask,
            keep_setgid: true,
        }
    }
}

/// A node for the kernel, and how long it may cache name and attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodeEntry {
    /// The node.
    pub node: NodeId,
    /// Its attributes.
    pub attr: Attr,
}

/// Attributes to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Changes {
    /// Attributes to set; `kill_setid` is computed here.
    pub set: SetAttr,
    /// The caller may keep set-id bits on a truncation (`CAP_FSETID`).
    pub keep_setid: bool,
}

/// A write.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WriteRequest<'a> {
    /// The file.
    pub node: NodeId,
    /// Offset in bytes.
    pub offset: u64,
    /// The bytes.
    pub data: &'a [u8],
    /// Clear set-id bits (`FUSE_WRITE_KILL_SUIDGID`).
    pub kill_setid: bool,
    /// It bypasses the kernel's page cache.
    pub direct: bool,
    /// Make the write durable before the answer.
    pub sync: Option<SyncKind>,
}

/// Answer to a request for an extended attribute or for their list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum XattrReply {
    /// The size in bytes, if the caller asked only for it.
    Size(u32),
    /// The value.
    Data(Vec<u8>),
}

/// Result of a seek for data or a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seek {
    /// The offset.
    Found(i64),
    /// The kernel may hold dirty pages in this range, which would change the answer. Have it write
    /// them back, then call `Dispatcher::settled_lseek`. Do not wait in a thread that the
    /// write-back itself needs.
    Unsettled {
        /// Start of the range, in bytes.
        offset: u64,
        /// Its length; `None` means to the end of the file.
        len: Option<u64>,
    },
}

/// Answer to a control command.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ControlAnswer {
    /// Output bytes.
    pub output: Vec<u8>,
    /// A name that the command created or removed in its directory: the kernel must drop its caches
    /// of the name and the directory before the answer. Do not wait for that in a request thread:
    /// the kernel may have locked the directory for another request.
    pub changed_name: Option<Vec<u8>>,
}
