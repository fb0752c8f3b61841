//! `sapwood doctor`.

use sapwood::{DoctorOptions, DoctorReport, HostFinding, HostState};
use serde_json::json;

use super::failure::{Failure, Result};
use super::output;

/// Examples, for the help.
pub(super) const EXAMPLES: &[(&str, &str)] = &[
    ("sapwood doctor", "what works here, and what to install"),
    (
        "sapwood doctor --quiet",
        "only what does not work; exit code 0 if mounts do",
    ),
];

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Print only what does not work
    #[arg(short, long)]
    quiet: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Exit code 0: this user can mount images; 1: a part that mounts need does not work.
pub(super) fn run(args: &Args) -> Result<()> {
    let report = sapwood::doctor(&DoctorOptions::default());
    if args.json {
        output::object(&as_json(&report))?;
    } else {
        print(args, &report)?;
    }
    if report.mounts {
        Ok(())
    } else {
        Err(Failure::reported())
    }
}

fn as_json(report: &DoctorReport) -> serde_json::Value {
    let findings = report.findings.iter();
    let findings: Vec<_> = findings
        .map(|finding| {
            json!({
                "subject": finding.subject,
                "state": finding.state.as_str(),
                "found": finding.found,
                "effect": finding.effect,
                "remedy": finding.remedy,
            })
        })
        .collect();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "mounts": report.mounts,
        "findings": findings,
    })
}

fn print(args: &Args, report: &DoctorReport) -> Result<()> {
    let shown = |finding: &&HostFinding| !args.quiet || finding.state != HostState::Works;
    for finding in report.findings.iter().filter(shown) {
        let HostFinding {
            subject,
            state,
            found,
            effect,
            remedy,
        } = finding;
        output::line(format!("{}  {subject}: {found}", state.as_str()))?;
        for (sign, text) in [("so:", effect), ("do:", remedy)] {
            if !text.is_empty() {
                output::line(format!("         {sign} {text}"))?;
            }
        }
    }
    if args.quiet {
        return Ok(());
    }
    output::line(if report.mounts {
        "mounts work here"
    } else {
        "mounts do not work here; all commands without a mount do"
    })
}
