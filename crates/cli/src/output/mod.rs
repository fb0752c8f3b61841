//! The output of commands: names of any bytes, sizes, the two standard streams, the log.
//!
//! No command prints in any other way: `main.rs` denies `println` and `eprintln`.

mod columns;
pub(super) mod json;
mod limit;
mod logger;
mod stream;
mod syslog;

pub(super) use columns::{columns, terminal_width};
pub(super) use json::Array;
pub(super) use logger::{SystemLog, limit_log, start_log};
pub(super) use stream::{
    broken, bytes, end_with, failed, finish, json_line, line, line_or_end, message, object, report,
};
pub(super) use syslog::socket as log_socket;

pub(super) use sapwood::internal::shown::{kind, name};
use sapwood::vfs::{Attr, FileKind};

/// A size with a binary unit.
pub(super) fn size(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
}

/// A size in at most five columns, rounded up, as `ls -h` shows it: `17`, `1.5K`, `230M`.
pub(super) fn human(bytes: u64) -> String {
    const UNITS: [char; 6] = ['K', 'M', 'G', 'T', 'P', 'E'];
    if bytes < 1024 {
        return bytes.to_string();
    }
    let mut unit = 1_u128;
    for (nth, name) in UNITS.iter().enumerate() {
        unit <<= 10;
        let tenths = (u128::from(bytes) * 10).div_ceil(unit);
        let whole = u128::from(bytes).div_ceil(unit);
        if tenths < 100 {
            return format!("{}.{}{name}", tenths / 10, tenths % 10);
        }
        if whole < 1024 || nth + 1 == UNITS.len() {
            return format!("{whole}{name}");
        }
    }
    bytes.to_string()
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

/// A UUID in its usual form.
pub(super) fn uuid(bytes: &[u8; 16]) -> String {
    uuid::Uuid::from_bytes(*bytes).to_string()
}

/// The bytes of a UUID in hexadecimal, with or without dashes.
pub(super) fn parse_uuid(text: &str) -> std::result::Result<[u8; 16], String> {
    let digits = text.replace('-', "").to_ascii_lowercase();
    let bytes = data_encoding::HEXLOWER.decode(digits.as_bytes()).ok();
    let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
    bytes.ok_or_else(|| format!("{text} is no UUID"))
}

#[cfg(test)]
mod tests {
    use super::human;

    #[test]
    fn sizes_are_short_and_rounded_up() {
        for (bytes, text) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (1025, "1.1K"),
            (10 << 10, "10K"),
            ((10 << 10) + 1, "11K"),
            ((1 << 20) - 1, "1.0M"),
            (1 << 30, "1.0G"),
            (u64::MAX, "16E"),
        ] {
            assert_eq!(human(bytes), text, "{bytes}");
        }
    }
}
