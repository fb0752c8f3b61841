//! Plots of tables, as SVG.
//!
//! A page shows black in the colour of its text, so that a plot is readable on a dark page too (see
//! `html`). A contestant has the same colour in every plot.

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::table::{Cell, Line, Table};

/// Size of a plot of lines, in pixels.
const SIZE: (u32, u32) = (520, 300);
/// Height of a bar, and height of the space around the bars.
const BAR: u32 = 20;
const AROUND: u32 = 50;
const FONT: &str = "sans-serif";

/// Colour of a contestant, and the shape of its points: dots for Sapwood, triangles for the kernel,
/// crosses for the others.
#[must_use]
pub fn colour(name: &str) -> RGBColor {
    const OF: [(&str, u32); 15] = [
        ("btrfs-fuse", 0x1f77d4),
        ("btrfs-loop", 0x6fb1ee),
        ("btrfs-trusted", 0x0b3d91),
        ("btrfs-lib", 0x17a2b8),
        ("ext4-fuse", 0xe0503c),
        ("ext4-loop", 0xf0a08c),
        ("ext4-trusted", 0x8b1a1a),
        ("ext4-lib", 0xd63384),
        ("kernel-btrfs", 0x6f42c1),
        ("kernel-ext4", 0xe08a00),
        ("kernel-xfs", 0x6b8e23),
        ("fuse2fs", 0x8c8c8c),
        ("sapwood-mkfs-btrfs", 0x1f77d4),
        ("sapwood-mkfs-ext4", 0xe0503c),
        ("mkfs.btrfs", 0x6f42c1),
    ];
    const REST: [u32; 5] = [0x2ca02c, 0x9c6b4e, 0xbcbd22, 0x008080, 0xaa5599];
    let found = OF.iter().find(|(known, _)| *known == name);
    let sum: usize = name.bytes().map(usize::from).sum();
    let rgb = found.map_or(REST[sum % REST.len()], |(_, rgb)| *rgb);
    let [_, red, green, blue] = rgb.to_be_bytes();
    RGBColor(red, green, blue)
}

