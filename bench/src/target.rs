//! The performance targets of Sapwood, and whether a run reaches them.
//!
//! Each target names a peer. It is evaluated on the first medium of the report. If the spread of
//! the runs is too wide for a statement, the target stays open.

mod small;

use serde::Serialize;

use crate::metric::{Metric, Source};
use crate::report::Report;
use crate::runner::{Entry, Row};
use crate::statistics::{Ratio, Verdict};
use crate::table::Table;

/// The outcome of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Outcome {
    /// The target is reached.
    Met,
    /// The target is missed.
    Missed,
    /// The spread of the runs leaves it open.
    TooNoisy,
    /// It was not measured.
    Open,
}

impl Outcome {
    /// As text.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Missed => "not met",
            Self::TooNoisy => "too noisy to tell",
            Self::Open => "not measured",
        }
    }
}

/// A target and its outcome.
#[derive(Debug, Clone, Serialize)]
pub struct Target {
    /// The required value.
    pub wanted: String,
    /// The measured value.
    pub reached: String,
    /// The outcome.
    pub outcome: Outcome,
}

/// All targets, evaluated.
#[must_use]
pub fn judge(report: &Report) -> Vec<Target> {
    let runs = Runs::of_first_medium(report);
    let mut all = Vec::new();
    fsyncs(&runs, &mut all);
    files(&runs, &mut all);
    names(&runs, &mut all);
    dbench(&runs, &mut all);
    mechanisms(&runs, &mut all);
    images(&runs, &mut all);
    streams(&runs, &mut all);
    small::targets(&runs, &mut all);
    all
}

/// Rows of one medium.
pub(crate) struct Runs<'r> {
    rows: Vec<&'r Row>,
}

const RATE: Metric = Metric::RATE;

impl<'r> Runs<'r> {
    /// Those of the first medium of a report.
    pub(crate) fn of_first_medium(report: &'r Report) -> Self {
        let medium = report.rows.first().map(|row| &row.medium);
        let here = |row: &&Row| Some(&row.medium) == medium;
        Self {
            rows: report.rows.iter().filter(here).collect(),
        }
    }

    /// The first workload with this name; with this beginning and one more word, if it ends in `-`
    /// or `x`.
    pub(crate) fn named(&self, name: &str) -> Option<&'r str> {
        let any_size = name.ends_with(['-', 'x']);
        let size = |found: &'r str| found.strip_prefix(name).filter(|_| any_size);
        let mut names = self.rows.iter().map(|row| row.workload.as_str());
        names.find(|found| *found == name || size(found).is_some_and(|size| !size.contains('-')))
    }

    fn entry(&self, workload: &str, name: &str) -> Option<&'r Entry> {
        let rows = self.rows.iter().filter(|row| row.workload == workload);
        let mut entries = rows.flat_map(|row| &row.entries);
        entries.find(|entry| entry.name == name)
    }

    /// How many times as good `ours` is as `theirs`.
    pub(crate) fn ratio(
        &self,
        workload: &str,
        metric: Metric,
        ours: &str,
        theirs: &str,
    ) -> Option<Ratio> {
        let rows = self.rows.iter().filter(|row| row.workload == workload);
        let pair = |row: &&&'r Row| {
            let find = |name: &str| row.entries.iter().find(|entry| entry.name == name);
            find(ours).zip(find(theirs))
        };
        let (ours, theirs) = rows.filter_map(|row| pair(&row)).next()?;
        metric.ratio(ours, theirs)
    }

    fn median(&self, workload: &str, metric: Metric, name: &str) -> Option<f64> {
        Some(metric.spread(self.entry(workload, name)?)?.median)
    }

    /// A target for one ratio.
    fn at_least(&self, wanted: String, least: f64, pair: (&str, Metric, &str, &str)) -> Target {
        let (workload, metric, ours, theirs) = pair;
        match self.ratio(workload, metric, ours, theirs) {
            None => open(wanted),
            Some(ratio) => Target {
                wanted,
                reached: reached(&ratio, least),
                outcome: outcome(&ratio, least),
            },
        }
    }
}

/// A contestant in a user's words.
fn words(contestant: &str) -> &str {
    match contestant {
        "btrfs-fuse" => "Sapwood btrfs, mounted",
        "ext4-fuse" => "Sapwood ext4, mounted",
        "btrfs-lib" => "Sapwood btrfs, library",
        "ext4-lib" => "Sapwood ext4, library",
        "kernel-btrfs" => "kernel btrfs",
        "kernel-ext4" => "kernel ext4",
        "sapwood-mkfs-btrfs" => "sapwood mkfs -t btrfs",
        "sapwood-mkfs-ext4" => "sapwood mkfs -t ext4",
        other => other,
    }
}

