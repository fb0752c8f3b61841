//! Counts the requests of each kind that a session has served.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::wire::Opcode;

/// Number of opcodes that are counted; the protocol's largest is far below.
const KINDS: usize = 64;

/// Requests since the mount, by opcode. Any thread may count at any time.
#[derive(Debug)]
pub(crate) struct RequestCounts([AtomicU64; KINDS]);

impl Default for RequestCounts {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; KINDS])
    }
}

impl RequestCounts {
    /// Counts one request.
    pub(crate) fn count(&self, opcode: Opcode) {
        if let Some(counter) = self.0.get(opcode as usize) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The kinds that arrived at least once, with their protocol names in lower case.
    pub(crate) fn all(&self) -> Vec<(String, u64)> {
        let of = |opcode: &Opcode| {
            let count = self.0.get(*opcode as usize)?.load(Ordering::Relaxed);
            (count > 0).then(|| (format!("{opcode:?}").to_lowercase(), count))
        };
        Opcode::ALL.iter().filter_map(of).collect()
    }

    /// The engine's statistics, a JSON object, with a member `requests` added.
    pub(crate) fn add_to(&self, stats: &str) -> String {
        let Some(members) = stats.trim_end().strip_suffix('}') else {
            return stats.to_owned();
        };
        let comma = if members.trim_end().ends_with('{') {
            ""
        } else {
            ","
        };
        let counts = self.all().into_iter();
        let counts: Vec<_> = counts
            .map(|(name, count)| format!("\"{name}\":{count}"))
            .collect();
        format!("{members}{comma}\"requests\":{{{}}}}}", counts.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_opcode_has_a_counter() {
        for opcode in Opcode::ALL {
            let counts = RequestCounts::default();
            counts.count(*opcode);
            counts.count(*opcode);
            assert_eq!(counts.all().len(), 1, "{opcode:?}");
            assert_eq!(counts.all()[0].1, 2);
        }
    }

    #[test]
    fn counts_become_a_member_of_the_statistics() {
        let counts = RequestCounts::default();
        assert_eq!(counts.add_to("{}"), r#"{"requests":{}}"#);
        counts.count(Opcode::Lookup);
        counts.count(Opcode::BatchForget);
        let expected = r#"{"fsyncs":7,"requests":{"lookup":1,"batchforget":1}}"#;
        assert_eq!(counts.add_to(r#"{"fsyncs":7}"#), expected);
        assert_eq!(counts.add_to("none"), "none");
    }
}
