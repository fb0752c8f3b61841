//! What commands print: names that may be any bytes, sizes, and the log.

use std::io::Write;

use sapwood_vfs::{Attr, FileKind};

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
    fn names_are_safe_to_print() {
        assert_eq!(name("a\u{e9}\n\\".as_bytes()), "a\u{e9}\\n\\\\");
        assert_eq!(name(b"\xff"), "\\xff");
    }
}
