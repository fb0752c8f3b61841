//! Names in directories.

mod htree;
mod inline;
mod linear;
mod list;
mod names;
mod shape;
#[cfg(test)]
mod tests;

pub(crate) use list::readdir;
pub(crate) use names::{
    Absent, CHANGE_CREDITS, NameCost, Present, absent, credits, find, init, insert, insert_absent,
    is_empty, parent, present, remove, remove_present, replace, room, room_absent, set_parent,
};
pub(crate) use shape::{Found, format_of, seal_leaf, seal_node};