fn open(wanted: String) -> Target {
    Target {
        wanted,
        reached: "–".to_owned(),
        outcome: Outcome::Open,
    }
}

/// Evaluates the value if the ratio allows a statement of it, and otherwise the bound of its
/// interval.
fn outcome(ratio: &Ratio, least: f64) -> Outcome {
    match ratio.verdict() {
        Verdict::Value if ratio.value >= least => Outcome::Met,
        Verdict::Value => Outcome::Missed,
        _ if ratio.low >= least => Outcome::Met,
        _ if ratio.high < least => Outcome::Missed,
        _ => Outcome::TooNoisy,
    }
}

/// The ratio as far as its interval allows a statement about the target.
fn reached(ratio: &Ratio, least: f64) -> String {
    let Ratio { low, high, .. } = ratio;
    match (ratio.verdict(), outcome(ratio, least)) {
        (Verdict::Nothing, Outcome::Met) => format!("at least {low:.2}"),
        (Verdict::Nothing, Outcome::Missed) => format!("at most {high:.2}"),
        _ => ratio.to_text(),
    }
}

fn met(yes: bool) -> Outcome {
    if yes { Outcome::Met } else { Outcome::Missed }
}

const JOBS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];

fn fsyncs(runs: &Runs<'_>, all: &mut Vec<Target>) {
    for ours in ["btrfs-fuse", "ext4-fuse"] {
        for (theirs, least, wanted) in [
            (
                "kernel-btrfs",
                1.5,
                "writes with fsync by 1 to 64 jobs, each of 14 rows at least 1.5 times as fast as \
                 kernel btrfs",
            ),
            (
                "kernel-ext4",
                2.0 / 3.0,
                "writes with fsync by 1 to 64 jobs, none of 14 rows more than a third slower than \
                 kernel ext4",
            ),
        ] {
            all.push(each_row(
                runs,
                format!("{}: {wanted}", words(ours)),
                ours,
                theirs,
                least,
            ));
        }
    }
    for ours in ["btrfs-fuse", "ext4-fuse"] {
        let wanted = format!(
            "{}: fsync of files with an extended attribute at least 2 times as fast as kernel btrfs",
            words(ours)
        );
        all.push(runs.at_least(wanted, 2.0, ("xattr-1", RATE, ours, "kernel-btrfs")));
    }
    // ext4 cannot hold a hundred.
    let wanted = format!(
        "{}: fsync of files with 100 extended attributes at most 5 % slower than with one",
        words("btrfs-fuse")
    );
    let [one, hundred] = ["xattr-1", "xattr-100"].map(|row| runs.median(row, RATE, "btrfs-fuse"));
    all.push(match one.zip(hundred) {
        None => open(wanted),
        Some((one, hundred)) => Target {
            wanted,
            reached: format!("{:+.1} %", (one / hundred - 1.0) * 100.0),
            outcome: met(one <= hundred * 1.05),
        },
    });
}

fn each_row(runs: &Runs<'_>, wanted: String, ours: &str, theirs: &str, least: f64) -> Target {
    let workloads = ["seq", "rand"]
        .into_iter()
        .flat_map(|kind| JOBS.map(|jobs| format!("{kind}-{jobs}")));
    let mut found: Vec<(String, Ratio)> = workloads
        .filter_map(|workload| {
            let ratio = runs.ratio(&workload, RATE, ours, theirs)?;
            Some((workload, ratio))
        })
        .collect();
    found.sort_by(|one, other| one.1.value.total_cmp(&other.1.value));
    let (Some((lowest, low)), Some((highest, high))) = (found.first(), found.last()) else {
        return open(wanted);
    };
    let outcomes: Vec<_> = found
        .iter()
        .map(|(_, ratio)| outcome(ratio, least))
        .collect();
    let count = |what| outcomes.iter().filter(|one| **one == what).count();
    let (good, bad) = (count(Outcome::Met), count(Outcome::Missed));
    Target {
        wanted,
        reached: format!(
            "{good} of {} reach it; {lowest} {:.2} to {highest} {:.2}",
            found.len(),
            low.value,
            high.value
        ),
        outcome: match (good, bad) {
            (_, 1..) => Outcome::Missed,
            (14, 0) => Outcome::Met,
            _ if found.len() < 14 => Outcome::Open,
            _ => Outcome::TooNoisy,
        },
    }
}

