//! Accounting of one transaction.
//!
//! # How it works
//! For each extent whose refs changed, the owners as of the last commit and the owners now are
//! compared. A group references an extent if one of its subvolumes is an owner, and has it
//! exclusively if all owners are its subvolumes.
//!
//! A snapshot adds an owner to every extent of its source, most of which no ref shows. Let R be the
//! source and S the snapshot. The extents of R that did not change are its former sum without the
//! changed ones. They become referenced by S, and exclusive to none of the two. A group that has
//! both subvolumes keeps its sums. A group that has one of them gets the right numbers only if no
//! other member shares extents with R; otherwise they are unknown.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::owners::{Finder, Owners, Trees};
use super::table::{Table, level};
use crate::Result;
use crate::space::Extent;

/// Bytes of changed extents, of one group.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    old_referenced: u64,
    new_referenced: u64,
    old_exclusive: u64,
    new_exclusive: u64,
}

/// A snapshot of a transaction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    /// Subvolume that was copied.
    pub(super) source: u64,
    /// The copy.
    pub(super) id: u64,
}

/// Bytes of extents by their owners before and after.
pub(super) type Moves = HashMap<(Owners, Owners), u64>;

/// Compares the owners of changed extents. The transaction is at rest, and no ref is pending.
///
/// # Errors
/// The errors of [`Finder::owners`].
pub(super) fn compare(trees: Trees<'_>, extents: &[Extent]) -> Result<Moves> {
    let mut before = Finder::new(trees, true);
    let mut now = Finder::new(trees, false);
    let mut moves = Moves::new();
    for extent in extents {
        // Also with the same owners: the unchanged extents of a snapshot's source are the rest.
        let pair = (before.owners(extent)?, now.owners(extent)?);
        let bytes = moves.entry(pair).or_default();
        *bytes = bytes.saturating_add(extent.len);
    }
    Ok(moves)
}

/// Changes the groups' numbers. Returns the groups that changed.
///
/// # Errors
/// The reason why the numbers are unknown; the groups may be changed in part then.
pub(super) fn apply(
    table: &mut Table,
    moves: &Moves,
    taken: &[Taken],
) -> std::result::Result<BTreeSet<u64>, &'static str> {
    let sums = sums(table, moves);
    let before: BTreeMap<u64, (u64, u64)> = affected(table, &sums, taken)
        .into_iter()
        .filter_map(|id| {
            let group = table.groups.get(&id)?;
            Some((id, (group.referenced, group.exclusive)))
        })
        .collect();
    let unknown = "its numbers contradict the trees";
    for (id, (referenced, exclusive)) in &before {
        let sums = sums.get(id).copied().unwrap_or_default();
        let changed = |all: u64, old, new| all.checked_sub(old).and_then(|n| n.checked_add(new));
        let group = table.groups.get_mut(id).ok_or(unknown)?;
        group.referenced =
            changed(*referenced, sums.old_referenced, sums.new_referenced).ok_or(unknown)?;
        group.exclusive =
            changed(*exclusive, sums.old_exclusive, sums.new_exclusive).ok_or(unknown)?;
    }
    for snapshot in taken {
        let rest = |id: u64| {
            let (referenced, exclusive) = before.get(&id).copied().ok_or(unknown)?;
            let sums = sums.get(&id).copied().unwrap_or_default();
            let referenced = referenced.checked_sub(sums.old_referenced);
            let exclusive = exclusive.checked_sub(sums.old_exclusive);
            referenced.zip(exclusive).ok_or(unknown)
        };
        share(table, snapshot, taken, rest)?;
    }
    let changed = before.into_iter().filter(|(id, numbers)| {
        let group = table.groups.get(id);
        group.is_some_and(|group| (group.referenced, group.exclusive) != *numbers)
    });
    Ok(changed.map(|(id, _)| id).collect())
}

