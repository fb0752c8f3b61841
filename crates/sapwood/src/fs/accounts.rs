//! Users and groups by the names that the image gives them.

use std::path::Path;

use super::file_system::FileSystem;
use crate::error::{ErrorKind, Result};

/// Most bytes of a table of names that are read.
const TABLE_MAX: usize = 16 << 20;

impl FileSystem {
    /// The number of a user, from `etc/passwd` in the image; `None` if the image does not name it.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) for a damaged image; I/O errors of the
    /// device.
    pub fn user_id(&self, name: &str) -> Result<Option<u32>> {
        self.account("etc/passwd", name)
    }

    /// The number of a group, from `etc/group` in the image; `None` if the image does not name it.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) for a damaged image; I/O errors of the
    /// device.
    pub fn group_id(&self, name: &str) -> Result<Option<u32>> {
        self.account("etc/group", name)
    }

    fn account(&self, table: &str, name: &str) -> Result<Option<u32>> {
        let table = Path::new(table);
        let file = match self.open(table) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let len = usize::try_from(file.metadata()?.len()).unwrap_or(TABLE_MAX);
        let mut bytes = vec![0; len.min(TABLE_MAX)];
        let count = file.read_at(&mut bytes, 0)?;
        bytes.truncate(count);
        Ok(number(&bytes, name.as_bytes()))
    }
}

/// The third field of the line whose first field is the name.
fn number(table: &[u8], name: &[u8]) -> Option<u32> {
    let mut lines = table.split(|byte| *byte == b'\n');
    lines.find_map(|line| {
        let mut fields = line.split(|byte| *byte == b':');
        let found = fields.next().is_some_and(|field| field == name);
        let id = fields.nth(1).filter(|_| found)?;
        std::str::from_utf8(id).ok()?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn a_line_names_a_number() {
        let table = b"root:x:0:0::/root:/bin/sh\nbad\nann:x:1000:100::/:\n\xff:x:7:\nann:x:2:2\n";
        assert_eq!(number(table, b"root"), Some(0));
        assert_eq!(number(table, b"ann"), Some(1000));
        assert_eq!(number(table, b"\xff"), Some(7));
        assert_eq!(number(table, b"an"), None);
        assert_eq!(number(table, b"bad"), None);
    }
}
