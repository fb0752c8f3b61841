//! The graph of a crate's modules: dependencies between top-level modules, and cycles of files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crate::crate_source::{CrateSource, ModulePath};
use crate::resolve::resolve;

/// The first source line of each arrow between two modules.
type Sites = BTreeMap<(String, String), (PathBuf, usize, String)>;

/// The dependencies between the modules of a crate.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    modules: BTreeSet<String>,
    /// For each arrow between two modules at the top the first line that makes it.
    arrows: Sites,
    /// Arrows between files.
    files: BTreeMap<PathBuf, BTreeSet<PathBuf>>,
}

impl Graph {
    pub(crate) fn new(source: &CrateSource) -> Self {
        let mut graph = Self::default();
        for (path, module) in &source.modules {
            let Some(own) = top(path) else { continue };
            graph.modules.insert(own.clone());
            for (used, line) in &module.uses {
                let Some(found) = resolve(source, path, used) else {
                    continue;
                };
                let Some(target) = source.modules.get(&found) else {
                    continue;
                };
                if target.file != module.file {
                    let files = graph.files.entry(module.file.clone()).or_default();
                    files.insert(target.file.clone());
                }
                // The root's own items have no layer: a module must not use them.
                let to = top(&found).unwrap_or_else(|| "lib".to_owned());
                if to != own {
                    let site = (module.file.clone(), *line, used.join("::"));
                    graph.arrows.entry((own.clone(), to)).or_insert(site);
                }
            }
        }
        graph
    }

    /// The violations, if the modules have this order, lowest first.
    pub(crate) fn violations(&self, order: &[String]) -> Vec<String> {
        let rank = |name: &str| order.iter().position(|listed| listed == name);
        let mut found = Vec::new();
        for module in &self.modules {
            if rank(module).is_none() {
                found.push(format!("module {module} has no place in layers/order"));
            }
        }
        for module in order
            .iter()
            .filter(|module| !self.modules.contains(*module))
        {
            found.push(format!("layers/order lists {module}, which does not exist"));
        }
        for ((from, to), (file, line, used)) in &self.arrows {
            let (Some(lower), to_rank) = (rank(from), rank(to)) else {
                continue;
            };
            if to_rank.is_none_or(|higher| higher > lower) {
                let file = file.display();
                found.push(format!(
                    "{file}:{line}: {from} uses {to}, which is above it ({used})"
                ));
            }
        }
        found
    }

    /// An order with few arrows upward, for a crate that declares none.
    pub(crate) fn best_order(&self) -> Vec<String> {
        let mut left: BTreeSet<&String> = self.modules.iter().collect();
        let mut order = Vec::new();
        while !left.is_empty() {
            let needs = |module: &String| {
                let wants = |(from, to): &&(String, String)| from == module && left.contains(to);
                self.arrows.keys().filter(wants).count()
            };
            let used = |module: &String| {
                let wants = |(from, to): &&(String, String)| to == module && left.contains(from);
                self.arrows.keys().filter(wants).count()
            };
            let next = left
                .iter()
                .min_by_key(|m| (needs(m), usize::MAX - used(m)))
                .copied();
            let Some(next) = next else { break };
            left.remove(next);
            order.push(next.clone());
        }
        order
    }

    /// One line of figures.
    pub(crate) fn figures(&self, name: &str, source: &CrateSource, upward: usize) -> String {
        let circles = self.circles();
        let in_circles: usize = circles.iter().map(Vec::len).sum();
        format!(
            "{name}: {} files, {} lines, {} of tests; {} modules, {} arrows, {upward} upward; \
             {} circles of {in_circles} files, the largest of {}",
            source.files,
            source.product_lines,
            source.test_lines,
            self.modules.len(),
            self.arrows.len(),
            circles.len(),
            circles.iter().map(Vec::len).max().unwrap_or(0),
        )
    }

