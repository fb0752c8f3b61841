//! ext4 on disk: structures, checksums, validators, readable dumps. No I/O.
