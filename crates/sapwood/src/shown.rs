//! Names and kinds of files as text for people.

use crate::vfs::FileKind;

/// Bytes of a name as text: unprintable characters become escapes.
#[must_use]
pub fn name(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for char in chunk.valid().chars() {
            if char.is_control() || char == '\\' {
                text.extend(char.escape_default())
            } else {
                text.push(char)
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

/// The name of the kind in file(1).
#[must_use]
pub fn kind(kind: FileKind) -> &'static str {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_safe_to_print() {
        assert_eq!(name("a\u{e9}\n\\".as_bytes()), "a\u{e9}\\n\\\\");
        assert_eq!(name(b"\xff"), "\\xff");
    }
}
