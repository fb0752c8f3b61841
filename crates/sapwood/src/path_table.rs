//! Paths, each held as its directory and its last name.
//!
//! The memory of a table is linear in the names that were added to it, however deep they are: the
//! names of a directory are stored once for everything below it.

use std::collections::BTreeMap;
use std::collections::btree_map;

/// A path of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PathId(usize);

/// A tree of names.
#[derive(Debug, Clone)]
pub(crate) struct PathTable {
    /// The names below each path, in their order.
    nodes: Vec<BTreeMap<Box<[u8]>, PathId>>,
}

impl Default for PathTable {
    fn default() -> Self {
        Self {
            nodes: vec![BTreeMap::new()],
        }
    }
}

impl PathTable {
    /// The path that has no name.
    pub(crate) const ROOT: PathId = PathId(0);

    /// A name below a path.
    pub(crate) fn child(&self, above: PathId, name: &[u8]) -> Option<PathId> {
        self.nodes.get(above.0)?.get(name).copied()
    }

    /// Like [`child`](Self::child); a missing name is added.
    pub(crate) fn add(&mut self, above: PathId, name: &[u8]) -> PathId {
        if let Some(known) = self.child(above, name) {
            return known;
        }
        let new = PathId(self.nodes.len());
        if let Some(names) = self.nodes.get_mut(above.0) {
            names.insert(name.into(), new);
            self.nodes.push(BTreeMap::new());
        }
        new
    }

    /// Removes a name, with everything below it, from those that a [walk](Self::walk) finds.
    pub(crate) fn remove(&mut self, above: PathId, name: &[u8]) {
        if let Some(names) = self.nodes.get_mut(above.0) {
            names.remove(name);
        }
    }

    /// Everything below the root, depth first, in the order of names.
    pub(crate) fn walk(&self) -> Walk<'_> {
        Walk {
            table: self,
            open: Vec::new(),
            begun: false,
        }
    }

    fn names(&self, above: PathId) -> btree_map::Iter<'_, Box<[u8]>, PathId> {
        static NONE: BTreeMap<Box<[u8]>, PathId> = BTreeMap::new();
        self.nodes.get(above.0).unwrap_or(&NONE).iter()
    }
}

/// A step of a walk.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step<'t> {
    /// The walk enters this name in the path that it is in.
    Enter(&'t [u8]),
    /// Everything below this path is done; the root comes last.
    Leave(PathId),
}

/// The names in a path, with the paths that they end.
type Names<'t> = btree_map::Iter<'t, Box<[u8]>, PathId>;

/// A walk over a table.
#[derive(Debug)]
pub(crate) struct Walk<'t> {
    table: &'t PathTable,
    /// Paths on the walk's stack, and the remaining names in each.
    open: Vec<(PathId, Names<'t>)>,
    begun: bool,
}

impl Walk<'_> {
    /// Leaves the path that was entered last, without a step.
    pub(crate) fn turn_back(&mut self) {
        self.open.pop();
    }
}

impl<'t> Iterator for Walk<'t> {
    type Item = Step<'t>;

    fn next(&mut self) -> Option<Step<'t>> {
        if !self.begun {
            self.begun = true;
            let root = PathTable::ROOT;
            self.open.push((root, self.table.names(root)));
        }
        let (at, names) = self.open.last_mut()?;
        match names.next() {
            Some((name, below)) => {
                self.open.push((*below, self.table.names(*below)));
                Some(Step::Enter(name))
            }
            None => {
                let done = Step::Leave(*at);
                self.open.pop();
                Some(done)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_leaves_what_is_below_before_what_is_above() {
        let mut table = PathTable::default();
        let b = table.add(PathTable::ROOT, b"b");
        let a = table.add(PathTable::ROOT, b"a");
        let gone = table.add(PathTable::ROOT, b"gone");
        table.add(gone, b"x");
        let x = table.add(a, b"x");
        assert_eq!(table.add(a, b"x"), x);
        assert_eq!(table.child(a, b"y"), None);
        table.remove(PathTable::ROOT, b"gone");
        let steps: Vec<Step<'_>> = table.walk().collect();
        let expected = [
            Step::Enter(b"a"),
            Step::Enter(b"x"),
            Step::Leave(x),
            Step::Leave(a),
            Step::Enter(b"b"),
            Step::Leave(b),
            Step::Leave(PathTable::ROOT),
        ];
        assert_eq!(steps, expected);
        let mut walk = table.walk();
        assert_eq!(walk.next(), Some(Step::Enter(b"a")));
        walk.turn_back();
        assert_eq!(walk.next(), Some(Step::Enter(b"b")));
    }

    #[test]
    fn a_deep_path_takes_a_name_for_each_level() {
        const DEPTH: usize = 1 << 20;
        let mut table = PathTable::default();
        let mut at = PathTable::ROOT;
        for _ in 0..DEPTH {
            at = table.add(at, b"a");
        }
        assert_eq!(table.nodes.len(), DEPTH + 1);
        assert_eq!(table.walk().count(), 2 * DEPTH + 1);
    }
}
