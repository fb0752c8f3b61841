//! The data path's state of one file in memory.
//!
//! [`FileData`] is a part of every inode. Bytes of a write are *dirty* first. Writeback takes them
//! out as a range *in flight*. The range gets an *ordered extent* when its place on disk is
//! decided, and ends when the tree has it. The *extent maps* cache the tree's extents.

mod extent_map;
mod in_flight;
mod modified;
mod ordered;
mod slice;
mod state;

pub(crate) use extent_map::{Content, ExtentMap, Stored};
pub(crate) use in_flight::Ready;
pub(crate) use modified::ModifiedMap;
pub(crate) use ordered::{InFlightId, OrderedExtent, Target};
pub(crate) use slice::{Slice, cut};
pub(crate) use state::{DataState, FileData};
