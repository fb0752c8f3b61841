//! Records the changes that a crash would lose, for tests of front ends. It keeps a record only:
//! the contents themselves are never lost.

use std::collections::{HashMap, HashSet};

use parking_lot::Mutex;

use sapwood_vfs::{Attr, Ino, SyncKind};

/// Inodes with changes since they were last made durable.
#[derive(Debug, Default)]
pub(super) struct Durable {
    changed: Mutex<Changed>,
}

#[derive(Debug, Default)]
struct Changed {
    /// Inodes whose contents or names changed.
    data: HashSet<Ino>,
    /// Inodes with any change.
    all: HashSet<Ino>,
    /// Attributes when the inode was last made durable.
    kept: HashMap<Ino, Attr>,
}

impl Durable {
    /// Records a change of contents or names.
    pub(super) fn data_changed(&self, ino: Ino) {
        let mut changed = self.changed.lock();
        changed.data.insert(ino);
        changed.all.insert(ino);
    }

    /// Records a change of attributes.
    pub(super) fn attributes_changed(&self, ino: Ino) {
        self.changed.lock().all.insert(ino);
    }

    /// Records an fsync of an inode that has these attributes.
    pub(super) fn synced(&self, attr: Attr, kind: SyncKind) {
        let mut changed = self.changed.lock();
        changed.data.remove(&attr.ino);
        if kind == SyncKind::All {
            changed.all.remove(&attr.ino);
            changed.kept.insert(attr.ino, attr);
        }
    }

    /// Records a sync of all inodes, which have these attributes.
    pub(super) fn synced_all(&self, attrs: impl Iterator<Item = Attr>) {
        *self.changed.lock() = Changed {
            kept: attrs.map(|attr| (attr.ino, attr)).collect(),
            ..Changed::default()
        };
    }

    pub(super) fn kept(&self, ino: Ino) -> Option<Attr> {
        self.changed.lock().kept.get(&ino).copied()
    }

    pub(super) fn is_durable(&self, ino: Ino, kind: SyncKind) -> bool {
        let changed = self.changed.lock();
        match kind {
            SyncKind::All => !changed.all.contains(&ino),
            SyncKind::Data => !changed.data.contains(&ino),
        }
    }
}
