//! Errors of parsing one item.

use thiserror::Error;

/// An item whose bytes do not parse. The caller reports its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ItemError {
    /// Fewer bytes than the fixed part, or a length in it, requires.
    #[error("{what}: {found} bytes where {need} are needed")]
    Short {
        /// Struct or part that did not fit.
        what: &'static str,
        /// Bytes needed.
        need: usize,
        /// Length in bytes.
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
    /// A field with an invalid value.
    #[error("{what}: bad {field} {value:#x}")]
    Value {
        /// Struct or part.
        what: &'static str,
        /// Name of the field.
        field: &'static str,
        /// Value of the field.
        value: u64,
    },
}
