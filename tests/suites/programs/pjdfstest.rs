//! `pjdfstest`: the POSIX rules of every system call. A case that passes in the kernel's driver of
//! the same format on the same machine must not fail here, except where FUSE cannot carry it.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::time::Duration;

use libtest_mimic::Trial;
use sapwood_tests::form::Form;
use sapwood_tests::mount::Driver;
use sapwood_tests::volume::{Volume, ours};
use sapwood_tests::{Need, Outcome, machine, process};

const TOOL: &str = "pjdfstest";

const CONFIG: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
stat_st_birthtime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.02
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"#;

/// Cases that leave themselves out on FUSE, whatever the file system does, with the reason.
const FUSE_CANNOT: [(&str, &str); 1] = [(
    "link::link_count_max",
    "the C library knows limits by the kind of file system, and of FUSE none",
)];

pub(super) fn trials() -> Vec<Trial> {
    let name = "pjdfstest::no_case_fails_that_the_kernel_passes";
    let trial = |form: Form| form.trial(name, &[Need::Other(|| machine::no_cached(TOOL))], compare);
    Form::plain_ones().map(trial).into()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Passed,
    Failed,
    Skipped,
}

/// Runs all cases on a fresh file system mounted by `driver`. Returns their verdicts and the whole
/// output.
fn verdicts(form: &Form, driver: Driver) -> Result<(BTreeMap<String, Verdict>, String), String> {
    let volume = Volume::with(
        &form.mkfs,
        if driver == Driver::Sapwood {
            "allow_other"
        } else {
            "rw"
        },
        driver,
    )?;
    let config = volume.image().beside("pjdfstest.toml");
    fs::write(&config, CONFIG).map_err(|error| error.to_string())?;
    let mut command = Command::new(machine::cached(TOOL));
    command.arg("-c").arg(config).arg("-p").arg(volume.path());
    // It ends with an error code if one case failed, the kernel's too.
    let said = process::finish(&mut command, Duration::from_secs(900))?;
    let mut all = BTreeMap::new();
    for line in said.stdout.lines() {
        let mut words = line.split_whitespace();
        let (Some(name), Some(word)) = (words.next(), words.next()) else {
            continue;
        };
        let verdict = match word {
            "ok" => Verdict::Passed,
            "FAILED" => Verdict::Failed,
            "skipped" => Verdict::Skipped,
            _ => continue,
        };
        if name.contains("::") {
            all.insert(name.to_owned(), verdict);
        }
    }
    volume.finish()?;
    Ok((all, said.stdout))
}

fn compare(form: &Form) -> Outcome {
    let (kernel, _) = verdicts(form, Driver::Kernel)?;
    let (found, said) = verdicts(form, ours())?;
    let kind = form.kind().name();
    if kernel.len() < 390 {
        return Err(format!("only {} cases ran on the kernel's {kind}", kernel.len()).into());
    }
    let count =
        |of: &BTreeMap<String, Verdict>, what| of.values().filter(|one| **one == what).count();
    for (who, of) in [("kernel", &kernel), ("sapwood", &found)] {
        let [passed, failed, skipped] =
            [Verdict::Passed, Verdict::Failed, Verdict::Skipped].map(|what| count(of, what));
        println!("pjdfstest, {kind}, {who}: {passed} passed, {failed} failed, {skipped} skipped");
    }
    let excused = |name: &str| {
        let known = FUSE_CANNOT.iter().any(|(case, _)| *case == name);
        known && found.get(name) == Some(&Verdict::Skipped)
    };
    let worse: Vec<&str> = kernel
        .iter()
        .filter(|(name, verdict)| {
            **verdict == Verdict::Passed
                && found.get(*name) != Some(&Verdict::Passed)
                && !excused(name)
        })
        .map(|(name, _)| name.as_str())
        .collect();
    if worse.is_empty() {
        return Ok(());
    }
    let details: Vec<String> = worse.iter().map(|name| details(&said, name)).collect();
    Err(format!(
        "{} cases fail that the kernel passes:\n{}",
        worse.len(),
        details.join("\n")
    )
    .into())
}

/// The output for one case.
fn details(said: &str, name: &str) -> String {
    let mut lines = said
        .lines()
        .skip_while(|line| line.split_whitespace().next() != Some(name));
    let first = lines.next().unwrap_or(name);
    let rest = lines.take_while(|line| !line.starts_with("Backtrace") && !line.contains("::"));
    std::iter::once(first)
        .chain(rest.take(6))
        .collect::<Vec<_>>()
        .join("\n")
}
