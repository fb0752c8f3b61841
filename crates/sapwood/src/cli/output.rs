//! What commands print: names that may be any bytes, sizes, times, and the log.

use std::io::Write;

use sapwood_vfs::{Attr, FileKind, Timestamp};

/// Starts the log: warnings go to standard error, one line each.
pub(super) fn start_log() {
    struct Stderr;
    impl log::Log for Stderr {
        fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
            metadata.level() <= log::Level::Warn
        }
        fn log(&self, record: &log::Record<'_>) {
            if self.enabled(record.metadata()) {
                // Not `eprintln`: a full disk below the log must not end a mount.
                let _ = writeln!(std::io::stderr().lock(), "sapwood: {}", record.args());
            }
        }
        fn flush(&self) {}
    }
    // Only a library user who set a logger before us can make this fail, and then theirs counts.
    let _ = log::set_logger(&Stderr);
    log::set_max_level(log::LevelFilter::Warn);
}

/// Bytes as text for people: what is not printable becomes an escape.
pub(super) fn name(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for char in chunk.valid().chars() {
            match char.is_control() || char == '\\' {
                true => text.extend(char.escape_default()),
                false => text.push(char),
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

/// Writes a line to standard output. A reader that went away ends the command quietly.
pub(super) fn line(text: impl std::fmt::Display) {
    if writeln!(std::io::stdout().lock(), "{text}").is_err() {
        std::process::exit(0);
    }
}

/// A size with a binary unit.
pub(super) fn size(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
}

/// Type and permissions as `ls -l` shows them.
pub(super) fn mode(attr: &Attr) -> String {
    let kind = match attr.kind {
        FileKind::Regular => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::CharDevice => 'c',
        FileKind::BlockDevice => 'b',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
    };
    let mut text = String::from(kind);
    for (shift, special, lower, upper) in [
        (6, 0o4000, 's', 'S'),
        (3, 0o2000, 's', 'S'),
        (0, 0o1000, 't', 'T'),
    ] {
        let bits = attr.perm >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (attr.perm & special != 0, bits & 1 != 0) {
            (true, true) => lower,
            (true, false) => upper,
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// What `file` would call the kind.
pub(super) fn kind(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "regular file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symbolic link",
        FileKind::CharDevice => "character device",
        FileKind::BlockDevice => "block device",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
    }
}

/// A time in UTC, to the nanosecond.
pub(super) fn time(time: Timestamp) -> String {
    let days = time.sec.div_euclid(86_400);
    let second = time.sec.rem_euclid(86_400);
    let (year, month, day) = civil(days);
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}.{:09}",
        second / 3600,
        second / 60 % 60,
        second % 60,
        time.nsec
    )
}

/// Year, month and day of a count of days since 1970, in the Gregorian calendar.
fn civil(days: i64) -> (i64, i64, i64) {
    // Years that begin in March put the leap day at the end; an era is 400 of them.
    let shifted = days.saturating_add(719_468);
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

/// A UUID in its usual form.
pub(super) fn uuid(bytes: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

/// Prints a value as JSON on standard output.
pub(super) fn json(value: &impl serde::Serialize) {
    match serde_json::to_string_pretty(value) {
        Ok(text) => line(text),
        Err(error) => eprintln!("sapwood: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        let at = |sec| time(Timestamp { sec, nsec: 0 });
        assert_eq!(at(0), "1970-01-01 00:00:00.000000000");
        assert_eq!(at(951_782_400), "2000-02-29 00:00:00.000000000");
        assert_eq!(at(-1), "1969-12-31 23:59:59.000000000");
        assert_eq!(at(4_107_542_399), "2100-02-28 23:59:59.000000000");
    }

    #[test]
    fn names_are_safe_to_print() {
        assert_eq!(name("a\u{e9}\n\\".as_bytes()), "a\u{e9}\\n\\\\");
        assert_eq!(name(b"\xff"), "\\xff");
    }
}