    /// Sets of files that all reach each other.
    pub(crate) fn circles(&self) -> Vec<Vec<PathBuf>> {
        let reach: BTreeMap<&PathBuf, BTreeSet<&PathBuf>> = self
            .files
            .keys()
            .map(|file| (file, self.reached(file)))
            .collect();
        let mut done = BTreeSet::new();
        let mut circles = Vec::new();
        for (file, targets) in &reach {
            if done.contains(file) || !targets.contains(file) {
                continue;
            }
            let back = |other: &&&PathBuf| reach.get(**other).is_some_and(|r| r.contains(*file));
            let circle: Vec<PathBuf> = targets.iter().filter(back).map(|f| (*f).clone()).collect();
            done.extend(targets.iter().filter(back).copied());
            circles.push(circle);
        }
        circles
    }

    fn reached(&self, from: &PathBuf) -> BTreeSet<&PathBuf> {
        let mut seen = BTreeSet::new();
        let mut next: Vec<&PathBuf> = self.files.get(from).into_iter().flatten().collect();
        while let Some(file) = next.pop() {
            if seen.insert(file) {
                next.extend(self.files.get(file).into_iter().flatten());
            }
        }
        seen
    }
}

/// The module at the top of the crate that a module belongs to. `None` for the root.
fn top(path: &ModulePath) -> Option<String> {
    path.first().cloned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crate_source::CrateSource;

    /// A crate of these files.
    fn graph(files: &[(&str, &str)]) -> Graph {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join("src").join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        Graph::new(&CrateSource::read(folder.path()).unwrap())
    }

    fn order(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    const LIB: (&str, &str) = ("lib.rs", "mod low;\nmod high;\npub use high::High;\n");

    #[test]
    fn an_arrow_down_is_allowed_and_one_up_is_not() {
        let good = graph(&[
            LIB,
            ("low.rs", "pub struct Low;"),
            ("high.rs", "use crate::low::Low;\npub struct High(Low);"),
        ]);
        assert!(good.violations(&order(&["low", "high"])).is_empty());
        assert_eq!(good.violations(&order(&["high", "low"])).len(), 1);
    }

    #[test]
    fn re_exports_groups_macros_and_plain_paths_are_followed() {
        let codes = [
            "use crate::High;",
            "use crate::{high::High as Other};",
            "fn f() { let _ = crate::high::High; }",
            "fn f() { println!(\"{}\", crate::high::high()); }",
            "use super::high;\nfn f() { high::high(); }",
            "mod inner { use super::super::high::High; }",
        ];
        for code in codes {
            let bad = graph(&[
                LIB,
                ("low.rs", code),
                ("high.rs", "pub struct High;\npub fn high() {}"),
            ]);
            assert_eq!(bad.violations(&order(&["low", "high"])).len(), 1, "{code}");
        }
    }

    #[test]
    fn tests_may_use_what_they_like() {
        let code = "#[cfg(test)]\nmod tests { use crate::high::High; }\n";
        let good = graph(&[LIB, ("low.rs", code), ("high.rs", "pub struct High;")]);
        assert!(good.violations(&order(&["low", "high"])).is_empty());
    }

    #[test]
    fn a_visibility_is_no_arrow() {
        let high = "mod part;\npub struct High(part::Part);";
        let part = "pub(in super::super) struct Part;";
        let found = graph(&[
            LIB,
            ("low.rs", ""),
            ("high.rs", high),
            ("high/part.rs", part),
        ]);
        assert!(found.circles().is_empty());
    }

    #[test]
    fn every_module_needs_a_place() {
        let found = graph(&[LIB, ("low.rs", ""), ("high.rs", "pub struct High;")]);
        assert_eq!(found.violations(&order(&["low", "gone"])).len(), 2);
    }

    #[test]
    fn files_that_use_each_other_are_a_circle() {
        let found = graph(&[
            LIB,
            ("low.rs", "use crate::high::High;\npub struct Low;"),
            ("high.rs", "use crate::low::Low;\npub struct High(Low);"),
        ]);
        assert_eq!(
            found.circles(),
            [[PathBuf::from("src/high.rs"), PathBuf::from("src/low.rs")]]
        );
    }
}
