//! What the engines share: locks with ranks, dirty ranges, the state of a mount.
