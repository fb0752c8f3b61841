//! A mounted file system: assembles the layers, replays the log, serves the front, closes.

mod background;
mod engine;
mod front;
mod open;
mod subvolumes;
mod sync;

#[cfg(test)]
pub(crate) use engine::Engine;
pub use open::Btrfs;