/// Accounts for the unchanged extents that a snapshot shares with its source. `rest`: referenced
/// and exclusive bytes of a group's unchanged extents before.
fn share(
    table: &mut Table,
    snapshot: &Taken,
    all: &[Taken],
    rest: impl Fn(u64) -> std::result::Result<(u64, u64), &'static str>,
) -> std::result::Result<(), &'static str> {
    let hierarchy = table.hierarchy.clone();
    let of_source = hierarchy.with_ancestors(snapshot.source);
    let of_copy = hierarchy.with_ancestors(snapshot.id);
    let shared = rest(snapshot.source)?.0;
    let siblings: BTreeSet<u64> = all
        .iter()
        .filter(|other| other.source == snapshot.source)
        .map(|other| other.id)
        .collect();
    // Another member with extents might share some with the source.
    let others = |table: &Table, group: u64| {
        let mut members = hierarchy.subvolumes(group).into_iter();
        members.any(|id| {
            id != snapshot.source
                && !siblings.contains(&id)
                && table
                    .groups
                    .get(&id)
                    .is_none_or(|group| group.referenced > 0)
        })
    };
    for id in of_source.difference(&of_copy) {
        let Some((_, exclusive)) = table
            .groups
            .contains_key(id)
            .then(|| rest(*id))
            .transpose()?
        else {
            continue;
        };
        if exclusive > 0 && others(table, *id) {
            return Err("a snapshot left a group of its source");
        }
        // An earlier snapshot of this source may have taken them already.
        let first = first_outside(&hierarchy, *id, snapshot, all);
        if let Some(group) = table.groups.get_mut(id).filter(|_| first) {
            group.exclusive = group.exclusive.saturating_sub(exclusive);
        }
    }
    for id in of_copy.difference(&of_source) {
        if level(*id) > 0 && shared > 0 && others(table, *id) {
            return Err("a snapshot came into a group without its source");
        }
        let first = all.iter().find(|other| {
            other.source == snapshot.source && hierarchy.subvolumes(*id).contains(&other.id)
        });
        let is_first = first.is_some_and(|other| other.id == snapshot.id);
        if let Some(group) = table.groups.get_mut(id).filter(|_| is_first) {
            group.referenced = group.referenced.saturating_add(shared);
        }
    }
    Ok(())
}

/// Whether a snapshot is the first of its source outside a group.
fn first_outside(
    hierarchy: &super::table::Hierarchy,
    group: u64,
    snapshot: &Taken,
    all: &[Taken],
) -> bool {
    let inside = hierarchy.subvolumes(group);
    let first = all
        .iter()
        .find(|other| other.source == snapshot.source && !inside.contains(&other.id));
    first.is_some_and(|other| other.id == snapshot.id)
}

/// Groups whose numbers may change.
fn affected(table: &Table, sums: &HashMap<u64, Sums>, taken: &[Taken]) -> BTreeSet<u64> {
    let mut all: BTreeSet<u64> = sums.keys().copied().collect();
    for snapshot in taken {
        all.extend(table.hierarchy.with_ancestors(snapshot.source));
        all.extend(table.hierarchy.with_ancestors(snapshot.id));
    }
    all
}

fn sums(table: &Table, moves: &Moves) -> HashMap<u64, Sums> {
    let mut sums: HashMap<u64, Sums> = HashMap::new();
    for ((before, now), bytes) in moves {
        for (owners, is_old) in [(before, true), (now, false)] {
            // How many of the owners each group has.
            let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
            for owner in owners.iter() {
                for group in table.hierarchy.with_ancestors(*owner) {
                    *counts.entry(group).or_default() += 1;
                }
            }
            for (group, count) in counts {
                let sums = sums.entry(group).or_default();
                let (referenced, exclusive) = if is_old {
                    (&mut sums.old_referenced, &mut sums.old_exclusive)
                } else {
                    (&mut sums.new_referenced, &mut sums.new_exclusive)
                };
                *referenced = referenced.saturating_add(*bytes);
                if count == owners.len() {
                    *exclusive = exclusive.saturating_add(*bytes);
                }
            }
        }
    }
    sums
}
