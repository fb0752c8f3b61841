//! The library face of Sapwood.
