//! What requests and answers carry, whatever the transport.

use sapwood_vfs::{Attr, Credentials, SetAttr, SyncKind};

use crate::node::NodeId;

/// Result of a request: what to answer, or the errno to answer with.
pub type Reply<T> = Result<T, i32>;

/// Who sent a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// File-system user id.
    pub uid: u32,
    /// File-system group id.
    pub gid: u32,
    /// Its umask, where the request carries one.
    pub umask: u32,
    /// Process or thread id; 0 for the kernel itself.
    pub pid: u32,
}

/// What changes are durable before they are answered, by the mount's options.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Synchronous {
    /// All (`-o sync`). The kernel sees to writes.
    pub all: bool,
    /// Changes of names (`-o dirsync`).
    pub names: bool,
}

impl Caller {
    /// The kernel takes the set-group-id bit away before it asks, so what is left may stay.
    pub(crate) fn credentials(self) -> Credentials {
        Credentials {
            uid: self.uid,
            gid: self.gid,
            umask: self.umask,
            keep_setgid: true,
        }
    }
}

/// A node to tell the kernel of, and for how long it may keep name and attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeEntry {
    /// The node.
    pub node: NodeId,
    /// Its attributes.
    pub attr: Attr,
}

/// Attributes to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Changes {
    /// What to set; `kill_setid` is found here.
    pub set: SetAttr,
    /// The caller may keep set-id bits on a truncation (`CAP_FSETID`).
    pub keep_setid: bool,
}

/// A write.
#[derive(Debug, Clone, Copy)]
pub struct WriteRequest<'a> {
    /// Where to.
    pub node: NodeId,
    /// Offset in bytes.
    pub offset: u64,
    /// The bytes.
    pub data: &'a [u8],
    /// Clear set-id bits (`FUSE_WRITE_KILL_SUIDGID`).
    pub kill_setid: bool,
    /// Make the data durable before the answer.
    pub sync: Option<SyncKind>,
}

/// Answer to a request for an extended attribute or the list of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum XattrReply {
    /// The caller only asked for the size in bytes.
    Size(u32),
    /// The value.
    Data(Vec<u8>),
}

/// Where data or a hole was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    /// There.
    Found(i64),
    /// The kernel does not write back before it asks, and what it may hold in this range
    /// would change the answer. Have it written back, then ask
    /// `Dispatcher::settled_lseek`; not from a thread that the write-back itself needs.
    Unsettled {
        /// Start of the range, in bytes.
        offset: u64,
        /// Its length; `None`: to the end of the file.
        len: Option<u64>,
    },
}

/// Answer to a control command.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ControlAnswer {
    /// Output bytes.
    pub output: Vec<u8>,
    /// A name in the directory that the command went to, which it made or removed: the
    /// kernel must forget what it knows of the name and the directory before the answer.
    /// Not from a request thread: the kernel may have locked the directory for another.
    pub changed_name: Option<Vec<u8>>,
}
