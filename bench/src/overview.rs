//! How Sapwood compares with the kernel, as one picture at the top of a page.
//!
//! Each line is a workload. A dot says how many times as good a format of Sapwood is as the
//! kernel's file system of that format, or as the program that makes its images. The picture is
//! made of boxes, not of an image, so that its text keeps its size on a phone.

use std::fmt::{Result, Write};

use crate::metric::{Metric, Source};
use crate::report::Report;
use crate::statistics::{Ratio, Verdict};
use crate::target::Runs;

const RATE: Metric = Metric::RATE;
const REMOVES: Metric = Metric::high("removes", "", Source::More("removes"));

/// A time, for a ratio, which has no unit.
const fn time(figure: &'static str) -> Metric {
    Metric::low("time", "", Source::More(figure))
}

/// Label, name of the workload as [`Runs::named`] takes it, figure.
const LINES: [(&str, &str, Metric); 22] = [
    ("Write 64 KiB and fsync, 1 job", "seq-1", RATE),
    ("The same, 8 jobs", "seq-8", RATE),
    ("The same, 32 jobs", "seq-32", RATE),
    ("4 KiB at random and fsync, 8 jobs", "rand-8", RATE),
    ("Fsync of files with an xattr", "xattr-1", RATE),
    ("dbench, 64 clients", "dbench-64", RATE),
    ("Create empty files, 48 workers", "create-48x", RATE),
    ("Remove them", "create-48x", REMOVES),
    ("Rename 10,000 files", "renames-10000", time("us_each")),
    ("Unpack small files with tar", "small-", time("s")),
    ("Find them after a remount", "small-", time("find_s")),
    ("Remove them with rm -rf", "small-", time("remove_s")),
    ("git clone", "git-clone", time("s")),
    ("git clone of many small files", "git-clone-", time("s")),
    (
        "Write packages like node_modules",
        "node-modules-",
        time("s"),
    ),
    ("Build a Rust program", "rust-build", time("s")),
    ("SQLite transactions", "sqlite", RATE),
    ("PostgreSQL transactions", "postgres", RATE),
    ("Write a large file", "write-seq", RATE),
    ("Read a large file, nothing cached", "read-seq-cold", RATE),
    ("Make an image of a directory", "image-", time("s")),
    ("Make an image of small files", "image-small-", time("s")),
];

/// A format of Sapwood.
struct Format {
    name: &'static str,
    /// Class in the style sheet.
    class: &'static str,
    /// Contestants that are compared: ours and theirs.
    pairs: [(&'static str, &'static str); 2],
}

const FORMATS: [Format; 2] = [
    Format {
        name: "btrfs",
        class: "one",
        pairs: [
            ("sapwood-mkfs-btrfs", "mkfs.btrfs"),
            ("btrfs-fuse", "kernel-btrfs"),
        ],
    },
    Format {
        name: "ext4",
        class: "two",
        pairs: [
            ("sapwood-mkfs-ext4", "mke2fs"),
            ("ext4-fuse", "kernel-ext4"),
        ],
    },
];

