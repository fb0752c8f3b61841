//! A report as one self-contained page.

use std::fmt::{Result, Write};

use crate::overview;
use crate::plot;
use crate::published;
use crate::report::Report;
use crate::table::{Cell, Table, tables};
use crate::target::{Outcome, judge};

/// The page.
#[must_use]
pub fn render(report: &Report) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write(report, &mut text);
    text
}

/// A style sheet overrides attributes of an SVG, so black becomes the colour of the text.
const STYLE: &str = "\
:root{color-scheme:light dark;--back:#fff;--text:#1d2127;--soft:#6a737d;--line:#d6dae0;--head:#f3f5f8;\
--good:#1a7f37;--bad:#c62828;--open:#8a6d00}\
@media(prefers-color-scheme:dark){:root{--back:#14171c;--text:#e3e6ea;--soft:#98a2ad;--line:#343b45;\
--head:#1e232b;--good:#56d364;--bad:#ff7b72;--open:#e3b341}}\
*{box-sizing:border-box}\
body{background:var(--back);color:var(--text);font:15px/1.5 system-ui,sans-serif;margin:0 auto;\
max-width:1180px;padding:24px}\
h1{font-size:26px;margin:0 0 12px}h2{font-size:19px;margin:40px 0 8px;border-top:1px solid var(--line);\
padding-top:20px}h3{font-size:15px;margin:20px 0 6px}\
p{margin:6px 0}p.soft,span.soft,td small{color:var(--soft)}\
code{font-size:13px;overflow-wrap:anywhere}\
nav{display:flex;flex-wrap:wrap;gap:4px 24px;margin:16px 0;position:relative}nav a{color:inherit}\
nav summary{cursor:pointer}nav div{position:absolute;z-index:1;left:0;right:0;max-height:70vh;overflow:auto;\
columns:2;padding:10px 16px;background:var(--back);border:1px solid var(--line)}\
nav div a{display:block;padding:2px 0}\
.wide{overflow-x:auto}\
table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums;margin:6px 0 14px}\
th,td{padding:4px 9px;border-bottom:1px solid var(--line);text-align:right;vertical-align:top;\
white-space:nowrap}\
th{background:var(--head);font-weight:600}th:first-child,td:first-child{text-align:left}\
td small{display:block;font-size:11.5px}\
table.text td,table.text th{text-align:left;white-space:normal}\
.met{color:var(--good);font-weight:600}.missed{color:var(--bad);font-weight:600}.open{color:var(--open)}\
.plots{display:flex;flex-wrap:wrap;gap:8px 24px}figure{margin:0;max-width:100%}\
figcaption{font-weight:600;font-size:13px}\
svg{max-width:100%;height:auto}\
svg text,svg [fill=\"#000000\"]{fill:var(--text)}svg [stroke=\"#000000\"]{stroke:var(--text)}\
.keys{font-size:13px;margin:4px 0 10px}.keys span{display:inline-block;margin-right:16px;white-space:nowrap}\
.keys i{display:inline-block;width:11px;height:11px;border-radius:50%;margin-right:5px;\
-webkit-print-color-adjust:exact;print-color-adjust:exact}\
@media(max-width:640px){body{padding:14px}nav div{columns:1}h1{font-size:22px}figure{overflow-x:auto}\
figure svg{max-width:none}table.text td{padding:4px 5px}}\
@media print{body{max-width:none;padding:0;font-size:11px}h2{break-after:avoid}figure,tr{break-inside:avoid}\
table{font-size:9px}td small{font-size:8px}th,td{padding:2px 4px}nav{display:none}}";

const EXPLAIN: &str = "\
Figures are medians of the rounds. Small below them: least to greatest, and how many times as good as the \
base with the 95 % interval of the pairs of one round; above 1 is better, whichever end of the figure is \
good. “Too noisy” stands where the spread leaves no meaning. “+control” is a contestant once more: what it \
differs from the first is noise. -fuse: through FUSE over io_uring; -loop: through FUSE over the loop on \
/dev/fuse; -trusted: through FUSE with no_default_permissions; -lib: in process, by threads.";

fn write(report: &Report, out: &mut String) -> Result {
    let title = escape(report.title);
    write!(
        out,
        "<!doctype html><html lang=en><meta charset=utf-8>\
         <meta name=viewport content=\"width=device-width\"><title>{title}</title>\
         <style>{STYLE}{}</style><h1>{title}</h1>",
        overview::STYLE
    )?;
    overview::write(report, out)?;
    let tables = tables(&report.rows);
    let sections: Vec<&[Table]> = tables
        .chunk_by(|one, other| one.section() == other.section())
        .collect();
    write!(
        out,
        "<nav><a href=#method>How it was measured</a><a href=#targets>Targets</a>\
         <details><summary>Tables and plots ({})</summary><div>",
        sections.len()
    )?;
    for (number, section) in sections.iter().enumerate() {
        if let Some(table) = section.first() {
            write!(out, "<a href=#s{number}>{}</a>", escape(&table.section()))?;
        }
    }
    write!(out, "</div></details></nav>")?;
    method(report, out)?;
    targets(report, out)?;
    published_table(report, out)?;
    for (number, section) in sections.iter().enumerate() {
        write_section(out, number, section)?;
    }
    writeln!(out, "</html>")
}

