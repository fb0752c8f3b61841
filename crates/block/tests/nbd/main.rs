//! `NbdDevice` with servers of the test's own, and with `qemu-nbd` and `nbdkit`.

#![allow(clippy::unwrap_used)]

mod crash;
mod hostile;
mod real;
mod server;
mod wire;
