//! Names in columns, and the width of the terminal.

/// Width of a terminal that does not report its own.
const WIDTH: usize = 80;
/// Columns between two names.
const GAP: usize = 2;

/// The width of standard output, if it is a terminal.
pub(crate) fn terminal_width() -> Option<usize> {
    let stdout = rustix::stdio::stdout();
    if !rustix::termios::isatty(stdout) {
        return None;
    }
    let width = rustix::termios::tcgetwinsize(stdout).map_or(0, |size| usize::from(size.ws_col));
    Some(if width == 0 { WIDTH } else { width })
}

/// Lines of at most `width` columns with the names in columns, sorted downwards, as ls(1) prints
/// them. A name has its width with it, because it may have a colour.
pub(crate) fn columns(names: &[(usize, String)], width: usize) -> Vec<String> {
    let widths: Vec<usize> = names.iter().map(|name| name.0).collect();
    let fits = |rows: &usize| {
        let all = widths.chunks(*rows);
        let needed: usize = all
            .map(|column| column.iter().max().unwrap_or(&0) + GAP)
            .sum();
        needed <= width + GAP
    };
    let rows = (1..=names.len()).find(fits).unwrap_or(names.len());
    let mut lines = vec![String::new(); rows];
    let columns = names.chunks(rows.max(1)).zip(widths.chunks(rows.max(1)));
    for (column, widths) in columns {
        let widest = widths.iter().max().unwrap_or(&0) + GAP;
        for (line, ((_, name), width)) in lines.iter_mut().zip(column.iter().zip(widths)) {
            line.push_str(name);
            line.push_str(&" ".repeat(widest - width));
        }
    }
    lines
        .iter()
        .map(|line| line.trim_end().to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use unicode_width::UnicodeWidthStr as _;

    use super::*;

    #[test]
    fn names_fill_columns_downwards() {
        let measured = |name: &str| (name.width(), name.to_owned());
        let names = ["a", "bb", "ccc", "d", "e"].map(measured).to_vec();
        assert_eq!(columns(&names, 80), ["a  bb  ccc  d  e"]);
        assert_eq!(columns(&names, 9), ["a    d", "bb   e", "ccc"]);
        assert_eq!(columns(&names, 1), ["a", "bb", "ccc", "d", "e"]);
        assert!(columns(&[], 80).is_empty());
        // Wide characters take two columns.
        let wide = ["\u{6f22}\u{5b57}", "x"].map(measured);
        assert_eq!(columns(&wide, 7), ["\u{6f22}\u{5b57}  x"]);
        assert_eq!(columns(&wide, 6).len(), 2);
    }
}
