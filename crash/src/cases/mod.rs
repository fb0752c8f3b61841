//! Known trouble cases of fsync and log replay, each under its own name.
//!
//! Most of them were a bug of some file system once. They are hard because the log holds less than
//! the tree: single inodes, extents and names, which must be consistent with the committed state
//! and with each other.

mod data;
mod ext4;
mod many;
mod names;
mod special;

use crate::engine::Format;
use crate::record::Workload;

/// A named workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    /// What it tests.
    pub name: String,
    /// Its operations.
    pub workload: Workload,
}

/// Cases with more attributes than an ext4 inode and its one attribute block can hold.
const BEYOND_EXT4: [&str; 1] = ["many attributes, some removed and changed between fsyncs"];

/// All cases whose operations the engine supports, on its bases.
///
/// # Errors
/// The name of a case whose text is wrong.
pub fn all(engine: Format) -> Result<Vec<Case>, String> {
    let texts = [data::CASES, names::CASES, special::CASES].concat();
    let texts = texts
        .iter()
        .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
    let parse = |(name, text): (String, String)| {
        let workload: Result<Workload, String> = text.parse();
        let mut workload = workload.map_err(|why| format!("{name}: {why}"))?;
        workload.base = workload.base.counterpart(engine);
        let fits = engine != Format::Ext4 || !BEYOND_EXT4.contains(&name.as_str());
        let done = fits && workload.ops.iter().all(|op| workload.base.can(op));
        Ok(done.then_some(Case { name, workload }))
    };
    let own = match engine {
        Format::Btrfs => Vec::new(),
        Format::Ext4 => ext4::cases(),
    };
    let cases = texts.chain(many::cases()).chain(own).map(parse);
    cases.filter_map(Result::transpose).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use sapwood_testing::op::Session;
    use sapwood_vfs::FileSystem;

    use crate::engine::Format;

    #[test]
    fn every_case_has_a_name_of_its_own_and_can_be_done() {
        for engine in Format::ALL {
            let cases = super::all(engine).unwrap();
            assert!(cases.len() >= 60, "{engine}: {}", cases.len());
            let names: BTreeSet<&str> = cases.iter().map(|case| case.name.as_str()).collect();
            assert_eq!(names.len(), cases.len());
            for case in &cases {
                let base = crate::base::Base::get(case.workload.base).unwrap();
                let model = base.model().unwrap();
                let mut actor = Session::new(&model, model.root());
                for op in &case.workload.ops {
                    let done = actor.perform(op);
                    assert!(done.is_ok(), "{}: {op}: {done:?}", case.name);
                }
            }
        }
    }
}
