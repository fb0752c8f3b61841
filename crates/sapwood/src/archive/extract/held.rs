//! The directories of the last entry, which stay held.

use crate::path_table::{PathId, PathTable};
use crate::tree::HeldInode;

/// A held directory.
struct Open<'a> {
    node: HeldInode<'a>,
    /// Bytes of the path to it.
    end: usize,
    /// Its place in the table, once it is known.
    place: Option<PathId>,
}

/// Directories, from the one in the base on, each in the one before it.
#[derive(Default)]
pub(super) struct Held<'a> {
    open: Vec<Open<'a>>,
    /// Path of the last one below the base.
    path: Vec<u8>,
}

impl<'a> Held<'a> {
    /// The directory that was entered last; `None` is the base.
    pub(super) fn top(&self) -> Option<&HeldInode<'a>> {
        self.open.last().map(|open| &open.node)
    }

    /// Its path below the base.
    pub(super) fn path(&self) -> &[u8] {
        &self.path
    }

    /// The path of a name in it.
    pub(super) fn path_of(&self, name: &[u8]) -> Vec<u8> {
        let mut path = self.path.clone();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        path
    }

    /// Enters a directory of the top one.
    pub(super) fn enter(&mut self, name: &[u8], node: HeldInode<'a>) {
        if !self.path.is_empty() {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(name);
        let (end, place) = (self.path.len(), None);
        self.open.push(Open { node, end, place });
    }

    /// Leaves all but the first `depth` directories.
    pub(super) fn leave(&mut self, depth: usize) {
        self.open.truncate(depth);
        let end = self.open.last().map_or(0, |open| open.end);
        self.path.truncate(end);
    }

    /// Leaves the directory that was entered last.
    pub(super) fn leave_last(&mut self) {
        self.leave(self.open.len().saturating_sub(1));
    }

    /// The number of directories, from the base on, that have these names.
    pub(super) fn common(&self, parts: &[&[u8]]) -> usize {
        let mut start = 0;
        let same = |(open, part): &(&Open<'a>, &&[u8])| {
            let is_same = self.path.get(start..open.end) == Some(**part);
            start = open.end + 1;
            is_same
        };
        self.open.iter().zip(parts).take_while(same).count()
    }

    /// The place of the directory in a table of those that are remembered, which it is added to.
    pub(super) fn place(&mut self, table: &mut PathTable) -> PathId {
        let known = self.open.iter().rposition(|open| open.place.is_some());
        let first = known.map_or(0, |known| known + 1);
        let last = known.and_then(|known| self.open.get(known));
        let mut at = last.and_then(|open| open.place).unwrap_or(PathTable::ROOT);
        let mut start = last.map_or(0, |open| open.end + 1);
        for open in self.open.iter_mut().skip(first) {
            at = table.add(at, self.path.get(start..open.end).unwrap_or_default());
            open.place = Some(at);
            start = open.end + 1;
        }
        at
    }
}
