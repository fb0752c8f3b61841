//! `NbdDevice` with servers of the test's own, and with `qemu-nbd` and `nbdkit`.

mod crash;
mod hostile;
mod real;
mod server;
mod wire;
