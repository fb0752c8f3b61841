//! The library for C: `sapwood.h`, `libsapwood.so` and `libsapwood.a`.
//!
//! Each function checks its arguments, does one thing with the Rust library, and reports an error
//! as a negative errno with a message (`call`). The header is made from this crate by cbindgen
//! (`scripts/header`), so the comments of public items are for C programmers.
//!
//! # Safety
//! A caller of any function keeps the promises at the top of `sapwood.h`: a string ends with a zero
//! byte, a buffer has the given length, a handle came from the function that makes it and was not
//! closed. `NULL` is checked. The modules that take pointers rely on this and on nothing else.

#![allow(
    clippy::missing_safety_doc,
    reason = "one promise for all functions, above"
)]

pub mod build;
pub mod call;
pub mod differences;
pub mod directory;
pub mod file;
pub mod file_system;
pub mod image;
pub mod metadata;
pub mod names;
pub mod transfer;
pub mod xattr;
