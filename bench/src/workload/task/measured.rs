//! Resources that a mount's server used for a part of a task.

use serde_json::json;

use crate::Result;
use crate::contestant::Standing;
use crate::figures::{Counted, Seen};
use crate::usage::Usage;

/// The begin of a part.
pub(super) struct Part(Option<Usage>);

impl Part {
    /// Makes all earlier changes durable and begins.
    pub(super) fn begin(standing: &mut Standing) -> Result<Self> {
        standing.begin()?;
        usage(standing).map(Self)
    }

    /// Ends the part. Returns the server's resources and counters. A peer in the kernel has
    /// neither.
    pub(super) fn used(self, standing: &mut Standing) -> Result<(Option<Usage>, Option<Counted>)> {
        let counted = standing.counted()?;
        let used = self.0.zip(usage(standing)?);
        Ok((used.map(|(before, after)| after.since(&before)), counted))
    }

    /// Ends the part. `seen` gets the processor time in µs, the context switches and the requests
    /// for each of `files` files; its details get the requests by kind. A peer in the kernel has
    /// none of them.
    pub(super) fn end(self, standing: &mut Standing, seen: Seen, files: f64) -> Result<Seen> {
        let (used, counted) = self.used(standing)?;
        let seen = match used {
            Some(used) => seen
                .with("cpu_us", used.processor_seconds * 1e6 / files)
                .with("switches", used.switches as f64 / files),
            None => seen,
        };
        Ok(match counted {
            Some(counted) => with_requests(seen, &counted, files),
            None => seen,
        })
    }
}

fn usage(standing: &Standing) -> Result<Option<Usage>> {
    standing.process().map(Usage::of).transpose()
}

/// Adds the number of requests per file, and in the details the same by kind.
fn with_requests(seen: Seen, counted: &Counted, files: f64) -> Seen {
    let all: u64 = counted.requests.values().sum();
    Seen {
        details: json!({ "requests_per_file": by_kind(counted, files) }),
        ..seen.with("requests", all as f64 / files)
    }
}

/// The number of requests of each kind for each of `count`.
pub(super) fn by_kind(counted: &Counted, count: f64) -> serde_json::Map<String, serde_json::Value> {
    let kinds = counted.requests.iter();
    kinds
        .map(|(kind, requests)| (kind.clone(), json!(*requests as f64 / count)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_for_each_file() {
        let requests = [("lookup".to_owned(), 30), ("write".to_owned(), 10)];
        let counted = Counted {
            requests: requests.into(),
            ..Counted::default()
        };
        let seen = with_requests(Seen::rate(1.0), &counted, 10.0);
        assert!((seen.more["requests"] - 4.0).abs() < 1e-9);
        assert_eq!(seen.details["requests_per_file"]["lookup"], 3.0);
    }
}