/// Part of the page's style sheet.
pub const STYLE: &str = "\
:root{--one:#1f77d4;--two:#e0503c}\
.compare{display:grid;grid-template-columns:minmax(13em,auto) 1fr auto;gap:0 14px;align-items:center;\
margin:14px 0 6px;font-size:14px}\
.compare>*{min-height:27px;display:flex;align-items:center}\
.track{position:relative;border-bottom:1px solid var(--line);align-self:stretch;\
background:linear-gradient(to right,transparent calc(50% - 1px),var(--text) calc(50% - 1px),\
var(--text) 50%,transparent 50%)}\
.track i{position:absolute;width:12px;height:12px;margin-left:-6px;border-radius:50%;top:50%;\
margin-top:-6px;border:2px solid}\
.track u{position:absolute;height:2px;top:50%;margin-top:-1px;opacity:.45}\
.axis{position:relative;color:var(--soft);font-size:12px}.axis span{position:absolute;\
transform:translateX(-50%);white-space:nowrap}\
.axis span:first-child{transform:none;left:0}.axis span:last-child{transform:none;right:0}\
.times{font-variant-numeric:tabular-nums;white-space:nowrap}.times b{font-weight:600;min-width:3.4em;\
text-align:right}\
.one{color:var(--one)}.two{color:var(--two)}\
i.one,u.one{background:var(--one)}i.two,u.two{background:var(--two)}i.unsure{background:var(--back)}\
.track i,.track u,.track{-webkit-print-color-adjust:exact;print-color-adjust:exact}\
.lead{font-size:17px}.keys span.soft{white-space:normal}\
@media(max-width:640px){.compare{grid-template-columns:1fr auto}.compare .label{grid-column:1/-1;\
min-height:0;padding-top:6px}.track{min-height:24px}.compare .corner{display:none}}\
@media print{.compare{font-size:10px;gap:0 8px}.compare>*{min-height:15px}.track i{width:8px;height:8px;\
margin:-4px 0 0 -4px}}";

/// A line that was measured: its label and a ratio for each format.
struct Line {
    label: &'static str,
    ratios: [Option<Ratio>; 2],
}

impl Line {
    fn known(&self) -> impl Iterator<Item = &Ratio> {
        self.ratios.iter().flatten()
    }
}

/// Writes the picture, with a sentence that says what it shows; nothing if the report has none of
/// its workloads.
pub fn write(report: &Report, out: &mut String) -> Result {
    let lines = measured(report);
    if lines.is_empty() {
        return Ok(());
    }
    write!(out, "<p class=lead>{}</p>", sentence(&lines))?;
    write!(out, "<p class=keys>")?;
    for Format { name, class, .. } in FORMATS {
        write!(out, "<span><i class={class}></i>{name}</span>")?;
    }
    write!(
        out,
        "<span class=soft>Dots: how many times as fast. Bars: 95 % interval. Hollow: too noisy to \
         tell.</span></p><div class=compare>"
    )?;
    let end = end(&lines);
    write!(
        out,
        "<div class=corner></div><div class=axis><span>{end} times slower</span>\
         <span style=\"left:50%\">as fast</span><span>{end} times faster</span></div>\
         <div class=corner></div>"
    )?;
    for line in &lines {
        write_line(line, f64::from(end), out)?;
    }
    write!(out, "</div>")
}

/// What the first medium of the report has.
fn measured(report: &Report) -> Vec<Line> {
    let runs = Runs::of_first_medium(report);
    let lines = LINES.iter().filter_map(|(label, workload, metric)| {
        let workload = runs.named(workload)?;
        let ratio = |(ours, theirs): &(&str, &str)| runs.ratio(workload, *metric, ours, theirs);
        let ratios = FORMATS.map(|format| format.pairs.iter().find_map(ratio));
        Some(Line { label, ratios })
    });
    lines.filter(|line| line.known().next().is_some()).collect()
}

/// The scale goes from one divided by this to this: a power of two.
fn end(lines: &[Line]) -> u32 {
    let furthest = lines.iter().flat_map(Line::known);
    let furthest = furthest
        .map(|ratio| ratio.value.ln().abs().exp())
        .fold(2.0, f64::max);
    [2, 4, 8]
        .into_iter()
        .find(|end| furthest <= f64::from(*end))
        .unwrap_or(16)
}

fn sentence(lines: &[Line]) -> String {
    let (mut ahead, mut behind, mut open) = (0, 0, 0);
    for ratio in lines.iter().flat_map(Line::known) {
        match ratio.verdict() {
            Verdict::Nothing => open += 1,
            _ if ratio.low > 1.0 => ahead += 1,
            _ if ratio.high < 1.0 => behind += 1,
            _ => open += 1,
        }
    }
    format!(
        "Of {} comparisons with the kernel's own file system or tool, on the same machine in the same run, \
         Sapwood is ahead in <b>{ahead}</b> and behind in <b>{behind}</b>. In {open} there is no \
         difference that the runs could show.",
        ahead + behind + open
    )
}

