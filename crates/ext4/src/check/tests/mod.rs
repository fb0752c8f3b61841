//! Tests of the check.

mod clean;
mod tools;
