//! A report of contestants as Markdown.

use std::fmt::{Result, Write};

use crate::published;
use crate::report::Report;
use crate::table::{Cell, Table, tables};
use crate::target::judge;

/// The whole report.
#[must_use]
pub fn render(report: &Report) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write(report, &mut text);
    text
}

const EXPLAIN: &str = "\
Figures are medians of the rounds (least to greatest). Behind the line break: how many times as good \
as the base, with the 95 % interval of the pairs of one round; above 1 is better, whichever end of \
the figure is good; `too noisy` where the spread leaves no meaning. `+control` is a contestant once \
more: what it differs from the first is noise.";

fn write(report: &Report, out: &mut String) -> Result {
    writeln!(out, "# {}\n", report.title)?;
    for line in report.head() {
        writeln!(out, "{line}\n")?;
    }
    writeln!(out, "{EXPLAIN}\n")?;
    if report.judged {
        targets(report, out)?;
    }
    let mut last = None;
    for table in tables(&report.rows) {
        let section = table.section();
        if last.as_ref() != Some(&section) {
            writeln!(out, "## {section}\n")?;
            last = Some(section);
        }
        write_table(out, &table)?;
    }
    Ok(())
}

fn targets(report: &Report, out: &mut String) -> Result {
    writeln!(out, "## Targets\n\n| wanted | reached | |\n|---|---|---|")?;
    for target in judge(report) {
        let word = target.outcome.text();
        writeln!(out, "| {} | {} | {word} |", target.wanted, target.reached)?;
    }
    writeln!(
        out,
        "\n## Published with the original changes\n\n{}\n",
        published::NOTE
    )?;
    writeln!(
        out,
        "| mechanism | switched off as | measured then | times as good here |"
    )?;
    writeln!(out, "|---|---|---|---|")?;
    for one in published::ALL {
        let (policy, here) = (one.policy(), one.here(report));
        writeln!(
            out,
            "| {} | {policy} | {} | {here} |",
            one.mechanism, one.figures
        )?;
    }
    writeln!(out)
}

fn write_table(out: &mut String, table: &Table) -> Result {
    writeln!(out, "{}; ratios to {}:\n", table.heading(), table.base)?;
    writeln!(out, "| | {} |", table.columns.join(" | "))?;
    writeln!(out, "|---|{}", "--:|".repeat(table.columns.len()))?;
    for line in &table.lines {
        write!(out, "| {} |", line.name)?;
        for cell in &line.cells {
            write!(out, " {} |", text(cell))?;
        }
        writeln!(out)?;
    }
    writeln!(out)
}

fn text(cell: &Cell) -> String {
    match cell {
        Cell::Absent => "–".to_owned(),
        Cell::Failed(why) => format!("failed: {}", why.replace('|', "/")),
        Cell::Measured {
            spread,
            ratio,
            failed,
        } => {
            let [median, min, max] = [spread.median, spread.min, spread.max].map(Table::number);
            let mut text = if min == max {
                median
            } else {
                format!("{median} ({min}–{max})")
            };
            if let Some(ratio) = ratio {
                let _ = write!(text, "<br>{}", ratio.to_text());
            }
            if *failed > 0 {
                let _ = write!(text, "<br>{failed} failed");
            }
            text
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests::row;

    #[test]
    fn a_table_has_medians_ranges_ratios_and_failures() {
        let rows = vec![row(
            "8",
            &[
                ("ours", &[Some(4.0), Some(4.0), Some(5.0)]),
                ("kernel-btrfs", &[Some(2.0), Some(2.0), None]),
                ("broken", &[None]),
            ],
        )];
        let mut report = Report::new("Everything", 3, 1);
        report.rows = rows;
        let text = render(&report);
        assert!(text.starts_with("# Everything\n"), "{text}");
        let find = |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap();
        assert_eq!(
            find("| ours"),
            "| ours | 4.00 (4.00–5.00)<br>2.00 [2.00, 2.00] |"
        );
        assert_eq!(find("| kernel"), "| kernel-btrfs | 2.00<br>1 failed |");
        assert_eq!(find("| broken"), "| broken | failed: no space |");
    }
}
