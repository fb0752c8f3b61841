//! The cases, by subject.

mod contents;
mod control;
mod inodes;
mod names;
mod permissions;
mod sessions;
mod setid;
mod synchronous;

/// All cases, over the transport that is set.
pub(crate) fn all() -> Vec<libtest_mimic::Trial> {
    let mut trials = Vec::new();
    trials.extend(names::trials());
    trials.extend(inodes::trials());
    trials.extend(contents::trials());
    trials.extend(control::trials());
    trials.extend(permissions::trials());
    trials.extend(sessions::trials());
    trials.extend(setid::trials());
    trials.extend(synchronous::trials());
    trials
}
