//! A tree as the list of its leaves, as far as they were found.
//!
//! # How it works
//! The walk from a root takes every block that the scan found at the address and with the
//! generation that the parent has. A block that is missing leaves a range of keys without leaf.
//! Such ranges are filled from orphaned blocks of the tree: the newest first, and within a
//! generation the highest level first. An interior block knows exactly which leaves were part of
//! the tree then; a leaf covers only the keys from its first to its last item. Keys that stay
//! uncovered are lost.
//!
//! A block is used at most once in the walk, and interior blocks at most once more in the fill, so
//! that a hostile image cannot make the list longer than the number of its blocks.

use std::collections::{BTreeMap, HashSet};

use sapwood_btrfs_format::Key;

use super::nodes::Nodes;
use super::scan::Node;

/// A root pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RootPtr {
    pub(super) logical: u64,
    pub(super) generation: u64,
    pub(super) level: u8,
}

/// Keys from `start` up to before `end`; `None`: to the last key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) start: Key,
    pub(super) end: Option<Key>,
}

impl Span {
    const ALL: Self = Self {
        start: Key::MIN,
        end: None,
    };

    fn is_empty(&self) -> bool {
        self.end.is_some_and(|end| end <= self.start)
    }

    fn and(&self, other: &Self) -> Self {
        let end = match (self.end, other.end) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        Self {
            start: self.start.max(other.start),
            end,
        }
    }

    /// Whether it has a key of this range, both ends included.
    pub(super) fn meets(&self, from: &Key, to: &Key) -> bool {
        self.start <= *to && self.end.is_none_or(|end| end > *from)
    }
}

/// A leaf, of which only the items in its span count.
#[derive(Debug, Clone, Copy)]
pub(super) struct Leaf {
    pub(super) span: Span,
    pub(super) logical: u64,
    pub(super) generation: u64,
}

/// The leaves of a tree that were found.
#[derive(Debug, Default)]
pub(super) struct Leaves {
    /// In rising order of their spans, which do not overlap.
    pub(super) leaves: Vec<Leaf>,
    /// The ranges without a leaf, in rising order.
    pub(super) lost: Vec<Span>,
    /// Pointers to blocks in the walk from the root, the root itself included.
    pub(super) pointers: u64,
    /// Pointers whose block was not found.
    pub(super) missing: u64,
    /// The ranges with a leaf that was found as an orphan, in rising order.
    pub(super) older: Vec<Span>,
}

/// The orphans that may fill a tree's gaps.
#[derive(Debug, Clone, Copy)]
pub(super) struct Orphans {
    pub(super) owner: u64,
    /// Newest generation.
    pub(super) newest: u64,
}

impl Leaves {
    /// The leaves below a root; `None`: the root is not known. Gaps are filled from `orphans`, in
    /// this order.
    pub(super) fn build(nodes: &Nodes, root: Option<RootPtr>, orphans: &[Orphans]) -> Self {
        let mut build = Build {
            nodes,
            result: Self::default(),
            visited: HashSet::new(),
            gaps: BTreeMap::new(),
        };
        match root {
            Some(root) => build.walk(root, Span::ALL),
            None => build.lose(Span::ALL),
        }
        for orphans in orphans {
            build.fill(*orphans);
        }
        let Build {
            mut result, gaps, ..
        } = build;
        result.leaves.sort_by_key(|leaf| leaf.span.start);
        result.older.sort_by_key(|span| span.start);
        result.lost = gaps
            .into_iter()
            .map(|(start, end)| Span { start, end })
            .collect();
        result
    }

    /// Indexes of the leaves that may have a key from `from` on.
    pub(super) fn from(&self, from: &Key) -> usize {
        let ends = |leaf: &Leaf| leaf.span.end.is_some_and(|end| end <= *from);
        self.leaves.partition_point(ends)
    }

    /// Whether an older leaf fills a gap at this key. Newer items may be missing there, and deleted
    /// ones may be in it.
    pub(super) fn is_older(&self, key: &Key) -> bool {
        let ends = |span: &Span| span.end.is_some_and(|end| end <= *key);
        let at = self.older.partition_point(ends);
        self.older.get(at).is_some_and(|span| span.meets(key, key))
    }

