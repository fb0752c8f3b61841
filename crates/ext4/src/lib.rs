//! The ext4 engine: volume, journal, allocators, mapping, data, operations.