fn write_line(line: &Line, end: f64, out: &mut String) -> Result {
    let at = |value: f64| (50.0 + 50.0 * value.ln() / end.ln()).clamp(0.0, 100.0);
    write!(
        out,
        "<div class=label>{}</div><div class=track>",
        line.label
    )?;
    let formats = || FORMATS.iter().zip(&line.ratios);
    for (Format { class, .. }, ratio) in formats() {
        let Some(ratio) = ratio else { continue };
        let (low, high) = (at(ratio.low), at(ratio.high));
        let width = high - low;
        write!(
            out,
            "<u class={class} style=\"left:{low:.1}%;width:{width:.1}%\"></u>"
        )?;
    }
    for (Format { name, class, .. }, ratio) in formats() {
        let Some(ratio) = ratio else { continue };
        let unsure = match ratio.verdict() {
            Verdict::Nothing => " unsure",
            _ => "",
        };
        write!(
            out,
            "<i class=\"{class}{unsure}\" style=\"left:{:.1}%\" title=\"{name}: {}\"></i>",
            at(ratio.value),
            ratio.to_text()
        )?;
    }
    write!(out, "</div><div class=times>")?;
    for (Format { class, .. }, ratio) in formats() {
        match ratio {
            Some(ratio) => write!(out, "<b class={class}>{:.2}</b>", ratio.value)?,
            None => write!(out, "<b class={class}>–</b>")?,
        }
    }
    write!(out, "</div>")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests::row;

    fn report(ours: &[Option<f64>], theirs: &[Option<f64>]) -> Report {
        let mut report = Report::new("Side by side", 2, 1);
        let mut row = row("1", &[("btrfs-fuse", ours), ("kernel-btrfs", theirs)]);
        row.workload = "seq-8".to_owned();
        report.rows = vec![row];
        report
    }

    fn page(report: &Report) -> String {
        let mut out = String::new();
        write(report, &mut out).unwrap();
        out
    }

    #[test]
    fn a_dot_stands_where_its_ratio_is_on_a_logarithmic_scale() {
        let twice = page(&report(&[Some(4.0), Some(4.0)], &[Some(2.0), Some(2.0)]));
        assert!(
            twice.contains("left:100.0%\" title=\"btrfs: 2.00"),
            "{twice}"
        );
        assert!(
            twice.contains("ahead in <b>1</b> and behind in <b>0</b>"),
            "{twice}"
        );
        let half = page(&report(&[Some(1.0), Some(1.0)], &[Some(4.0), Some(4.0)]));
        assert!(
            half.contains("4 times slower") && half.contains("left:0.0%\" title"),
            "{half}"
        );
        assert!(
            half.contains("ahead in <b>0</b> and behind in <b>1</b>"),
            "{half}"
        );
        assert!(half.contains("<b class=two>–</b>"), "{half}");
    }

    #[test]
    fn a_noisy_ratio_is_hollow_and_counts_for_nobody() {
        let noisy = page(&report(&[Some(1.0), Some(9.0)], &[Some(3.0), Some(3.0)]));
        assert!(noisy.contains("class=\"one unsure\""), "{noisy}");
        assert!(
            noisy.contains("ahead in <b>0</b> and behind in <b>0</b>"),
            "{noisy}"
        );
    }

    #[test]
    fn a_report_of_other_workloads_has_no_picture() {
        let mut other = report(&[Some(1.0), Some(1.0)], &[Some(1.0), Some(1.0)]);
        other.rows[0].workload = "seq-88".to_owned();
        assert_eq!(page(&other), "");
    }
}
