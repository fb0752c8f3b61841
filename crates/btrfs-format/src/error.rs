//! What can be wrong with the bytes of one item.

use thiserror::Error;

/// An item whose bytes do not parse. The caller knows the key and names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ItemError {
    /// Fewer bytes than the fixed part (or a length in it) asks for.
    #[error("{what}: {found} bytes where {need} are needed")]
    Short {
        /// Struct or part that did not fit.
        what: &'static str,
        /// Bytes needed.
        need: usize,
        /// Bytes there.
        found: usize,
    },
    /// The item's size is not the one its kind has.
    #[error("{what}: size {found}, expected {expected}")]
    Size {
        /// Struct or part.
        what: &'static str,
        /// Size that the kind has.
        expected: usize,
        /// Size of the item.
        found: usize,
    },
    /// A field holds a value that it cannot have.
    #[error("{what}: bad {field} {value:#x}")]
    Value {
        /// Struct or part.
        what: &'static str,
        /// Name of the field.
        field: &'static str,
        /// What it holds.
        value: u64,
    },
}
