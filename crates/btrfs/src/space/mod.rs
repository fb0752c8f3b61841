//! Space: block groups, free space, allocation, the extent tree and its delayed refs, the
//! free-space tree, chunks, reservations.
//!
//! # How it works
//! An extent is *reserved* in the memory of its block group, *inserted* into the extent tree when
//! its delayed refs run, and *pinned* from the drop of its last ref until that is durable (see
//! [`info`] for the sums).
//!
//! The trees that record space use space themselves. So running delayed refs, writing free-space
//! items and block-group items, and inserting chunks repeat until nothing is left to write. This
//! ends because a tree block is copied at most once in a transaction.
//!
//! Locks: one block group at a time, one set of sums at a time, the device map while a chunk is
//! created. None is held during I/O, and none for longer than a search in memory. So everything
//! here except [`reserve`] may be called with tree blocks locked, unless stated otherwise.

mod alloc;
mod cache_v1;
mod chunk;
mod delayed;
mod deletions;
mod device_errors;
mod devices;
mod discard;
mod extent_refs;
mod free_space;
mod free_space_tree;
mod group;
mod info;
mod moving;
mod places;
mod queue;
mod refs;
mod relocate;
mod replace;
mod reserve;
mod run;
mod state;
mod statfs;
mod store;
#[cfg(test)]
mod tests;
mod unpin;
mod write;

pub(crate) use delayed::Extent;
pub(crate) use devices::Layout;
pub(crate) use info::{DataReservation, MetadataReservation, Reservation};
pub(crate) use moving::MovingGroup;
pub(crate) use relocate::{NewPlace, Prefer};
pub(crate) use replace::{Placed, Replaced};
pub(crate) use reserve::Pressure;
pub(crate) use state::Space;
pub(crate) use write::{SpaceChanges, SpaceWrite};