    /// The first lost range with a key of this range, both ends included.
    pub(super) fn lost_in(&self, from: &Key, to: &Key) -> Option<&Span> {
        let ends = |span: &Span| span.end.is_some_and(|end| end <= *from);
        let at = self.lost.partition_point(ends);
        self.lost.get(at).filter(|span| span.meets(from, to))
    }
}

struct Build<'b> {
    nodes: &'b Nodes,
    result: Leaves,
    /// Blocks of the walk.
    visited: HashSet<(u64, u64)>,
    /// Ranges without leaf: start and end.
    gaps: BTreeMap<Key, Option<Key>>,
}

impl Build<'_> {
    fn lose(&mut self, span: Span) {
        if !span.is_empty() {
            self.gaps.insert(span.start, span.end);
        }
    }

    fn leaf(&mut self, node: &Node, span: Span) {
        self.result.leaves.push(Leaf {
            span,
            logical: node.logical,
            generation: node.generation,
        });
    }

    /// Takes everything below a root. Every key is then in a leaf's span or in a gap.
    fn walk(&mut self, root: RootPtr, span: Span) {
        let mut todo = vec![(root, span)];
        while let Some((ptr, span)) = todo.pop() {
            if span.is_empty() {
                continue;
            }
            self.result.pointers += 1;
            let found = self.nodes.find(&ptr);
            let fresh = self.visited.insert((ptr.logical, ptr.generation));
            let Some(node) = found.filter(|_| fresh) else {
                self.result.missing += 1;
                self.lose(span);
                continue;
            };
            if node.level == 0 {
                self.leaf(&node, span);
                continue;
            }
            todo.extend(self.nodes.children(&node, &span, true));
        }
    }

    fn fill(&mut self, orphans: Orphans) {
        if self.gaps.is_empty() {
            return;
        }
        let mut visited = HashSet::new();
        let candidates = self.nodes.index.of_owner(orphans.owner);
        let candidates = candidates.filter(|node| node.generation <= orphans.newest);
        for node in candidates {
            if self.gaps.is_empty() {
                return;
            }
            let span = Span {
                start: node.first(),
                end: match node.level {
                    0 => node.last().successor(),
                    _ => self.nodes.end(node),
                },
            };
            self.cover(*node, span, &mut visited);
        }
    }

    /// Fills gaps in a span from a block and the blocks below it.
    fn cover(&mut self, node: Node, span: Span, visited: &mut HashSet<(u64, u64)>) {
        let mut todo = vec![(node, span)];
        while let Some((node, span)) = todo.pop() {
            let open = self.open_in(&span);
            if open.is_empty() {
                continue;
            }
            if node.level == 0 {
                for gap in open {
                    self.leaf(&node, gap);
                    self.close(&gap);
                    self.result.older.push(gap);
                }
                continue;
            }
            if !visited.insert((node.logical, node.generation)) {
                continue;
            }
            let children = self.nodes.children(&node, &span, false);
            let found = children
                .into_iter()
                .filter_map(|(ptr, span)| Some((self.nodes.find(&ptr)?, span)));
            todo.extend(found);
        }
    }

    /// The gaps within a span.
    fn open_in(&self, span: &Span) -> Vec<Span> {
        if span.is_empty() {
            return Vec::new();
        }
        let before = self.gaps.range(..=span.start).next_back();
        let first = before.map_or(span.start, |(start, _)| *start);
        let gaps = self.gaps.range(first..).map(|(start, end)| Span {
            start: *start,
            end: *end,
        });
        gaps.take_while(|gap| span.end.is_none_or(|end| gap.start < end))
            .map(|gap| gap.and(span))
            .filter(|gap| !gap.is_empty())
            .collect()
    }

    /// Removes a range, which is part of one gap, from the gaps.
    fn close(&mut self, span: &Span) {
        let Some((start, end)) = self.gaps.range(..=span.start).next_back() else {
            return;
        };
        let (start, end) = (*start, *end);
        self.gaps.remove(&start);
        let before = Span {
            start,
            end: Some(span.start),
        };
        self.lose(before);
        if let Some(rest) = span.end {
            self.lose(Span { start: rest, end });
        }
    }
}
