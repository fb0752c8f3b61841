//! [`Oracle`]: what must and what may be there after a crash.
//!
//! # How it works
//! At a crash, operations `1..=done` had returned and `1..=begun` had begun. States `floor` to
//! `begun` of the history are *possible*, where `floor` is the last sync that had returned. A
//! recovered tree is right if
//! - it has nothing else: each inode, name, owner, attribute, time, size and each sector of a file
//!   is as in a possible state;
//! - it has lost nothing: an inode that had a name in all possible states has one;
//! - each rename happened completely or not at all: two names of an inode are there together only
//!   if a possible state has both;
//! - it keeps the guarantees of the calls that had returned:
//!   - fsync of an inode: its content, owner, attributes and times are not older than the fsync; it
//!     has exactly the names of the fsync, apart from later changes;
//!   - fsync of a directory: the same for the names in it;
//!   - fdatasync: the same for the content only, and a new file has a name;
//!   - fsync of an inode without a name: the names that it had do not come back.
//!
//! A recovery sets some times, as the kernel's does: on btrfs the ctime of an inode that loses a
//! name by a log without the inode, on ext4 mtime and ctime of a directory whose names a fast
//! commit changes. Such a time is the time of the recovery.
//!
//! Files and names are compared one by one, because a log holds single inodes and names: two files
//! may be as of different states. The rule of the fsync limits the combinations within one file.
//!
//! The number of a removed inode may come back as another inode, also of another kind: the
//! recovered inode is compared with the versions of its kind.
//!
//! With several threads, a commit may happen in the middle of a write that makes a file longer.
//! Then any size up to the new one is possible.
//!
//! Each rule has a test in `tests/oracle.rs` that breaks it.

use std::collections::{BTreeMap, BTreeSet};

use sapwood_testing::tree::{Tree, TreeInode, TreeName};
use sapwood_vfs::{FileKind, Ino, Timestamp};

use crate::engine::Format;
use crate::record::{Lane, Progress, Promise};

/// Unit that is written whole. For files that are overwritten in place even that is not guaranteed.
const SECTOR: usize = 512;

/// Checks the recovered state of one thread's operations. An oracle is made once and used for many
/// crashes.
#[derive(Debug)]
pub struct Oracle<'a> {
    engine: Format,
    root: Ino,
    shared: bool,
    states: &'a [Tree],
    promises: &'a [Promise],
    recovery: Option<(Timestamp, Timestamp)>,
    names: Vec<BTreeMap<Ino, Vec<TreeName>>>,
}

/// A moment in a history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moment {
    /// Numbers of the operations that had returned, from 0.
    pub returned: Vec<usize>,
    /// The last possible state.
    pub last: usize,
}

/// The oldest possible state for parts of one inode.
#[derive(Debug, Clone, Copy)]
struct Since {
    all: usize,
    content: usize,
    /// The last fsync, if one returned since the floor.
    fsync: Option<usize>,
    /// The last fdatasync, likewise.
    fdatasync: Option<usize>,
}

impl<'a> Oracle<'a> {
    /// An oracle for the history of one thread.
    #[must_use]
    pub fn new(lane: &'a Lane) -> Self {
        Self {
            engine: lane.engine,
            root: lane.root,
            shared: lane.shared,
            states: &lane.states,
            promises: &lane.promises,
            recovery: lane.recovery,
            names: lane.states.iter().map(Tree::names).collect(),
        }
    }

    /// The directory below which the thread worked.
    #[must_use]
    pub fn root(&self) -> Ino {
        self.root
    }

    /// The mistakes in a recovered tree; empty if there are none.
    #[must_use]
    pub fn judge(&self, found: &Tree, progress: Progress) -> Vec<String> {
        let moment = Moment {
            returned: (0..progress.done.min(self.promises.len())).collect(),
            last: progress.begun,
        };
        self.judge_at(found, &moment)
    }

