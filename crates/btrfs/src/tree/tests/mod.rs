//! Tests of trees, over a stand-in for transactions that counts every ref.

#[path = "../../../tests/common/mod.rs"]
mod common;
mod concurrent;
mod engine;
pub(crate) mod env;
mod model;
mod shapes;
mod snapshots;
