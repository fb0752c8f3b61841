//! fsync: the log trees that make it cheap, and their replay at mount.

pub(crate) mod log;
pub(crate) mod replay;
