//! Tests of trees, with a stand-in for transactions that counts every ref.

mod concurrent;
mod engine;
pub(crate) mod env;
mod model;
mod shapes;
mod snapshots;
