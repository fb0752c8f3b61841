//! The report of a check of a whole image: findings, their severity, progress.
//!
//! An engine declares its findings with [`findings!`](crate::findings) and has aliases of the types
//! here.

use std::fmt;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Unusual, but a writer may leave it (for example after a crash), and every reader copes.
    Warning,
    /// Data, space or names are lost or in danger.
    Error,
}

/// A problem that a check found.
pub trait Finding {
    /// Severity of the finding.
    fn severity(&self) -> Severity;
}

/// Progress of a check, in phases `P`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress<P> {
    /// Current phase.
    pub phase: P,
    /// Completed units of this phase.
    pub done: u64,
    /// To do in this phase, as far as known.
    pub total: u64,
}

/// Result of a check: findings `F` and statistics `S`.
#[derive(Clone, Debug)]
pub struct CheckReport<F, S> {
    /// Findings in the order in which they were made.
    pub findings: Vec<F>,
    /// Findings beyond the limit of the options.
    pub suppressed: u64,
    /// Statistics of the file system.
    pub stats: S,
}

impl<F, S: Default> Default for CheckReport<F, S> {
    fn default() -> Self {
        Self {
            findings: Vec::new(),
            suppressed: 0,
            stats: S::default(),
        }
    }
}

impl<F: Finding, S> CheckReport<F, S> {
    /// Adds a finding. Beyond `most` findings only their number is kept.
    pub fn add(&mut self, finding: F, most: usize) {
        if self.findings.len() < most {
            self.findings.push(finding);
        } else {
            self.suppressed += 1;
        }
    }

    /// Whether there are no errors; warnings are allowed.
    pub fn is_clean(&self) -> bool {
        self.suppressed == 0 && self.errors().next().is_none()
    }

    /// Findings that are errors.
    pub fn errors(&self) -> impl Iterator<Item = &F> {
        let errors = self.findings.iter();
        errors.filter(|finding| finding.severity() == Severity::Error)
    }
}

/// A change that a repair makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repair {
    /// Kind of the repair, as a word that stays the same from version to version.
    pub code: &'static str,
    /// One line that names what is changed, and to what.
    pub text: String,
}

impl fmt::Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Result of a repair; `R` is the engine's report of a check.
#[derive(Debug, Default)]
pub struct Repaired<R> {
    /// The changes, in their order.
    pub repairs: Vec<Repair>,
    /// The check of the result.
    pub report: R,
    /// Why some parts were not repaired.
    pub left: Vec<String>,
}

impl<R> Repaired<R> {
    /// Adds a change.
    pub fn add(&mut self, code: &'static str, text: String) {
        self.repairs.push(Repair { code, text });
    }
}

/// Declares an enum `Finding` together with the severity of each variant. The attributes of the
/// enum come first. The caller has `thiserror::Error` in scope.
#[macro_export]
macro_rules! findings {
    ($(#[$about:meta])* enum Finding;
    $($(#[doc = $doc:literal])* $severity:ident $text:literal $name:ident {
        $($field:ident : $ty:ty = $meaning:literal),* $(,)?
    })*) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, Eq, Error)]
        pub enum Finding {
            $($(#[doc = $doc])* #[error($text)] $name { $(#[doc = $meaning] $field: $ty),* },)*
        }

        impl Finding {
            /// Severity of the finding.
            pub fn severity(&self) -> $crate::finding::Severity {
                match self { $(Self::$name { .. } => $crate::finding::Severity::$severity,)* }
            }

            /// Name of the variant, for scripts.
            pub fn code(&self) -> &'static str {
                match self { $(Self::$name { .. } => stringify!($name),)* }
            }

            /// Names of all variants.
            pub const CODES: &'static [&'static str] = &[$(stringify!($name)),*];
        }

        impl $crate::finding::Finding for Finding {
            fn severity(&self) -> $crate::finding::Severity {
                self.severity()
            }
        }
    };
}

#[cfg(test)]
#[expect(unreachable_pub, reason = "the macro declares what a crate exports")]
mod tests {
    use thiserror::Error;

    use super::CheckReport;

    findings! {
        /// A finding of this test.
        enum Finding;
        /// Harmless.
        Warning "odd: {what}" Odd {
            what: u8 = "Number."
        }
        /// Bad.
        Error "bad" Bad {}
    }

    #[test]
    fn a_report_is_clean_until_an_error_or_a_finding_beyond_the_limit() {
        let mut report = CheckReport::<Finding, ()>::default();
        report.add(Finding::Odd { what: 7 }, 1);
        assert!(report.is_clean());
        assert_eq!(report.findings[0].to_string(), "odd: 7");
        report.add(Finding::Odd { what: 8 }, 1);
        assert!(!report.is_clean() && report.findings.len() == 1 && report.suppressed == 1);
        let mut report = CheckReport::<Finding, ()>::default();
        report.add(Finding::Bad {}, 1);
        assert!(!report.is_clean());
        assert_eq!(report.errors().next().map(Finding::code), Some("Bad"));
        assert_eq!(Finding::CODES, ["Odd", "Bad"]);
    }
}