    /// The same at any moment of the history.
    #[must_use]
    pub fn judge_at(&self, found: &Tree, moment: &Moment) -> Vec<String> {
        let returned = moment.returned.iter();
        let returned = returned.filter_map(|index| Some((*index, *self.promises.get(*index)?)));
        let returned: Vec<(usize, Promise)> = returned.collect();
        let syncs = returned.iter().filter(|(_, what)| *what == Promise::All);
        let view = View {
            oracle: self,
            found,
            found_names: found.names(),
            floor: syncs.map(|(index, _)| index + 1).max().unwrap_or(0),
            last: moment.last.min(self.states.len() - 1),
            returned,
        };
        let mut wrong = Vec::new();
        view.inodes(&mut wrong);
        view.lost(&mut wrong);
        view.directories(&mut wrong);
        view.promised_names(&mut wrong);
        wrong
    }
}

struct View<'a> {
    oracle: &'a Oracle<'a>,
    found: &'a Tree,
    found_names: BTreeMap<Ino, Vec<TreeName>>,
    floor: usize,
    last: usize,
    /// Operations that had returned, with their guarantees.
    returned: Vec<(usize, Promise)>,
}

impl View<'_> {
    fn since(&self, ino: Ino) -> Since {
        let mut since = Since {
            all: self.floor,
            content: self.floor,
            fsync: None,
            fdatasync: None,
        };
        for (index, promise) in &self.returned {
            let state = index + 1;
            if state <= self.floor {
                continue;
            }
            if ino != self.oracle.root && self.names_in(state, ino).is_empty() {
                continue;
            }
            if *promise == Promise::Inode(ino) {
                since = Since {
                    all: state,
                    content: state,
                    fsync: Some(state),
                    fdatasync: since.fdatasync,
                };
            } else if *promise == Promise::Data(ino) {
                since.content = state;
                since.fdatasync = Some(state);
            }
        }
        since
    }

    /// The inode in the possible states, beginning at `from`.
    fn versions(&self, ino: Ino, from: usize) -> impl Iterator<Item = &TreeInode> {
        let states = self.oracle.states.get(from..=self.last).unwrap_or_default();
        states.iter().filter_map(move |state| state.node(ino))
    }

    fn names_in(&self, state: usize, ino: Ino) -> &[TreeName] {
        let names = self.oracle.names.get(state);
        names
            .and_then(|names| names.get(&ino))
            .map_or(&[], Vec::as_slice)
    }

    /// The inodes that a name leads to in the possible states, beginning at `from`.
    fn values(&self, dir: Ino, name: &[u8], from: usize) -> BTreeSet<Option<Ino>> {
        let states = self.oracle.states.get(from..=self.last).unwrap_or_default();
        states.iter().map(|state| state.find(dir, name)).collect()
    }

    fn inodes(&self, wrong: &mut Vec<String>) {
        for (ino, node) in &self.found.nodes {
            let what = self.shown(*ino);
            let since = self.since(*ino);
            let mut versions = self.versions(*ino, self.floor).peekable();
            let Some(first) = versions.peek().map(|first| first.kind) else {
                wrong.push(format!("{what}: a stranger"));
                continue;
            };
            if !versions.any(|version| version.kind == node.kind) {
                wrong.push(format!("{what}: is {:?}, was {first:?}", node.kind));
                continue;
            }
            let mut owners = self.versions(*ino, since.all);
            if !owners.any(|version| version.owner == node.owner) {
                wrong.push(format!(
                    "{what}: owner and mode {:?} as of no possible state",
                    node.owner
                ));
            }
            let mut attributes = self.versions(*ino, since.all);
            if !attributes.any(|version| version.xattrs == node.xattrs) {
                let names = node
                    .xattrs
                    .keys()
                    .map(|name| name.escape_ascii().to_string());
                let names: Vec<String> = names.collect();
                wrong.push(format!(
                    "{what}: attributes {names:?} as of no possible state"
                ));
            }
            if let Some(why) = self.times(*ino, node, since.all) {
                wrong.push(format!("{what}: {why}"));
            }
            if let Some(why) = self.content(*ino, node, since.content) {
                wrong.push(format!("{what}: {why}"));
            }
            let names = self.found_names.get(ino).map_or(0, Vec::len);
            if node.kind != FileKind::Directory && node.nlink as usize != names {
                wrong.push(format!("{what}: link count {}, {names} names", node.nlink));
            }
        }
    }

    /// Each time is compared by itself with the possible states.
    fn times(&self, ino: Ino, node: &TreeInode, since: usize) -> Option<String> {
        let versions = self.versions(ino, since);
        let versions = versions.filter(|version| version.kind == node.kind);
        let versions: Option<Vec<_>> = versions
            .map(|version| Some(version.times?.named()))
            .collect();
        let (versions, times) = (versions?, node.times?.named());
        let mut times = times.into_iter().enumerate();
        let possible = |number: usize, (name, time)| {
            let mut versions = versions.iter().filter_map(|version| version.get(number));
            let new = self
                .found
                .recovered
                .is_some_and(|began| Some(began) <= time);
            // A recovery that a crash interrupts starts again, and sets its times again.
            let again = |possible| {
                let recovery = self.oracle.recovery;
                new && recovery
                    .is_some_and(|(began, end)| Some(began) <= possible && possible <= Some(end))
            };
            new && self.recovery_sets(ino, name, since)
                || versions.any(|(_, possible)| *possible == time || again(*possible))
        };
        let (_, (name, time)) = times.find(|(number, named)| !possible(*number, *named))?;
        Some(format!("{name} {time:?} as of no possible state"))
    }

    /// True if a recovery may set this time, as the kernel's does.
    fn recovery_sets(&self, ino: Ino, name: &str, since: usize) -> bool {
        match (self.oracle.engine, name) {
            (Format::Btrfs, "ctime") => (since..self.last).any(|state| {
                let after = self.names_in(state + 1, ino);
                let mut before = self.names_in(state, ino).iter();
                before.any(|place| !after.contains(place))
            }),
            (Format::Ext4, "ctime" | "mtime") => {
                let mut versions = self.versions(ino, self.floor);
                let first = versions.next().map(|version| &version.entries);
                versions.any(|version| Some(&version.entries) != first)
            }
            _ => false,
        }
    }

    fn content(&self, ino: Ino, node: &TreeInode, since: usize) -> Option<String> {
        let versions: Vec<&[u8]> = self
            .versions(ino, since)
            .filter(|version| version.kind == node.kind)
            .map(|version| &*version.content)
            .collect();
        if versions.iter().any(|version| *version == &*node.content) {
            return None;
        }
        if node.kind == FileKind::Symlink {
            return Some(format!("target {}", node.content.escape_ascii()));
        }
        let size = node.content.len();
        let growing = |pair: &[&[u8]]| match pair {
            [before, after] => self.oracle.shared && before.len() < size && size <= after.len(),
            _ => false,
        };
        let was = versions.iter().any(|version| version.len() == size);
        if !was && !versions.windows(2).any(growing) {
            let sizes: BTreeSet<usize> = versions.iter().map(|version| version.len()).collect();
            return Some(format!("size {size}, possible are {sizes:?}"));
        }
        let possible = |at: usize, sector: &[u8]| {
            versions.iter().any(|version| {
                let there = version.get(at..).unwrap_or_default();
                let there = &there[..there.len().min(sector.len())];
                let (head, tail) = sector.split_at(there.len());
                head == there && tail.iter().all(|byte| *byte == 0)
            })
        };
        let sectors = node.content.chunks(SECTOR).enumerate();
        let mut sectors = sectors.map(|(number, sector)| (number * SECTOR, sector));
        let (at, sector) = sectors.find(|(at, sector)| !possible(*at, sector))?;
        let begin: Vec<u8> = sector.iter().take(4).copied().collect();
        Some(format!(
            "content at {at} ({begin:?}...) as of no possible state"
        ))
    }

    /// An inode that had a name in all possible states must still have one.
    fn lost(&self, wrong: &mut Vec<String>) {
        let Some(first) = self.oracle.states.get(self.floor) else {
            return;
        };
        for ino in first.nodes.keys() {
            let states = self.floor..=self.last;
            let mut states = states.filter_map(|state| self.oracle.states.get(state));
            let always = states.all(|state| state.nodes.contains_key(ino));
            if always && !self.found.nodes.contains_key(ino) {
                wrong.push(format!("{}: lost", self.shown(*ino)));
            }
        }
    }

    /// Each name must lead to the inode of a possible state.
    fn directories(&self, wrong: &mut Vec<String>) {
        let mut places: BTreeSet<TreeName> = BTreeSet::new();
        let states = self
            .oracle
            .states
            .get(self.floor..=self.last)
            .unwrap_or_default();
        for state in states.iter().chain([self.found]) {
            for (dir, node) in &state.nodes {
                if self.found.nodes.contains_key(dir) {
                    places.extend(node.entries.keys().map(|name| (*dir, name.clone())));
                }
            }
        }
        for (dir, name) in places {
            let there = self.found.find(dir, &name);
            let possible = self.values(dir, &name, self.since(dir).all);
            if !possible.contains(&there) {
                let shown = self.shown_place(&(dir, name));
                wrong.push(format!(
                    "{shown} leads to {there:?}, possible are {possible:?}"
                ));
            }
        }
        for (ino, names) in &self.found_names {
            // Usually one state has all the names, and so each pair of them.
            let all_at_once = |state| {
                let there: BTreeSet<&TreeName> = self.names_in(state, *ino).iter().collect();
                names.iter().all(|name| there.contains(name))
            };
            if (self.floor..=self.last).any(all_at_once) {
                continue;
            }
            for (number, a) in names.iter().enumerate() {
                let together = |b: &TreeName| {
                    (self.floor..=self.last).any(|state| {
                        let names = self.names_in(state, *ino);
                        names.contains(a) && names.contains(b)
                    })
                };
                if let Some(b) = names.iter().skip(number + 1).find(|b| !together(b)) {
                    let (a, b) = (self.shown_place(a), self.shown_place(b));
                    wrong.push(format!("{ino}: both {a} and {b} are there"));
                }
            }
        }
    }

    /// Checks the names of inodes that were fsynced.
    fn promised_names(&self, wrong: &mut Vec<String>) {
        let promises = self.returned.iter();
        let promised: BTreeSet<Ino> = promises
            .filter(|(index, _)| *index >= self.floor)
            .filter_map(|(_, promise)| match promise {
                Promise::Inode(ino) | Promise::Data(ino) => Some(*ino),
                Promise::Nothing | Promise::All => None,
            })
            .collect();
        for (index, promise) in &self.returned {
            let state = index + 1;
            if state > self.floor
                && let Promise::Inode(ino) = promise
                && *ino != self.oracle.root
                && self.names_in(state, *ino).is_empty()
            {
                self.names_since(*ino, state, wrong);
            }
        }
        for ino in promised {
            let since = self.since(ino);
            if let Some(fsync) = since.fsync {
                self.names_since(ino, fsync, wrong);
            }
            if let Some(fdatasync) = since.fdatasync
                && self.names_in(self.floor, ino).is_empty()
                && (fdatasync..=self.last).all(|state| !self.names_in(state, ino).is_empty())
                && !self.found.nodes.contains_key(&ino)
            {
                wrong.push(format!("{}: no name after fdatasync", self.shown(ino)));
            }
        }
    }

    fn names_since(&self, ino: Ino, fsync: usize, wrong: &mut Vec<String>) {
        for (dir, name) in self.names_in(fsync, ino) {
            let there = self.found.find(*dir, name);
            let possible = self.values(*dir, name, fsync);
            if !possible.contains(&there) {
                let place = self.shown_place(&(*dir, name.clone()));
                wrong.push(format!(
                    "{place} leads to {there:?}; as of the fsync of {ino} possible are {possible:?}"
                ));
            }
        }
        for place in self.found_names.get(&ino).into_iter().flatten() {
            let possible =
                (fsync..=self.last).any(|state| self.names_in(state, ino).contains(place));
            if !possible {
                let place = self.shown_place(place);
                wrong.push(format!(
                    "{place} leads to {ino}, which had lost it before its fsync"
                ));
            }
        }
    }

    /// An inode with one of its present or past names.
    fn shown(&self, ino: Ino) -> String {
        let found = self.found_names.get(&ino).into_iter().flatten();
        let states = (self.floor..=self.last).flat_map(|state| self.names_in(state, ino));
        match found.chain(states).next() {
            Some(place) => format!("{} ({ino})", self.shown_place(place)),
            None => format!("inode {ino}"),
        }
    }

    fn shown_place(&self, (dir, name): &TreeName) -> String {
        format!("{dir}/{}", name.escape_ascii())
    }
}
