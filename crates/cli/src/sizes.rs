//! Sizes as arguments of commands.

use sapwood::internal::options::parse_size;

/// The bytes of a size with an optional unit: `4096`, `64k`, `1.5G`.
///
/// # Errors
/// A text for the user.
pub(super) fn size(text: &str) -> Result<u64, String> {
    parse_size(text)
        .ok_or_else(|| format!("{text} is not a size: bytes, or a number with k, M, G or T"))
}
