//! The commands.

pub(crate) mod create;
pub(crate) mod log;
pub(crate) mod suite;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sapwood_bench::contestant::Room;
use sapwood_bench::report::Report;
use sapwood_bench::runner::{Case, Runner};
use sapwood_bench::{Error, Result, html, markdown, program};
use sapwood_testing::machine::installed;

/// Prints the needed time and space, and fails if a program is missing.
pub(crate) fn announce(runner: &Runner, cases: &[Case]) -> Result<()> {
    let (runs, time) = runner.size(cases);
    let minutes = time.as_secs().div_ceil(60);
    let rooms = cases.iter().map(|case| case.workload.room().bytes);
    let space = rooms.max().unwrap_or(Room::default().bytes) >> 30;
    eprintln!("{runs} runs, about {minutes} minutes; images of up to {space} GiB, one at a time");
    let needs_command = |case: &Case| {
        let mut contestants = case.contestants.iter();
        contestants.any(|(_, contestant)| case.workload.needs_command(contestant))
    };
    if cases.iter().any(needs_command) {
        program::sapwood()?;
    }
    match missing(cases) {
        Some(program) => Err(Error::Refused(format!("{program} is not installed"))),
        None => Ok(()),
    }
}

/// A load generator or a peer's program that is needed and missing.
fn missing(cases: &[Case]) -> Option<&'static str> {
    let needed = cases.iter().flat_map(|case| {
        let contestants = || case.contestants.iter().map(|(_, contestant)| contestant);
        let mounted = contestants().any(|one| !one.in_process());
        let own = case.workload.program().filter(|_| mounted);
        own.into_iter()
            .chain(contestants().flat_map(|one| one.programs().iter().copied()))
    });
    let mut needed = needed;
    needed.find(|program| !installed(program))
}

/// Runs `cases` into `report`. `save` gets the report after each row, so that an interruption loses
/// no row. A signal ends it after the current run.
pub(crate) fn run(
    runner: &Runner,
    cases: &[Case],
    report: &mut Report,
    mut save: impl FnMut(&Report) -> Result<()>,
) -> Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&stop);
    let _watch = sapwood_fuse::signals::on_termination(move |_| {
        eprintln!("ends after this run");
        asked.store(true, Ordering::Relaxed);
    });
    let mut written = Ok(());
    let done = runner.run(cases, &stop, |row| {
        report.rows.push(row);
        written = save(report);
    });
    done.and(written)
}

/// Writes the pages of the report in this JSON file, as HTML and Markdown, next to the file.
pub(crate) fn page(report: &Path) -> Result<()> {
    let text = std::fs::read_to_string(report).map_err(|source| Error::Io {
        what: report.display().to_string(),
        source,
    })?;
    let found = Report::from_json(text.leak())
        .map_err(|error| Error::Refused(format!("{}: {error}", report.display())))?;
    write(report, "md", &markdown::render(&found))?;
    write(report, "html", &html::render(&found))
}

/// Writes a file of a report; `ending` is the extension without a dot.
pub(crate) fn write(output: &Path, ending: &str, text: &str) -> Result<()> {
    let path = output.with_extension(ending);
    std::fs::write(&path, text).map_err(|source| Error::Io {
        what: path.display().to_string(),
        source,
    })
}

/// A report as JSON.
pub(crate) fn json(report: &Report) -> Result<String> {
    let json = report.to_json();
    json.map_err(|error| Error::Refused(error.to_string()))
}