/// A plot; `None` for a table that is not plotted, or if the drawing crate fails.
#[must_use]
pub fn render(table: &Table) -> Option<String> {
    let top = table
        .lines
        .iter()
        .flat_map(|line| &line.cells)
        .filter_map(|cell| match cell {
            Cell::Measured { spread, .. } => Some(spread.max),
            _ => None,
        });
    let top = top.fold(0.0, f64::max);
    if top <= 0.0 || !table.plotted {
        return None;
    }
    let mut svg = String::new();
    let drawn = if table.columns.len() > 2 {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        lines(table, &area, top)
    } else {
        let bars = table.lines.len() * table.columns.len();
        let height = AROUND + BAR * u32::try_from(bars).unwrap_or(1);
        let area = SVGBackend::with_string(&mut svg, (SIZE.0, height)).into_drawing_area();
        bars_of(table, &area, top)
    };
    drawn.ok().map(|()| svg)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

/// Sizes from left to right, a line for each contestant; a bar from the least to the greatest
/// value.
fn lines(table: &Table, area: &Area<'_>, top: f64) -> Drawn {
    let last = table.columns.len() as f64 - 1.0;
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .x_label_area_size(28)
        .y_label_area_size(62)
        .build_cartesian_2d(-0.2..last + 0.2, 0.0..top * 1.05)?;
    let column = |at: &f64| {
        let near = (at - at.round()).abs() < 0.01 && *at >= -0.01;
        let found = near
            .then(|| table.columns.get(at.round() as usize))
            .flatten();
        found.cloned().unwrap_or_default()
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(RGBColor(136, 136, 136).mix(0.3))
        .axis_style(BLACK)
        .label_style((FONT, 12).into_font().color(&BLACK))
        .x_labels(table.columns.len() * 2)
        .x_label_formatter(&column)
        .y_label_formatter(&|value| Table::tick(*value))
        .y_labels(6)
        .draw()?;
    for line in &table.lines {
        let colour = colour(&line.name);
        let found: Vec<_> = points(line).collect();
        for (at, [min, _, max]) in &found {
            chart.draw_series([PathElement::new(
                vec![(*at, *min), (*at, *max)],
                colour.mix(0.5),
            )])?;
        }
        let middles: Vec<_> = found
            .iter()
            .map(|(at, [_, median, _])| (*at, *median))
            .collect();
        chart.draw_series([PathElement::new(middles.clone(), colour.stroke_width(2))])?;
        for point in middles {
            if line.name.starts_with("kernel") {
                chart.draw_series([TriangleMarker::new(point, 5, colour.filled())])?;
            } else if line.name.starts_with("btrfs") || line.name.starts_with("ext4") {
                chart.draw_series([Circle::new(point, 4, colour.filled())])?;
            } else {
                chart.draw_series([Cross::new(point, 4, colour.stroke_width(2))])?;
            }
        }
    }
    area.present()?;
    Ok(())
}

/// Number of the column, with least, median and greatest value.
fn points(line: &Line) -> impl Iterator<Item = (f64, [f64; 3])> {
    line.cells
        .iter()
        .enumerate()
        .filter_map(|(at, cell)| match cell {
            Cell::Measured { spread, .. } => {
                Some((at as f64, [spread.min, spread.median, spread.max]))
            }
            _ => None,
        })
}

/// A bar for each contestant and size, from top to bottom.
fn bars_of(table: &Table, area: &Area<'_>, top: f64) -> Drawn {
    let many = table.columns.len() > 1;
    let labelled: Vec<_> = table
        .lines
        .iter()
        .flat_map(|line| {
            points(line).map(move |(at, values)| {
                let column = &table.columns[at as usize];
                let label = if many {
                    format!("{} ({column})", line.name)
                } else {
                    line.name.clone()
                };
                (label, colour(&line.name), values)
            })
        })
        .collect();
    let count = labelled.len() as f64;
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .x_label_area_size(24)
        .y_label_area_size(150)
        .build_cartesian_2d(0.0..top * 1.05, 0.0..count)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .light_line_style(TRANSPARENT)
        .bold_line_style(RGBColor(136, 136, 136).mix(0.3))
        .axis_style(BLACK)
        .label_style((FONT, 12).into_font().color(&BLACK))
        .x_label_formatter(&|value| Table::tick(*value))
        .x_labels(6)
        .draw()?;
    for (number, (label, colour, [min, median, max])) in labelled.iter().enumerate() {
        let y = count - 1.0 - number as f64;
        let bar = Rectangle::new([(0.0, y + 0.18), (*median, y + 0.82)], colour.filled());
        chart.draw_series([bar])?;
        let range = vec![(*min, y + 0.5), (*max, y + 0.5)];
        chart.draw_series([PathElement::new(range, BLACK)])?;
        let (x, y) = chart.backend_coord(&(0.0, y + 0.5));
        let width = i32::try_from(label.len()).unwrap_or(0) * 13 / 2;
        let style = (FONT, 12).into_font().color(&BLACK);
        area.draw(&Text::new(label.clone(), (x - width - 6, y - 6), style))?;
    }
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tables;
    use crate::table::tests::row;

    #[test]
    fn many_sizes_make_lines_and_few_make_bars() {
        let of = |size: &str| {
            row(
                size,
                &[("btrfs-fuse", &[Some(4.0)]), ("fuse2fs", &[Some(2.0)])],
            )
        };
        let lines = render(&tables(&["1", "2", "4"].map(of))[0]).unwrap();
        assert!(
            lines.starts_with("<svg") && lines.contains("polyline"),
            "{lines}"
        );
        assert!(lines.contains("#1F77D4"), "{lines}");
        let bars = render(&tables(&[of("1")])[0]).unwrap();
        assert!(
            bars.contains("fuse2fs") && !bars.contains("fuse2fs (1)"),
            "{bars}"
        );
        let nothing = tables(&[row("1", &[("x", &[Some(0.0)])])]);
        assert_eq!(render(&nothing[0]), None);
    }
}
