//! Checks that need all names: paths from the root, parents, link counts.

use std::collections::HashMap;
use std::sync::Arc;

use sapwood_ext4_format::{RoCompat, dir_type, special_ino};

use super::finding::Finding;
use super::notes::{Note, Parents};
use super::state::{Check, View};

/// Most links that an inode counts. A directory with more has 1.
const MOST_LINKS: u64 = 65_000;

impl Check<'_> {
    /// Checks positions and links of all inodes.
    pub(super) fn connect(&mut self) {
        let view = Arc::clone(&self.view);
        self.named_inodes(&view);
        let looped = loops(&self.parents);
        for group in 0..view.geometry.group_count() {
            for index in 0..self.inodes.group(group).len() {
                let Some(ino) = view.geometry.ino(group, index as u32) else {
                    continue;
                };
                let note = self.inodes.get(ino);
                if !note.in_use || note.bad {
                    continue;
                }
                if note.kind == dir_type::DIRECTORY {
                    self.place(ino, looped.contains_key(&ino));
                }
                self.links(&view, ino, note);
            }
        }
    }

    fn place(&mut self, ino: u32, looped: bool) {
        let parents = self.parents.get(&ino).copied().unwrap_or_default();
        if looped {
            self.found(Finding::DirectoryLoop { ino });
        }
        let (names, expected) = (parents.names, parents.named_in);
        if ino == special_ino::ROOT {
            if names > 0 {
                self.found(Finding::DirectoryNames {
                    ino,
                    names: names.saturating_add(1),
                });
            }
            if parents.dotdot != ino && parents.dotdot != 0 {
                self.found(Finding::DotDotWrong {
                    dir: ino,
                    found: parents.dotdot,
                    expected: ino,
                });
            }
            return;
        }
        if names > 1 {
            self.found(Finding::DirectoryNames { ino, names });
        }
        if expected != 0 && parents.dotdot != 0 && parents.dotdot != expected {
            self.found(Finding::DotDotWrong {
                dir: ino,
                found: parents.dotdot,
                expected,
            });
        }
    }

    fn links(&mut self, view: &View, ino: u32, note: Note) {
        let reserved = ino < view.geometry.first_ino() && ino != special_ino::ROOT;
        if reserved || note.orphan || note.is_value || self.is_named(view, ino) {
            return;
        }
        let directory = note.kind == dir_type::DIRECTORY;
        let names = if directory && ino != special_ino::ROOT {
            self.parents.get(&ino).map_or(0, |parents| parents.names)
        } else {
            note.names
        };
        if names == 0 {
            if !self.names_incomplete {
                self.found(Finding::Unattached { ino });
            }
            return;
        }
        let mut expected = u64::from(note.names);
        if directory && expected >= MOST_LINKS {
            expected = 1;
        }
        let found = u32::from(note.links);
        let features = view.geometry.features();
        let overflowed = directory && found == 1 && features.has_ro_compat(RoCompat::DIR_NLINK);
        if u64::from(found) != expected && !overflowed && !self.names_incomplete {
            self.found(Finding::LinkCount {
                ino,
                found,
                expected,
            });
        }
    }
}

/// Directories from which the names do not lead up to a directory without a name.
fn loops(parents: &HashMap<u32, Parents>) -> HashMap<u32, ()> {
    #[derive(Clone, Copy, PartialEq)]
    enum State {
        OnPath,
        Good,
        Looped,
    }
    let mut states: HashMap<u32, State> = HashMap::new();
    states.insert(special_ino::ROOT, State::Good);
    for start in parents.keys() {
        let (mut at, mut path) = (*start, Vec::new());
        let end = loop {
            match states.get(&at) {
                Some(State::OnPath | State::Looped) => break State::Looped,
                Some(State::Good) => break State::Good,
                None => {}
            }
            states.insert(at, State::OnPath);
            path.push(at);
            match parents.get(&at).map_or(0, |one| one.named_in) {
                // An inode without a name is unattached, which is another finding.
                0 => break State::Good,
                up => at = up,
            }
        };
        for dir in path {
            states.insert(dir, end);
        }
    }
    let looped = states
        .into_iter()
        .filter(|(_, state)| *state == State::Looped);
    looped.map(|(dir, _)| (dir, ())).collect()
}
