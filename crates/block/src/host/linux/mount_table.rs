//! The kernel's mount table.
//!
//! Format: `proc_pid_mountinfo(5)`. Reading it sends no request to any file system, so it cannot
//! hang on a daemon that has died.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::holder::MountEntry;

/// See [`mount_table`](crate::mount_table::mount_table).
pub(crate) fn mount_table() -> io::Result<Vec<MountEntry>> {
    table_of(Path::new("/proc/self"))
}

/// The mounts that the process with this directory in `/proc` sees.
pub(super) fn table_of(process: &Path) -> io::Result<Vec<MountEntry>> {
    let table = std::fs::read(process.join("mountinfo"))?;
    let lines = table.split(|&byte| byte == b'\n');
    Ok(lines.filter_map(entry).collect())
}

fn entry(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|&byte| byte == b' ');
    let device = std::str::from_utf8(fields.nth(2)?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let root = PathBuf::from(unescape(fields.next()?));
    let point = PathBuf::from(unescape(fields.next()?));
    // A dash ends the optional fields.
    let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
    Some(MountEntry {
        device: (major.parse().ok()?, minor.parse().ok()?),
        root,
        point,
        kind: unescape(fields.next()?),
        source: unescape(fields.next()?),
    })
}

/// Decodes the octal escapes of white space and backslashes.
fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [byte, tail @ ..] = rest {
        let escaped = match (byte, tail) {
            (
                b'\\',
                [
                    a @ b'0'..=b'3',
                    b @ b'0'..=b'7',
                    c @ b'0'..=b'7',
                    after @ ..,
                ],
            ) => Some(((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'), after)),
            _ => None,
        };
        let (value, after) = escaped.unwrap_or((*byte, tail));
        bytes.push(value);
        rest = after;
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_undone() {
        let wanted = OsString::from_vec(b"/a b\\c\\04\xff".to_vec());
        assert_eq!(unescape(b"/a\\040b\\134c\\04\xff"), wanted);
    }

    #[test]
    fn a_line_may_have_any_number_of_optional_fields() {
        let wanted = MountEntry {
            device: (98, 0),
            root: "/".into(),
            point: "/m t".into(),
            kind: "fuse.sapwood".into(),
            source: "/disk one.img".into(),
        };
        for optional in ["", "shared:1 ", "shared:1 master:2 "] {
            let line =
                format!("36 35 98:0 / /m\\040t rw {optional}- fuse.sapwood /disk\\040one.img rw");
            assert_eq!(entry(line.as_bytes()).as_ref(), Some(&wanted), "{line}");
        }
        assert_eq!(entry(b""), None);
        assert_eq!(entry(b"36 35 98:0 / /m rw"), None);
    }
}
