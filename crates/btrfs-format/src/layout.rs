//! The macros that declare on-disk structs.

/// Declares little-endian, unaligned on-disk structs: derives, size assertion, zeroed `Default`.
///
/// The size is part of the declaration (`struct Name = SIZE { ... }`), so that a change of a field
/// that shifts the following ones does not compile.
macro_rules! disk_struct {
    ($($(#[$meta:meta])* pub struct $name:ident = $size:literal {
        $($(#[$fmeta:meta])* pub $field:ident : $ty:ty),* $(,)?
    })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout)]
        #[derive(zerocopy::Immutable, zerocopy::Unaligned)]
        #[repr(C)]
        pub struct $name { $($(#[$fmeta])* pub $field: $ty),* }

        const _: () = assert!(size_of::<$name>() == $size);

        impl Default for $name {
            fn default() -> Self { zerocopy::FromZeros::new_zeroed() }
        }

        impl $name {
            /// Size on disk in bytes.
            pub const SIZE: usize = $size;

            /// Reads the struct from the front of `bytes` and ignores the rest.
            pub fn read(bytes: &[u8]) -> Result<Self, $crate::ItemError> {
                match <Self as zerocopy::FromBytes>::read_from_prefix(bytes) {
                    Ok((value, _)) => Ok(value),
                    Err(_) => Err($crate::ItemError::Short {
                        what: stringify!($name), need: $size, found: bytes.len(),
                    }),
                }
            }

            /// Borrows the struct and the rest of the bytes.
            pub fn split(bytes: &[u8]) -> Result<(&Self, &[u8]), $crate::ItemError> {
                <Self as zerocopy::FromBytes>::ref_from_prefix(bytes).map_err(|_| {
                    $crate::ItemError::Short {
                        what: stringify!($name), need: $size, found: bytes.len(),
                    }
                })
            }

            /// The struct's bytes on disk.
            pub fn bytes(&self) -> &[u8] { zerocopy::IntoBytes::as_bytes(self) }
        }
    )*};
}
pub(crate) use disk_struct;

/// Asserts field offsets at compile time: `offsets!(Name { field = 12, ... })`.
macro_rules! offsets {
    ($name:ident { $($field:ident = $off:literal),* $(,)? }) => {
        const _: () = { $(assert!(core::mem::offset_of!($name, $field) == $off);)* };
    };
}
pub(crate) use offsets;
