//! The targets for many small files.

use super::{Runs, Target, met, open, words};
use crate::metric::{Metric, Source};
use crate::workload::task::client::Operation;

const OURS: [&str; 2] = ["btrfs-fuse", "ext4-fuse"];

/// Adds them.
pub(super) fn targets(runs: &Runs<'_>, all: &mut Vec<Target>) {
    archives(runs, all);
    images(runs, all);
    client(runs, all);
    programs(runs, all);
}

/// A time in seconds.
fn time(figure: &'static str) -> Metric {
    Metric::low("time", "s", Source::More(figure))
}

/// A target for a time of `ours`, as a multiple of kernel-btrfs's in the same run.
fn at_most(
    runs: &Runs<'_>,
    wanted: &str,
    most: f64,
    row: &str,
    ours: &str,
    metric: Metric,
) -> Target {
    let row = runs.named(row).unwrap_or(row);
    let wanted = format!(
        "{}: {wanted} in at most {most} times the time of kernel btrfs",
        words(ours)
    );
    let mut target = runs.at_least(wanted, 1.0 / most, (row, metric, ours, "kernel-btrfs"));
    if let Some(ratio) = runs.ratio(row, metric, ours, "kernel-btrfs") {
        let [value, low, high] = [ratio.value, ratio.high, ratio.low].map(|ratio| 1.0 / ratio);
        target.reached = format!("{value:.2} [{low:.2}, {high:.2}] times its time");
    }
    target
}

fn archives(runs: &Runs<'_>, all: &mut Vec<Target>) {
    for ours in OURS {
        let mut add = |wanted, most, figure| {
            all.push(at_most(runs, wanted, most, "small-", ours, time(figure)));
        };
        add("tar xf of small files", 2.0, "s");
        add(
            "sapwood untar through the daemon, beside tar xf,",
            0.75,
            "untar_s",
        );
        add(
            "sapwood untar without a mount, beside tar xf until durable,",
            0.75,
            "untar_offline_s",
        );
    }
}

fn images(runs: &Runs<'_>, all: &mut Vec<Target>) {
    let row = runs.named("image-small-").unwrap_or("image-small-100000");
    for (ours, theirs) in [
        ("sapwood-mkfs-btrfs", "mkfs.btrfs"),
        ("sapwood-mkfs-ext4", "mke2fs"),
    ] {
        let wanted = format!(
            "{}: {row} made at least 3 times as fast as by {theirs}",
            words(ours)
        );
        all.push(runs.at_least(wanted, 3.0, (row, time("s"), ours, theirs)));
    }
}

/// Most µs of an operation of one client.
const CLIENT: [(Operation, f64); 6] = [
    (Operation::Create, 45.0),
    (Operation::Write, 15.0),
    (Operation::Rewrite, 15.0),
    (Operation::Chmod, 13.0),
    (Operation::Rename, 30.0),
    (Operation::Unlink, 20.0),
];

fn client(runs: &Runs<'_>, all: &mut Vec<Target>) {
    let row = runs.named("client-").unwrap_or("client-20000");
    for ours in OURS {
        for (operation, most) in CLIENT {
            let name = operation.name();
            let wanted = format!(
                "{}: {name} by one client, bound to a processor or not, in at most {most} µs",
                words(ours)
            );
            let median = |figure| {
                let metric = Metric::low("time", "µs", Source::More(figure));
                runs.median(row, metric, ours)
            };
            all.push(match operation.figures().map(median) {
                [Some(free), Some(bound)] => Target {
                    wanted,
                    reached: format!("{free:.1} µs, bound {bound:.1} µs"),
                    outcome: met(free <= most && bound <= most),
                },
                _ => open(wanted),
            });
        }
    }
}

fn programs(runs: &Runs<'_>, all: &mut Vec<Target>) {
    for ours in OURS {
        for (wanted, row, figure) in [
            ("git clone of small files", "git-clone-", "s"),
            ("rm -rf of the clone", "git-clone-", "remove_s"),
            ("packages like node_modules", "node-modules-", "s"),
            ("rm -rf of the packages", "node-modules-", "remove_s"),
            ("rm -rf of small files", "small-", "remove_s"),
        ] {
            all.push(at_most(runs, wanted, 1.2, row, ours, time(figure)));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::runner::Row;
    use crate::target::tests::{found, named, report};
    use crate::target::{Outcome, judge};

    /// A row of contestants that have one figure, the same in three rounds.
    fn row(workload: &str, figures: &[&str], entries: &[(&str, f64)]) -> Row {
        const ROUNDS: &[Option<f64>] = &[Some(1.0), Some(1.0), Some(1.0)];
        let names: Vec<_> = entries.iter().map(|(name, _)| (*name, ROUNDS)).collect();
        let mut row = named(workload, &names);
        for (entry, (_, value)) in row.entries.iter_mut().zip(entries) {
            for run in entry.runs.iter_mut().flatten() {
                for figure in figures {
                    run.seen.more.insert((*figure).to_owned(), *value);
                }
            }
        }
        row
    }

    #[test]
    fn times_are_multiples_of_the_kernel_s() {
        let outcome = |seconds: f64, wanted: &str| {
            let entries = [("ext4-fuse", seconds), ("kernel-btrfs", 1.0)];
            let figures = ["s", "untar_s", "untar_offline_s", "remove_s"];
            let targets = judge(&report(vec![row("small-2000", &figures, &entries)]));
            let target = found(&targets, wanted);
            (target.outcome, target.reached.clone())
        };
        let tar = "Sapwood ext4, mounted: tar xf of small files";
        assert_eq!(outcome(1.9, tar).0, Outcome::Met);
        let (missed, reached) = outcome(2.5, tar);
        assert_eq!(missed, Outcome::Missed);
        assert!(reached.starts_with("2.50 ["), "{reached}");
        let untar = "Sapwood ext4, mounted: sapwood untar through the daemon";
        assert_eq!(outcome(0.7, untar).0, Outcome::Met);
        assert_eq!(outcome(0.8, untar).0, Outcome::Missed);
        assert_eq!(
            outcome(1.3, "Sapwood ext4, mounted: rm -rf of small files").0,
            Outcome::Missed
        );
    }

    #[test]
    fn images_of_small_files_have_their_own_targets() {
        let entries = |ours| [("sapwood-mkfs-ext4", ours), ("mke2fs", 1.0)];
        let outcome = |ours| {
            let small = row("image-small-2000", &["s", "peak_mib"], &entries(ours));
            let targets = judge(&report(vec![small]));
            let faster = targets
                .iter()
                .filter(|target| target.wanted.contains("faster than by mke2fs"));
            assert_eq!(faster.count(), 0);
            found(&targets, "sapwood mkfs -t ext4: image-small-2000").outcome
        };
        assert_eq!(outcome(0.3), Outcome::Met);
        assert_eq!(outcome(0.5), Outcome::Missed);
    }

    #[test]
    fn a_client_that_is_slow_when_bound_misses() {
        let outcome = |bound| {
            let mut client = row("client-2000", &["chmod_us"], &[("btrfs-fuse", 10.0)]);
            for run in client.entries[0].runs.iter_mut().flatten() {
                run.seen.more.insert("chmod_bound_us".to_owned(), bound);
            }
            let targets = judge(&report(vec![client]));
            let target = found(&targets, "Sapwood btrfs, mounted: chmod by one client");
            (target.outcome, target.reached.clone())
        };
        let reached = "10.0 µs, bound 12.0 µs".to_owned();
        assert_eq!(outcome(12.0), (Outcome::Met, reached));
        assert_eq!(outcome(14.0).0, Outcome::Missed);
    }
}
