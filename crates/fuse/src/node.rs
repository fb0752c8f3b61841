//! Node ids: the kernel's numbers of inodes, and how they map to the engine's.
//!
//! The kernel calls the root directory 1. Every other node id is the engine's [`Ino`], so no table
//! is needed, and `stat` shows the engine's number. If the engine has an inode 1 that is not its
//! root, that inode gets the root's number, which is free because the root never uses it.
//!
//! References need no table either: the kernel's lookup count of a node equals the engine's
//! reference count, and a forget passes through.

use sapwood_vfs::Ino;

/// The kernel's number of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct NodeId(pub u64);

impl NodeId {
    /// The root directory of a mount.
    pub(crate) const ROOT: Self = Self(1);
    /// No inode: a name that does not exist.
    pub(crate) const NONE: Self = Self(0);
}

/// Translates between node ids and inodes of one file system.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NodeMap {
    root: u64,
}

impl NodeMap {
    pub(crate) fn new(root: Ino) -> Self {
        Self { root: root.0 }
    }

    pub(crate) fn ino(self, node: NodeId) -> Ino {
        Ino(self.swap(node.0))
    }

    pub(crate) fn node(self, ino: Ino) -> NodeId {
        NodeId(self.swap(ino.0))
    }

    fn swap(self, id: u64) -> u64 {
        if id == NodeId::ROOT.0 {
            self.root
        } else if id == self.root {
            NodeId::ROOT.0
        } else {
            id
        }
    }
}

/// A device number in FUSE's 32 bits: 12 bits of the major and 20 bits of the minor number, in the
/// layout of `new_encode_dev`, which the kernel documents for user space.
pub(crate) fn encode_device(rdev: u64) -> u32 {
    let major = rustix::fs::major(rdev);
    let minor = rustix::fs::minor(rdev);
    (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & 0xfff00) << 12)
}

/// The inverse of [`encode_device`].
pub(crate) fn decode_device(encoded: u32) -> u64 {
    let major = (encoded >> 8) & 0xfff;
    let minor = (encoded & 0xff) | ((encoded >> 12) & 0xfff00);
    rustix::fs::makedev(major, minor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_one_and_the_map_is_a_bijection() {
        for root in [1, 2, 256] {
            let map = NodeMap::new(Ino(root));
            assert_eq!(map.node(Ino(root)), NodeId::ROOT);
            assert_eq!(map.ino(NodeId::ROOT), Ino(root));
            for id in 1..300 {
                assert_eq!(map.ino(map.node(Ino(id))), Ino(id));
            }
        }
        assert_eq!(NodeMap::new(Ino(256)).node(Ino(1)), NodeId(256));
    }

    #[test]
    fn device_numbers_round_trip() {
        for (major, minor) in [(0, 0), (8, 1), (259, 300), (0xfff, 0xfffff)] {
            let device = rustix::fs::makedev(major, minor);
            assert_eq!(decode_device(encode_device(device)), device);
        }
    }
}
