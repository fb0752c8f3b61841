//! How Sapwood compares with the kernel, as one picture.
//!
//! Each line is a workload. A dot shows how many times as good a format of Sapwood is as the
//! kernel's file system of that format, or as the program that makes its images; a bar is the 95 %
//! interval.

use std::fmt::Write;

use crate::report::Report;
use crate::statistics::Ratio;

/// Label, beginning of the row's name, figure.
const LINES: [(&str, &str, &str); 20] = [
    ("Write 64 KiB and fsync, 1 job", "seq-1", "rate"),
    ("The same, 8 jobs", "seq-8", "rate"),
    ("The same, 32 jobs", "seq-32", "rate"),
    ("4 KiB at random and fsync, 8 jobs", "rand-8", "rate"),
    ("Fsync of files with an xattr", "xattr-1", "rate"),
    ("dbench, 64 clients", "dbench-64", "rate"),
    ("Create empty files, 48 workers", "create-48x", "rate"),
    ("Remove them", "create-48x", "removes"),
    ("Rename 10,000 files", "renames-10000", "us_each"),
    ("Unpack small files with tar", "small-", "s"),
    ("Find them after a remount", "small-", "find_s"),
    ("Remove them with rm -rf", "small-", "remove_s"),
    ("git clone of many small files", "git-clone-", "s"),
    ("Write packages like node_modules", "node-modules-", "s"),
    ("Build a Rust program", "rust-build", "s"),
    ("SQLite transactions", "sqlite", "rate"),
    ("PostgreSQL transactions", "postgres", "rate"),
    ("Write a large file", "write-seq", "rate"),
    ("Read a large file, nothing cached", "read-seq-cold", "rate"),
    ("Make an image of small files", "image-", "s"),
];

/// Name, color, and pairs of contestants that are compared: ours and theirs.
const FORMATS: [(&str, &str, [[&str; 2]; 2]); 2] = [
    (
        "btrfs",
        "#1f77d4",
        [
            ["btrfs-fuse", "kernel-btrfs"],
            ["sapwood-mkfs-btrfs", "mkfs.btrfs"],
        ],
    ),
    (
        "ext4",
        "#e0503c",
        [
            ["ext4-fuse", "kernel-ext4"],
            ["sapwood-mkfs-ext4", "mke2fs"],
        ],
    ),
];

/// Ends of the logarithmic axis.
const AXIS: (f64, f64) = (0.1, 10.0);
const LABELS: f64 = 260.0;
const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 22.0;

/// Position of a ratio.
fn x(ratio: f64) -> f64 {
    let share = (ratio / AXIS.0).ln() / (AXIS.1 / AXIS.0).ln();
    LABELS + share.clamp(0.0, 1.0) * WIDTH
}

/// The ratios of both formats in the first row that has the line.
fn ratios(report: &Report, name: &str, key: &str) -> Option<[Option<Ratio>; 2]> {
    // A name that is not complete lacks its size.
    let fits = |row: &str| {
        let size = row
            .strip_prefix(name)
            .filter(|_| name.ends_with(['-', 'x']));
        size.is_some_and(|size| size.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let exact = report.rows.iter().find(|row| row.row == name);
    let row = exact.or_else(|| report.rows.iter().find(|row| fits(&row.row)))?;
    let figure = row.figures.iter().find(|figure| figure.key == key)?;
    let found = FORMATS.map(|(_, _, pairs)| {
        let mut pairs = pairs.iter();
        pairs.find_map(|[ours, theirs]| figure.ratio(row.entry(ours)?, row.entry(theirs)?))
    });
    found.iter().any(Option::is_some).then_some(found)
}

/// The picture as SVG; lines that were not measured are left out.
pub(crate) fn svg(report: &Report) -> String {
    let found = LINES
        .iter()
        .filter_map(|(label, name, key)| Some((label, ratios(report, name, key)?)));
    let lines: Vec<_> = found.collect();
    let (width, bottom) = (LABELS + WIDTH + 20.0, 40.0 + lines.len() as f64 * HEIGHT);
    let height = bottom + 26.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"13\" fill=\"#555\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n"
    );
    // Writing to a string does not fail.
    for (at, (name, color, _)) in FORMATS.iter().enumerate() {
        let left = LABELS + at as f64 * 160.0;
        let _ = writeln!(
            out,
            "<circle cx=\"{left}\" cy=\"14\" r=\"5\" fill=\"{color}\"/>"
        );
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"19\">Sapwood {name}, mounted</text>",
            left + 10.0
        );
    }
    for tick in [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0] {
        let (at, color) = (x(tick), if tick == 1.0 { "#555" } else { "#ddd" });
        let _ = writeln!(out, "<path d=\"M{at} 28V{bottom}\" stroke=\"{color}\"/>");
        let y = bottom + 18.0;
        let _ = writeln!(
            out,
            "<text x=\"{at}\" y=\"{y}\" text-anchor=\"middle\">{tick}×</text>"
        );
    }
    for (at, (label, ratios)) in lines.iter().enumerate() {
        let y = 28.0 + (at as f64 + 0.5) * HEIGHT;
        let _ = writeln!(out, "<text x=\"4\" y=\"{}\">{label}</text>", y + 4.0);
        for (ratio, (name, color, _)) in ratios.iter().zip(FORMATS) {
            let Some(ratio) = ratio else { continue };
            let y = if name == "btrfs" { y - 4.0 } else { y + 4.0 };
            let (low, high, at) = (x(ratio.low), x(ratio.high), x(ratio.value));
            let bar = format!("stroke=\"{color}\" stroke-width=\"2\" opacity=\".5\"");
            let _ = writeln!(out, "<path d=\"M{low:.1} {y}H{high:.1}\" {bar}/>");
            let inside = if ratio.is_clear() { color } else { "#fff" };
            let dot = format!("r=\"4\" fill=\"{inside}\" stroke=\"{color}\"");
            let _ = writeln!(out, "<circle cx=\"{at:.1}\" cy=\"{y}\" {dot}/>");
        }
    }
    out + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::report;

    #[test]
    fn a_line_has_a_dot_where_its_ratio_is() {
        let times: &[(&str, &[f64])] = &[("ext4-fuse", &[1.0, 1.0]), ("kernel-ext4", &[1.0, 1.0])];
        let picture = svg(&report("small-2000", times));
        assert!(
            picture.contains(">Unpack small files with tar<"),
            "{picture}"
        );
        assert!(!picture.contains("dbench"));
        let middle = LABELS + WIDTH / 2.0;
        assert!(
            picture.contains(&format!("<circle cx=\"{middle:.1}\"")),
            "{picture}"
        );
        assert!(x(0.001) >= LABELS && x(1000.0) <= LABELS + WIDTH);
    }
}