fn files(runs: &Runs<'_>, all: &mut Vec<Target>) {
    let removes = Metric::high("removes", "", Source::More("removes"));
    let row = runs.named("create-48x").unwrap_or("create-48");
    for (what, metric, ours, theirs, least) in [
        ("create", RATE, "btrfs-fuse", "kernel-btrfs", 1.2),
        ("remove", removes, "btrfs-fuse", "kernel-btrfs", 2.0),
        ("create", RATE, "btrfs-lib", "kernel-btrfs", 3.0),
        ("remove", removes, "btrfs-lib", "kernel-btrfs", 3.0),
        ("create", RATE, "ext4-fuse", "fuse2fs", 8.0),
        ("remove", removes, "ext4-fuse", "fuse2fs", 8.0),
        ("create", RATE, "ext4-lib", "kernel-ext4", 1.5),
        ("remove", removes, "ext4-lib", "kernel-ext4", 1.5),
    ] {
        let wanted = format!(
            "{}: 48 workers {what} files at least {least} times as fast as with {}",
            words(ours),
            words(theirs)
        );
        all.push(runs.at_least(wanted, least, (row, metric, ours, theirs)));
    }
}

fn names(runs: &Runs<'_>, all: &mut Vec<Target>) {
    let each = Metric::low("time of one", "µs", Source::More("us_each"));
    for ours in ["btrfs-fuse", "ext4-fuse"] {
        let wanted = format!(
            "{}: 10,000 renames take at most 0.75 of the time of kernel btrfs",
            words(ours)
        );
        let row = "renames-10000";
        let mut target = runs.at_least(wanted, 1.0 / 0.75, (row, each, ours, "kernel-btrfs"));
        if let Some(ratio) = runs.ratio(row, each, ours, "kernel-btrfs") {
            target.reached = format!("{:.2} of its time", 1.0 / ratio.value);
        }
        all.push(target);
        let wanted = format!(
            "{}: one of 10,000 renames takes at most 1.1 times as long as one of 1,000",
            words(ours)
        );
        let few = runs.median("renames-1000", each, ours);
        let many = runs.median(row, each, ours);
        all.push(match few.zip(many) {
            None => open(wanted),
            Some((few, many)) => Target {
                wanted,
                reached: format!("{:.2} times ({few:.1} and {many:.1} µs)", many / few),
                outcome: met(many <= few * 1.1),
            },
        });
    }
}

fn dbench(runs: &Runs<'_>, all: &mut Vec<Target>) {
    let slowest = Metric::low("longest", "ms", Source::Slowest);
    for ours in ["btrfs-fuse", "ext4-fuse"] {
        let wanted = format!(
            "{}: dbench with 64 clients at least 1.1 times as fast as kernel btrfs",
            words(ours)
        );
        all.push(runs.at_least(wanted, 1.1, ("dbench-64", RATE, ours, "kernel-btrfs")));
        let wanted = format!(
            "{}: dbench with 64 clients, the longest operation no longer than on kernel btrfs",
            words(ours)
        );
        let pair = [ours, "kernel-btrfs"].map(|name| runs.median("dbench-64", slowest, name));
        all.push(match pair {
            [Some(ours), Some(theirs)] => Target {
                wanted,
                reached: format!("{ours:.0} ms, {theirs:.0} ms"),
                outcome: met(ours <= theirs),
            },
            _ => open(wanted),
        });
    }
}

/// A contestant with a policy has a mechanism switched off; its `on` is the contestant named before
/// the colon.
fn mechanisms(runs: &Runs<'_>, all: &mut Vec<Target>) {
    for row in &runs.rows {
        for off in row.entries.iter().filter(|entry| entry.name.contains(':')) {
            let (on, policy) = off.name.split_once(':').unwrap_or((&off.name, ""));
            let without = match policy.strip_suffix("-off") {
                Some("all") => "all its mechanisms",
                Some(mechanism) => mechanism,
                None => policy,
            };
            let Some(on) = row.entries.iter().find(|entry| entry.name == on) else {
                continue;
            };
            let Some(ratio) = RATE.ratio(on, off) else {
                continue;
            };
            all.push(Target {
                wanted: format!(
                    "{}: {} without {without} is not faster",
                    row.workload,
                    words(&on.name)
                ),
                reached: match ratio.verdict() {
                    Verdict::Nothing => ratio.to_text(),
                    _ => format!("with it {} times as fast", ratio.to_text()),
                },
                outcome: match ratio.verdict() {
                    Verdict::Nothing => Outcome::TooNoisy,
                    _ if ratio.value >= 1.0 => Outcome::Met,
                    _ if ratio.high < 1.0 => Outcome::Missed,
                    // Slower, but not by more than chance explains.
                    _ => Outcome::TooNoisy,
                },
            });
        }
    }
}

