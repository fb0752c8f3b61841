//! Tests of the check.

mod agree;
mod clean;
mod hostile;
mod planted;
mod tools;
