//! Published figures for the mechanisms, from the changes that introduced them in the kernel.

use crate::metric::Metric;
use crate::report::Report;

/// The published effect of a mechanism.
#[derive(Debug, Clone, Copy)]
pub struct Published {
    /// Mechanism.
    pub mechanism: &'static str,
    /// Engine and policy without the mechanism.
    pub policy: (&'static str, &'static str),
    /// The published measurements, before and after.
    pub figures: &'static str,
}

impl Published {
    /// The policy, with its engine.
    #[must_use]
    pub fn policy(&self) -> String {
        format!("{}: {}", self.policy.0, self.policy.1)
    }

    /// The effect of the mechanism in the runs of a report: how many times as good the engine is
    /// with it.
    #[must_use]
    pub fn here(&self, report: &Report) -> String {
        let (engine, policy) = self.policy;
        let mut all = Vec::new();
        for row in &report.rows {
            for off in &row.entries {
                let Some((name, of)) = off.name.split_once(':') else {
                    continue;
                };
                let on = row.entries.iter().find(|entry| entry.name == name);
                let Some(on) = on.filter(|_| of == policy && name.starts_with(engine)) else {
                    continue;
                };
                if let Some(ratio) = Metric::RATE.ratio(on, off) {
                    all.push(format!("{} ({name}): {}", row.workload, ratio.to_text()));
                }
            }
        }
        if all.is_empty() {
            "–".to_owned()
        } else {
            all.join("; ")
        }
    }
}

/// How they compare.
pub const NOTE: &str = "From the changes' own descriptions, on machines of 12 and more processors with \
NVMe; the direction and the ratio compare, not the values.";

/// All mechanisms.
pub const ALL: [Published; 5] = [
    Published {
        mechanism: "a log overlaps with the transaction that commits (btrfs, 2020)",
        policy: ("btrfs", "overlap-off"),
        figures: "dbench, 64 clients: 1179 to 1339 MB/s (1.14 times), longest operation 676 to 623 ms",
    },
    Published {
        mechanism: "a fast fsync waits for writeback only (btrfs, 2020)",
        policy: ("btrfs", "fast_wait-off"),
        figures: "sequential 64 KiB, 1 to 64 jobs: 1.10, 1.22, 1.29, 1.36, 1.34, 1.19, 1.23 times; \
                  random 4 KiB: 1.01, 1.02, 1.16, 1.12, 1.04, 1.13, 1.06 times",
    },
    Published {
        mechanism: "xattrs are logged only when they changed (btrfs, 2021)",
        policy: ("btrfs", "xattrs_when_changed-off"),
        figures: "8 jobs, one xattr: 120 to 142 MiB/s (1.17 times)",
    },
    Published {
        mechanism: "a rename touches one entry of the log (btrfs, 2022)",
        policy: ("btrfs", "single_names-off"),
        figures: "renames of 1000, 2000, 5000, 10,000 files: 1.20, 1.43, 1.99, 3.01 times as fast",
    },
    Published {
        mechanism: "the search for an inode is repeated under the lock (ext4, 2017)",
        policy: ("ext4", "locked_search-off"),
        figures: "48 processes: creates 79,900 to 691,900 per second (8.7 times), removes 287,000 to 298,000",
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests::row;

    #[test]
    fn what_a_mechanism_is_worth_here_stands_beside_it() {
        let mut report = Report::new("x", 2, 1);
        let two: &[Option<f64>] = &[Some(2.0), Some(2.0)];
        let one: &[Option<f64>] = &[Some(1.0), Some(1.0)];
        assert_eq!(ALL[0].here(&report), "–");
        report.rows = vec![row(
            "8",
            &[("btrfs-lib", two), ("btrfs-lib:overlap-off", one)],
        )];
        assert_eq!(ALL[0].here(&report), "seq-8 (btrfs-lib): 2.00 [2.00, 2.00]");
        assert_eq!(ALL[1].here(&report), "–");
    }
}
