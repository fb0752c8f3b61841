//! Tests of trees, over a stand-in for transactions that counts every ref.

mod concurrent;
mod env;
mod model;
mod shapes;
mod snapshots;
