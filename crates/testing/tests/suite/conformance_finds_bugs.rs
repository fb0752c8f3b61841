//! The conformance suite fails a file system with a planted bug, and reports panics and their text.

use std::sync::Arc;

use crate::faulty::{BUGS, Bug, Faulty};
use sapwood_testing::conformance::{Capabilities, Target, cases};
use sapwood_vfs::FileSystem;

struct Once(Arc<Faulty>);

impl Target for Once {
    fn mount(&mut self, read_only: bool) -> Result<Arc<dyn FileSystem>, String> {
        self.0.inner().set_read_only(read_only);
        Ok(self.0.clone())
    }
}

/// Without slow cases and without remounts.
const QUICK: Capabilities = Capabilities {
    persistent: false,
    link_max: None,
    ..Capabilities::MEMORY
};

/// Names and reports of the cases that fail.
fn failures(bug: Bug) -> Vec<(String, String)> {
    let quick = cases().into_iter().filter(|case| {
        let slow = ["threads::", "full::", "subvolumes::"];
        case.applies(&QUICK) && !slow.iter().any(|topic| case.name().starts_with(topic))
    });
    let run = |case: sapwood_testing::conformance::Case| {
        let target = Box::new(Once(Arc::new(Faulty::new(bug))));
        let result = case.run(QUICK, target);
        Some((case.name(), result.err()?))
    };
    quick.filter_map(run).collect()
}

#[test]
fn every_planted_bug_fails_a_case() {
    for bug in BUGS {
        let failed = failures(bug);
        assert!(!failed.is_empty(), "no case found {bug:?}");
    }
}

#[test]
fn reports_say_where_and_what() {
    let failed = failures(Bug::NoReplaceReplaces);
    let (_, report) = failed
        .iter()
        .find(|(name, _)| name == "rename::no_replace_spares_every_target")
        .expect("the case that is about it");
    assert!(report.contains("conformance/rename.rs:"), "{report}");
    assert!(report.contains("NoReplace"), "{report}");
}

#[test]
fn panics_are_reported() {
    let failed = failures(Bug::RmdirPanics);
    let about = failed
        .iter()
        .find(|(name, _)| name == "remove::rmdir_of_nothing_is_not_found");
    let (_, report) = about.expect("the case that calls it");
    assert_eq!(report, "panicked: a planted panic");
}

#[test]
fn names_are_unique() {
    let mut names: Vec<_> = cases().iter().map(|case| case.name()).collect();
    let count = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count);
    assert!(count >= 150, "only {count} cases");
}