fn method(report: &Report, out: &mut String) -> Result {
    write!(out, "<h2 id=method>How it was measured</h2>")?;
    for line in report.head() {
        write!(out, "<p>{}</p>", code(&line))?;
    }
    write!(out, "<p class=soft>{EXPLAIN}</p>")
}

fn targets(report: &Report, out: &mut String) -> Result {
    write!(
        out,
        "<h2 id=targets>Targets</h2><table class=text><tr><th>wanted<th>reached<th>"
    )?;
    for target in judge(report) {
        let class = match target.outcome {
            Outcome::Met => "met",
            Outcome::Missed => "missed",
            Outcome::TooNoisy | Outcome::Open => "open",
        };
        let (wanted, reached) = (escape(&target.wanted), escape(&target.reached));
        let word = target.outcome.text();
        write!(out, "<tr><td>{wanted}<td>{reached}<td class={class}>{word}")?;
    }
    write!(out, "</table>")
}

fn published_table(report: &Report, out: &mut String) -> Result {
    write!(
        out,
        "<h2>Published with the original changes</h2><p class=soft>{}</p>\
         <table class=text><tr><th>mechanism<th>switched off as<th>measured then<th>times as good here",
        escape(published::NOTE)
    )?;
    for one in published::ALL {
        let [mechanism, figures] = [one.mechanism, one.figures].map(escape);
        let [policy, here] = [one.policy(), one.here(report)].map(|text| escape(&text));
        write!(
            out,
            "<tr><td>{mechanism}<td>{policy}<td>{figures}<td>{here}"
        )?;
    }
    write!(out, "</table>")
}

fn write_section(out: &mut String, number: usize, section: &[Table]) -> Result {
    let Some(first) = section.first() else {
        return Ok(());
    };
    write!(
        out,
        "<h2 id=s{number}>{}</h2><p class=keys>",
        escape(&first.section())
    )?;
    for line in &first.lines {
        let plotters::style::RGBColor(red, green, blue) = plot::colour(&line.name);
        let name = escape(&line.name);
        write!(
            out,
            "<span><i style=\"background:#{red:02x}{green:02x}{blue:02x}\"></i>{name}</span>"
        )?;
    }
    write!(out, "</p><div class=plots>")?;
    for table in section {
        if let Some(svg) = plot::render(table) {
            let caption = escape(&table.heading());
            write!(
                out,
                "<figure><figcaption>{caption}</figcaption>{svg}</figure>"
            )?;
        }
    }
    write!(out, "</div>")?;
    for table in section {
        write_table(out, table)?;
    }
    Ok(())
}

fn write_table(out: &mut String, table: &Table) -> Result {
    let base = escape(&table.base);
    let heading = escape(&table.heading());
    write!(
        out,
        "<h3>{heading} <span class=soft>ratios to {base}</span></h3>"
    )?;
    write!(out, "<div class=wide><table><tr><th>")?;
    for column in &table.columns {
        write!(out, "<th>{}", escape(column))?;
    }
    for line in &table.lines {
        write!(out, "<tr><td>{}", escape(&line.name))?;
        for cell in &line.cells {
            write!(out, "<td>{}", text(cell))?;
        }
    }
    write!(out, "</table></div>")
}

fn text(cell: &Cell) -> String {
    match cell {
        Cell::Absent => "–".to_owned(),
        Cell::Failed(why) => format!(
            "<span class=missed>failed</span><small>{}</small>",
            escape(why)
        ),
        Cell::Measured {
            spread,
            ratio,
            failed,
        } => {
            let [median, min, max] = [spread.median, spread.min, spread.max].map(Table::number);
            let mut text = median;
            if min != max {
                let _ = write!(text, "<small>{min}–{max}</small>");
            }
            if let Some(ratio) = ratio {
                let _ = write!(text, "<small>× {}</small>", ratio.to_text());
            }
            if *failed > 0 {
                let _ = write!(text, "<small>{failed} failed</small>");
            }
            text
        }
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// Escaped, with text between backquotes as code.
fn code(text: &str) -> String {
    let mut parts = text.split('`');
    let mut out = escape(parts.next().unwrap_or_default());
    for (number, part) in parts.enumerate() {
        out += if number % 2 == 0 { "<code>" } else { "</code>" };
        out += &escape(part);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests::row;

    #[test]
    fn a_page_has_plots_tables_and_targets_and_needs_nothing_else() {
        let entries: &[(&str, &[Option<f64>])] = &[
            ("btrfs-fuse", &[Some(4.0), Some(4.0)]),
            ("kernel-btrfs", &[Some(2.0), Some(2.0)]),
            ("<broken>", &[None]),
        ];
        let mut report = Report::new("Side by side", 2, 1);
        report.rows = vec![row("1", entries)];
        let page = render(&report);
        assert!(
            page.contains("id=method")
                && page.contains("<svg")
                && page.contains("prefers-color-scheme")
        );
        assert!(
            page.contains("4.00<small>× 2.00 [2.00, 2.00]</small>"),
            "{page}"
        );
        assert!(page.contains("&lt;broken&gt;") && !page.contains("<broken>"));
        assert!(page.contains("not measured"));
        let outside = page.replace("http://www.w3.org", "");
        assert!(!outside.contains("http") && !outside.contains("<script"));
    }

    #[test]
    fn backquotes_are_code() {
        assert_eq!(code("a `b <c>` d"), "a <code>b &lt;c&gt;</code> d");
    }
}
