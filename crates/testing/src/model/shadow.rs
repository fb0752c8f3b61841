//! A guess of the tree that the operations so far have left: the generator chooses its paths by it.

use super::generate::SLOTS;
use super::{Kind, Op, Place, Subject};
use sapwood_vfs::RenameMode;

/// The kind of inode that a name leads to, as precisely as the generator needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    File,
    Dir,
    /// A subvolume, which is a directory too.
    Subvolume,
    Other,
}

impl Class {
    pub(super) fn is_dir(self) -> bool {
        matches!(self, Self::Dir | Self::Subvolume)
    }
}

impl From<Kind> for Class {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Regular => Self::File,
            Kind::Directory => Self::Dir,
            _ => Self::Other,
        }
    }
}

/// A guess: an operation may fail for a reason that the shadow does not know. Then the generator
/// only chooses some paths badly.
#[derive(Debug, Clone, Default)]
pub(super) struct Shadow {
    pub(super) known: Vec<(Place, Class)>,
    pub(super) held: [Option<Class>; SLOTS],
}

fn parent(place: &Place) -> &[&'static str] {
    place.0.split_last().map_or(&[], |(_, dirs)| dirs)
}

impl Shadow {
    fn class(&self, place: &Place) -> Option<Class> {
        let found = self.known.iter().find(|(known, _)| known == place);
        found.map(|(_, class)| *class)
    }

    fn class_of(&self, subject: &Subject) -> Option<Class> {
        match subject {
            Subject::At(place) => self.class(place),
            Subject::Held(slot) => self.held.get(*slot).copied().flatten(),
        }
    }

    /// True if the directory of `place` can exist.
    fn has_parent(&self, place: &Place) -> bool {
        let dir = parent(place);
        let mut known = self.known.iter();
        dir.is_empty() || known.any(|(place, class)| place.0 == dir && class.is_dir())
    }

    fn is_empty(&self, place: &Place) -> bool {
        !self.known.iter().any(|(known, _)| parent(known) == place.0)
    }

    fn add(&mut self, place: &Place, class: Class) {
        if self.has_parent(place) && self.class(place).is_none() {
            self.known.push((place.clone(), class));
        }
    }

    /// Removes a place and everything below it.
    fn remove(&mut self, place: &Place) {
        self.known
            .retain(|(known, _)| !known.0.starts_with(&place.0));
    }

    /// Moves a place and everything below it; with `swap`, exchanges two places.
    fn move_to(&mut self, from: &Place, to: &Place, swap: bool) {
        let renamed = |place: &Place, from: &Place, to: &Place| {
            let rest = place.0.strip_prefix(&from.0[..])?;
            Some(Place([&to.0[..], rest].concat()))
        };
        for (place, _) in &mut self.known {
            if let Some(moved) = renamed(place, from, to) {
                *place = moved;
            } else if swap && let Some(moved) = renamed(place, to, from) {
                *place = moved;
            }
        }
    }

    fn hold(&mut self, slot: usize, class: Option<Class>) {
        if let Some(held) = self.held.get_mut(slot) {
            *held = class;
        }
    }

    /// Applies an operation, as if it succeeded.
    pub(super) fn note(&mut self, op: &Op) {
        match op {
            Op::Create { at, kind, .. } => self.add(at, (*kind).into()),
            Op::Tmpfile { slot, .. } => self.hold(*slot, Some(Class::File)),
            Op::Link { subject, to } => match self.class_of(subject) {
                Some(class) if !class.is_dir() => self.add(to, class),
                _ => {}
            },
            Op::Unlink(at) if self.class(at).is_some_and(|class| !class.is_dir()) => {
                self.remove(at);
            }
            Op::Rmdir(at) => {
                self.held = Default::default();
                if self.class(at).is_some_and(Class::is_dir) && self.is_empty(at) {
                    self.remove(at);
                }
            }
            Op::Rename { from, to, mode } => self.rename(from, to, *mode),
            Op::Hold { at, slot } => {
                if let Some(class) = self.class(at) {
                    self.hold(*slot, Some(class));
                }
            }
            Op::Release(slot) => self.hold(*slot, None),
            Op::CreateSubvolume(at) => self.add(at, Class::Subvolume),
            Op::Snapshot { source, to, .. } => self.snapshot(source, to),
            Op::DeleteSubvolume(at) => {
                self.held = Default::default();
                if self.class(at) == Some(Class::Subvolume) {
                    self.remove(at);
                }
            }
            _ => {}
        }
    }

    fn rename(&mut self, from: &Place, to: &Place, mode: RenameMode) {
        let inside = to.0.starts_with(&from.0) || from.0.starts_with(&to.0);
        let (Some(class), false) = (self.class(from), inside || !self.has_parent(to)) else {
            return;
        };
        match (self.class(to), mode) {
            (Some(_), RenameMode::Exchange) => self.move_to(from, to, true),
            (None, RenameMode::Exchange) | (Some(_), RenameMode::NoReplace) => {}
            (Some(target), _) if target.is_dir() != class.is_dir() || !self.is_empty(to) => {}
            _ => {
                self.remove(to);
                self.move_to(from, to, false);
            }
        }
    }

    fn snapshot(&mut self, source: &Place, to: &Place) {
        self.held = Default::default();
        let from = self.class(source);
        if !source.0.is_empty() && from != Some(Class::Subvolume) {
            return;
        }
        let below = self.known.iter().filter_map(|(place, class)| {
            let rest = place.0.strip_prefix(&source.0[..])?;
            let moved = Place([&to.0[..], rest].concat());
            (!rest.is_empty()).then_some((moved, *class))
        });
        let below: Vec<_> = below.collect();
        self.add(to, Class::Subvolume);
        for (place, class) in below {
            self.add(&place, class);
        }
    }
}
