//! Results of mutants: a line for each one in a file, so that a long run can be continued, and the
//! table of all lines.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;

/// The result of a repair by one side.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Side {
    pub(super) clean: bool,
    /// Files that were readable before and are not afterwards.
    pub(super) lost: usize,
    /// Files of the good image that can be read.
    pub(super) kept: usize,
}

/// The results of one mutant.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    pub(super) number: u64,
    /// Clean without a repair, by our check.
    pub(super) sound: bool,
    pub(super) ours: Side,
    pub(super) tool: Side,
    /// Code of the first finding that is left.
    pub(super) left: String,
    pub(super) failed: Vec<String>,
}

impl Outcome {
    fn line(&self, start: &str) -> String {
        let Self {
            number,
            sound,
            ours,
            tool,
            left,
            failed,
        } = self;
        let side = |s: &Side| format!("{}\t{}\t{}", s.clean, s.lost, s.kept);
        let failed = failed.join("; ").replace(['\t', '\n'], " ");
        let (ours, tool) = (side(ours), side(tool));
        format!("{start}\t{number}\t{sound}\t{ours}\t{tool}\t{left}\t{failed}\n")
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split('\t');
        let mut word = || words.next();
        let number = word()?.parse().ok()?;
        let sound = word()?.parse().ok()?;
        let mut side = || {
            Some(Side {
                clean: word()?.parse().ok()?,
                lost: word()?.parse().ok()?,
                kept: word()?.parse().ok()?,
            })
        };
        let (ours, tool) = (side()?, side()?);
        let left = words.next()?.to_owned();
        let failed = words.next()?;
        let failed = (!failed.is_empty()).then(|| failed.to_owned());
        Some(Self {
            number,
            sound,
            ours,
            tool,
            left,
            failed: failed.into_iter().collect(),
        })
    }
}

/// The results of one image, in a file if there is one.
pub(super) struct Results {
    name: &'static str,
    start: String,
    file: Option<File>,
    all: Vec<Outcome>,
}

impl Results {
    /// Reads the results with this name and seed.
    pub(super) fn open(name: &'static str, seed: u64, path: Option<&PathBuf>) -> Self {
        let start = format!("{name}\t{seed}");
        let text = path.and_then(|path| fs::read_to_string(path).ok());
        let lines = text.iter().flat_map(|text| text.lines());
        let own = lines.filter_map(|line| line.strip_prefix(&start)?.strip_prefix('\t'));
        let all = own.filter_map(Outcome::parse).collect();
        let open = |path| File::options().append(true).create(true).open(path);
        Self {
            name,
            file: path.map(|path| open(path).unwrap()),
            start,
            all,
        }
    }

    /// Mutants that have a result.
    pub(super) fn known(&self) -> BTreeSet<u64> {
        self.all.iter().map(|one| one.number).collect()
    }

    pub(super) fn add(&mut self, outcome: Outcome) {
        if let Some(file) = &mut self.file {
            let line = outcome.line(&self.start);
            file.write_all(line.as_bytes()).unwrap();
        }
        self.all.push(outcome);
    }

    /// Prints the table. `whole`: files of the good image. Returns the failures.
    pub(super) fn print(self, whole: usize) -> Vec<String> {
        let (name, mutants) = (self.name, self.all.len());
        let sound = self.all.iter().filter(|one| one.sound).count();
        let all = whole * mutants;
        println!("\n{name}: {mutants} mutants, {sound} sound");
        println!("| | clean | mutants with lost files | files lost | files readable of {all} |");
        println!("|---|---|---|---|---|");
        let side = |who: &str, of: fn(&Outcome) -> Side| {
            let sides: Vec<Side> = self.all.iter().map(of).collect();
            let clean = sides.iter().filter(|side| side.clean).count();
            let losing = sides.iter().filter(|side| side.lost > 0).count();
            let lost: usize = sides.iter().map(|side| side.lost).sum();
            let kept: usize = sides.iter().map(|side| side.kept).sum();
            println!("| {who} | {clean} | {losing} | {lost} | {kept} |");
        };
        side("Sapwood", |one| one.ours);
        side("tool", |one| one.tool);
        self.print_left();
        let failed: Vec<String> = self.all.into_iter().flat_map(|one| one.failed).collect();
        for line in &failed {
            println!("failed: {line}");
        }
        failed
    }

    /// Prints the findings that are left: in how many mutants, also in those that the tool repairs.
    fn print_left(&self) {
        let mut left: BTreeMap<&str, [Vec<u64>; 2]> = BTreeMap::new();
        for one in self.all.iter().filter(|one| !one.left.is_empty()) {
            let by_tool = usize::from(one.tool.clean);
            left.entry(&one.left).or_default()[by_tool].push(one.number);
        }
        let mut left: Vec<_> = left.into_iter().collect();
        left.sort_by_key(|(_, sides)| std::cmp::Reverse(sides.iter().map(Vec::len).sum::<usize>()));
        let some = |numbers: &[u64]| -> String {
            let some: Vec<String> = numbers.iter().take(6).map(u64::to_string).collect();
            some.join(" ")
        };
        for (code, [both, ours]) in left {
            println!(
                "left: {code}: {} by both ({}), {} by us alone ({})",
                both.len(),
                some(&both),
                ours.len(),
                some(&ours)
            );
        }
    }
}
