//! Paths: without links, and by patterns.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::file_system::FileSystem;
use crate::error::{Error, ErrorKind, Result};
use crate::pattern::Pattern;
use crate::tree::{LINKS_MAX, components};
use crate::vfs;

impl FileSystem {
    /// The path from the root without symbolic links, `.` and `..`.
    ///
    /// # Errors
    /// The path does not exist, or leads through too many symbolic links.
    pub fn canonicalize(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let path = path.as_ref();
        let mut rest = components(path.as_os_str().as_bytes());
        rest.reverse();
        let (mut at, mut links) = (PathBuf::from("/"), 0);
        while let Some(name) = rest.pop() {
            match name.as_slice() {
                b"." => continue,
                b".." => {
                    at.pop();
                    continue;
                }
                _ => {}
            }
            let next = at.join(OsStr::from_bytes(&name));
            let found = self.symlink_metadata(&next)?;
            if found.is_symlink() {
                links += 1;
                if links > LINKS_MAX {
                    return Err(Error::at("resolve", path)(vfs::Error::SymlinkLoop));
                }
                let target = self.read_link(&next)?.into_os_string().into_vec();
                if target.first() == Some(&b'/') {
                    at = PathBuf::from("/");
                }
                rest.extend(components(&target).into_iter().rev());
            } else if !rest.is_empty() && !found.is_dir() {
                return Err(Error::at("resolve", path)(vfs::Error::NotDirectory));
            } else {
                at = next;
            }
        }
        Ok(at)
    }

    /// The paths that a [`Pattern`] of a path leads to, sorted; each component is a pattern. A
    /// component that exists as it is written means itself. A pattern matches a hidden name only if
    /// it begins with a dot. Without any match the result is the pattern itself, as in a shell.
    ///
    /// # Errors
    /// The image is damaged; the device fails.
    pub fn glob(&self, pattern: impl AsRef<Path>) -> Result<Vec<PathBuf>> {
        let pattern = pattern.as_ref();
        let bytes = pattern.as_os_str().as_bytes();
        if !Pattern::is_in(bytes) {
            return Ok(vec![pattern.to_owned()]);
        }
        let start: &[u8] = if bytes.starts_with(b"/") { b"/" } else { b"" };
        let mut found = vec![PathBuf::from(OsStr::from_bytes(start))];
        for part in components(bytes) {
            let mut next = Vec::new();
            for base in found {
                self.expand(&base, &part, &mut next)?;
            }
            found = next;
        }
        if bytes.ends_with(b"/") {
            found.retain(|path| self.metadata(path).is_ok_and(|found| found.is_dir()));
            for path in &mut found {
                path.push("");
            }
        }
        if found.is_empty() {
            found.push(pattern.to_owned());
        }
        Ok(found)
    }

    fn expand(&self, base: &Path, part: &[u8], found: &mut Vec<PathBuf>) -> Result<()> {
        let literal = base.join(OsStr::from_bytes(part));
        if part == b"." || part == b".." || missing(self.symlink_metadata(&literal))?.is_some() {
            found.push(literal);
            return Ok(());
        }
        if !Pattern::is_in(part) {
            return Ok(());
        }
        let pattern = Pattern::new(part);
        let Some(names) = missing(self.read_dir(base))? else {
            return Ok(());
        };
        let mut matching: Vec<OsString> = Vec::new();
        for entry in names {
            let name = entry?.file_name();
            let bytes = name.as_bytes();
            let hidden = bytes.starts_with(b".") && !pattern.begins_with_dot();
            if !hidden && pattern.matches(bytes) {
                matching.push(name);
            }
        }
        matching.sort();
        found.extend(matching.iter().map(|name| base.join(name)));
        Ok(())
    }
}

/// `None` for a path that does not exist.
fn missing<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) => match error.kind() {
            ErrorKind::NotFound
            | ErrorKind::NotADirectory
            | ErrorKind::SymlinkLoop
            | ErrorKind::InvalidFilename => Ok(None),
            _ => Err(error),
        },
    }
}
