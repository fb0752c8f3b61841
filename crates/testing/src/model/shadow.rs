//! A guess of the tree that the operations so far have left: the generator chooses its paths by it.

use super::generate::SLOTS;
use crate::op::{Op, Target};

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

/// A guess: an operation may fail for a reason that the shadow does not know. The generator then
/// chooses some bad paths.
#[derive(Debug, Clone, Default)]
pub(super) struct Shadow {
    pub(super) known: Vec<(String, Class)>,
    pub(super) held: [Option<Class>; SLOTS],
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or(".", |(dir, _)| dir)
}

/// The rest of a path that leads to a directory or into it.
fn below<'a>(path: &'a str, dir: &str) -> Option<&'a str> {
    let rest = path.strip_prefix(dir)?;
    (rest.is_empty() || rest.starts_with('/')).then_some(rest)
}

impl Shadow {
    fn class(&self, place: &str) -> Option<Class> {
        let found = self.known.iter().find(|(known, _)| known == place);
        found.map(|(_, class)| *class)
    }

    fn class_of(&self, subject: &Target) -> Option<Class> {
        match subject {
            Target::Path(place) => self.class(place),
            Target::Held(slot) => self.held.get(*slot).copied().flatten(),
        }
    }

    /// True if the directory of `place` can exist.
    fn has_parent(&self, place: &str) -> bool {
        let dir = parent(place);
        let mut known = self.known.iter();
        dir == "." || known.any(|(place, class)| place == dir && class.is_dir())
    }

    fn is_empty(&self, place: &str) -> bool {
        !self.known.iter().any(|(known, _)| parent(known) == place)
    }

    fn add(&mut self, place: &str, class: Class) {
        if self.has_parent(place) && self.class(place).is_none() {
            self.known.push((place.to_owned(), class));
        }
    }

    /// Removes a place and everything below it.
    fn remove(&mut self, place: &str) {
        self.known
            .retain(|(known, _)| below(known, place).is_none());
    }

    /// Moves a place and everything below it; with `swap`, exchanges two places.
    fn move_to(&mut self, from: &str, to: &str, swap: bool) {
        let renamed = |place: &str, from: &str, to: &str| {
            below(place, from).map(|rest| format!("{to}{rest}"))
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
            Op::Create { at, .. } | Op::Filled { at, .. } => self.add(at, Class::File),
            Op::Mkdir { at, .. } => self.add(at, Class::Dir),
            Op::Symlink { at, .. } | Op::Mknod { at, .. } => self.add(at, Class::Other),
            Op::Tmpfile { slot, .. } => self.hold(*slot, Some(Class::File)),
            Op::Link { from, to } => match self.class_of(from) {
                Some(class) if !class.is_dir() => self.add(to, class),
                _ => {}
            },
            Op::Unlink { at } if self.class(at).is_some_and(|class| !class.is_dir()) => {
                self.remove(at);
            }
            Op::Rmdir { at } => {
                self.held = Default::default();
                if self.class(at).is_some_and(Class::is_dir) && self.is_empty(at) {
                    self.remove(at);
                }
            }
            Op::Rename {
                from,
                to,
                no_replace,
                whiteout,
            } => self.rename(from, to, *no_replace, *whiteout),
            Op::Exchange { a, b } if self.can_move(a, b).is_some() && self.class(b).is_some() => {
                self.move_to(a, b, true);
            }
            Op::Hold { at, slot } => {
                if let Some(class) = self.class(at) {
                    self.hold(*slot, Some(class));
                }
            }
            Op::Release { slot } => self.hold(*slot, None),
            Op::Subvolume { at } => self.add(at, Class::Subvolume),
            Op::Snapshot { source, at, .. } => self.snapshot(source, at),
            Op::DeleteSubvolume { at } => {
                self.held = Default::default();
                if self.class(at) == Some(Class::Subvolume) {
                    self.remove(at);
                }
            }
            _ => {}
        }
    }

    /// The class of a file that may be renamed to another path.
    fn can_move(&self, from: &str, to: &str) -> Option<Class> {
        let inside = below(to, from).is_some() || below(from, to).is_some();
        let class = self.class(from)?;
        (!inside && to != "." && self.has_parent(to)).then_some(class)
    }

    fn rename(&mut self, from: &str, to: &str, no_replace: bool, whiteout: bool) {
        let Some(class) = self.can_move(from, to) else {
            return;
        };
        match self.class(to) {
            Some(_) if no_replace => {}
            Some(target) if target.is_dir() != class.is_dir() || !self.is_empty(to) => {}
            _ => {
                self.remove(to);
                self.move_to(from, to, false);
                if whiteout {
                    self.add(from, Class::Other);
                }
            }
        }
    }

    fn snapshot(&mut self, source: &str, to: &str) {
        self.held = Default::default();
        let from = self.class(source);
        if source != "." && from != Some(Class::Subvolume) {
            return;
        }
        let below = self.known.iter().filter_map(|(place, class)| {
            let moved = match source {
                "." => format!("{to}/{place}"),
                source => format!(
                    "{to}{}",
                    below(place, source).filter(|rest| !rest.is_empty())?
                ),
            };
            Some((moved, *class))
        });
        let below: Vec<_> = below.collect();
        self.add(to, Class::Subvolume);
        for (place, class) in below {
            self.add(&place, class);
        }
    }
}
