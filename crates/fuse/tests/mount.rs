//! A real mount of `MemoryFs`, worked on with ordinary system calls.

mod support;

#[path = "mount/contents.rs"]
mod contents;
#[path = "mount/control.rs"]
mod control;
#[path = "mount/inodes.rs"]
mod inodes;
#[path = "mount/names.rs"]
mod names;
#[path = "mount/sessions.rs"]
mod sessions;

fn main() {
    let mut trials = Vec::new();
    trials.extend(names::trials());
    trials.extend(inodes::trials());
    trials.extend(contents::trials());
    trials.extend(control::trials());
    trials.extend(sessions::trials());
    support::run(trials);
}