/// An image of small files has targets of its own.
fn is_small(row: &Row) -> bool {
    row.workload.starts_with("image-small-")
}

fn images(runs: &Runs<'_>, all: &mut Vec<Target>) {
    let time = Metric::low("time", "s", Source::More("s"));
    let memory = Metric::low("memory", "MiB", Source::More("peak_mib"));
    for row in runs
        .rows
        .iter()
        .filter(|row| row.workload.starts_with("image-") && !is_small(row))
    {
        let row = row.workload.as_str();
        for (ours, theirs) in [
            ("sapwood-mkfs-btrfs", "mkfs.btrfs"),
            ("sapwood-mkfs-ext4", "mke2fs"),
        ] {
            let wanted = format!("{}: {row} made faster than by {theirs}", words(ours));
            all.push(runs.at_least(wanted, 1.0, (row, time, ours, theirs)));
            let wanted = format!(
                "{}: {row} made with less than 256 MiB more memory than by {theirs}",
                words(ours)
            );
            let pair = [ours, theirs].map(|name| runs.median(row, memory, name));
            all.push(match pair {
                [Some(ours), Some(theirs)] => Target {
                    wanted,
                    reached: format!("{ours:.0} MiB, {theirs:.0} MiB"),
                    outcome: met(ours < theirs + 256.0),
                },
                _ => open(wanted),
            });
        }
    }
}

