//! Space: block groups, free space, allocation, the extent tree and its delayed refs, the
//! free-space tree, chunks, reservations.
//!
//! # How it works
//! An extent is *reserved* in the memory of its block group, *inserted* into the extent tree
//! when its delayed refs run, and *pinned* after its last ref was dropped until that is durable
//! (see [`info`] for the sums). The trees that record space use space themselves: running delayed
//! refs, writing free-space items and block-group items, inserting chunks all repeat until nothing
//! is left to write; this ends because a tree block is copied at most once in a transaction.

pub(crate) mod api;
pub(crate) mod delayed;
pub(crate) mod extent_refs;
pub(crate) mod free_space;
pub(crate) mod group;
pub(crate) mod info;
pub(crate) mod pinned;
pub(crate) mod range_set;

pub(crate) use api::Space;
pub(crate) use delayed::DelayedRefs;
pub(crate) use info::{DataReservation, MetadataReservation};
pub(crate) use pinned::Pinned;