fn streams(runs: &Runs<'_>, all: &mut Vec<Target>) {
    for ours in ["btrfs-fuse", "ext4-fuse"] {
        for (row, what) in [
            ("write-seq", "a large file written"),
            ("read-seq-cold", "a large file read, nothing cached,"),
            ("read-seq-warm", "a large file read from the cache"),
        ] {
            let wanted = format!(
                "{}: {what} at least 0.8 times as fast as on kernel btrfs",
                words(ours)
            );
            all.push(runs.at_least(wanted, 0.8, (row, RATE, ours, "kernel-btrfs")));
        }
    }
    let resident = Metric::low("resident", "MiB", Source::More("resident_mib"));
    for ours in ["btrfs-fuse", "ext4-fuse"] {
        let figures = [RATE, resident].map(|metric| runs.median("idle", metric, ours));
        let wanted = format!(
            "{}: an idle mount wakes no processor and has less than 30 MiB resident",
            words(ours)
        );
        all.push(match figures {
            [Some(woken), Some(mib)] => Target {
                wanted,
                reached: format!("{} per second, {mib:.1} MiB", Table::number(woken)),
                outcome: met(woken == 0.0 && mib < 30.0),
            },
            _ => open(wanted),
        });
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::table::tests::row;

    pub(crate) fn found<'t>(targets: &'t [Target], wanted: &str) -> &'t Target {
        let mut found = targets
            .iter()
            .filter(|target| target.wanted.contains(wanted));
        let first = found
            .next()
            .unwrap_or_else(|| panic!("{wanted}: {targets:?}"));
        assert!(found.next().is_none(), "{wanted} is not the only one");
        first
    }

    pub(crate) fn report(rows: Vec<Row>) -> Report {
        let mut report = Report::new("x", 3, 1);
        report.rows = rows;
        report
    }

    pub(crate) fn named(workload: &str, entries: &[(&str, &[Option<f64>])]) -> Row {
        Row {
            workload: workload.to_owned(),
            ..row("1", entries)
        }
    }

    const TWO: &[Option<f64>] = &[Some(2.0), Some(2.0), Some(2.0)];
    const ONE: &[Option<f64>] = &[Some(1.0), Some(1.0), Some(1.0)];
    const ANY: &[Option<f64>] = &[Some(9.0), Some(1.0), Some(3.0)];

    #[test]
    fn nothing_measured_leaves_all_open() {
        let targets = judge(&report(Vec::new()));
        assert!(targets.len() > 20);
        assert!(targets.iter().all(|target| target.outcome == Outcome::Open));
    }

    #[test]
    fn ratios_are_judged_by_what_their_spread_allows() {
        let outcome = |ours| {
            let rows = vec![named(
                "dbench-64",
                &[("btrfs-fuse", ours), ("kernel-btrfs", ONE)],
            )];
            let targets = judge(&report(rows));
            found(
                &targets,
                "Sapwood btrfs, mounted: dbench with 64 clients at least",
            )
            .outcome
        };
        assert_eq!(outcome(TWO), Outcome::Met);
        assert_eq!(outcome(ONE), Outcome::Missed);
        assert_eq!(outcome(ANY), Outcome::TooNoisy);
    }

    #[test]
    fn one_slow_row_misses_and_missing_rows_leave_it_open() {
        let entries = |ours| [("btrfs-fuse", ours), ("kernel-btrfs", ONE)];
        let rows = |slow: usize| -> Vec<Row> {
            let names = ["seq", "rand"]
                .into_iter()
                .flat_map(|kind| JOBS.map(|jobs| format!("{kind}-{jobs}")));
            let ours = |at| if at == slow { ONE } else { TWO };
            names
                .enumerate()
                .map(|(at, name)| named(&name, &entries(ours(at))))
                .collect()
        };
        let outcome = |rows| {
            let targets = judge(&report(rows));
            let target = found(
                &targets,
                "Sapwood btrfs, mounted: writes with fsync by 1 to 64 jobs, each",
            );
            (target.outcome, target.reached.clone())
        };
        assert_eq!(outcome(rows(99)).0, Outcome::Met);
        let (missed, reached) = outcome(rows(3));
        assert_eq!(missed, Outcome::Missed);
        assert!(
            reached.starts_with("13 of 14 reach it; seq-8 1.00"),
            "{reached}"
        );
        assert_eq!(outcome(rows(99)[..5].to_vec()).0, Outcome::Open);
    }

    #[test]
    fn a_mechanism_must_not_cost() {
        let rows = |on, off| {
            let rows = vec![named(
                "seq-8",
                &[("btrfs-lib", on), ("btrfs-lib:overlap-off", off)],
            )];
            let targets = judge(&report(rows));
            found(&targets, "without overlap is not faster").outcome
        };
        assert_eq!(rows(TWO, ONE), Outcome::Met);
        assert_eq!(rows(ONE, TWO), Outcome::Missed);
        assert_eq!(rows(ANY, ANY), Outcome::Met);
        assert_eq!(rows(ANY, ONE), Outcome::TooNoisy);
    }

    /// A row may read "too noisy" only if nothing is said about the target either.
    #[test]
    fn a_row_that_reads_too_noisy_is_neither_met_nor_missed() {
        let rounds = [
            [Some(1.0), Some(0.9), Some(1.6)],
            [Some(0.5), Some(0.6), Some(1.3)],
            [Some(9.0), Some(1.0), Some(3.0)],
            [Some(0.1), Some(7.0), Some(1.0)],
            [Some(2.0), Some(2.1), Some(1.9)],
            [Some(1.3), Some(0.9), Some(1.5)],
        ];
        let (mut noisy, mut told) = (0, 0);
        for ours in &rounds {
            let entries: [(&str, &[Option<f64>]); 4] = [
                ("btrfs-fuse", ours),
                ("kernel-btrfs", ONE),
                ("btrfs-lib", ours),
                ("btrfs-lib:all-off", ONE),
            ];
            let rows = ["dbench-64", "write-seq", "xattr-1", "seq-8"];
            let rows = rows.map(|row| named(row, &entries)).to_vec();
            for target in judge(&report(rows)) {
                let said = matches!(target.outcome, Outcome::Met | Outcome::Missed);
                let unsure = target.reached.contains("too noisy");
                assert!(!(said && unsure), "{target:?}");
                noisy += u32::from(unsure);
                told += u32::from(said);
            }
        }
        assert!(noisy > 0 && told > 0, "{noisy} {told}");
    }

    #[test]
    fn targets_speak_of_no_contestant_by_its_code() {
        for target in judge(&report(Vec::new())) {
            for code in ["-fuse", "-lib", "kernel-", "xattr", "write-seq"] {
                assert!(!target.wanted.contains(code), "{}", target.wanted);
            }
        }
    }

    #[test]
    fn only_the_first_medium_counts() {
        let entries = |ours| [("btrfs-fuse", ours), ("kernel-btrfs", ONE)];
        let memory = Row {
            medium: "/memory".into(),
            ..named("dbench-64", &entries(TWO))
        };
        let targets = judge(&report(vec![named("seq-1", &entries(TWO)), memory]));
        let target = found(
            &targets,
            "Sapwood btrfs, mounted: dbench with 64 clients at least",
        );
        assert_eq!(target.outcome, Outcome::Open);
    }
}
